"""The loop that runs a plan on a cluster."""
