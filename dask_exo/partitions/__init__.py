"""What a partition is. Nothing above this package knows how its rows are kept."""
