"""What ``ddf.exo`` offers, a module for each kind of operation."""
