"""Memory and transport of partitions on a GPU."""
