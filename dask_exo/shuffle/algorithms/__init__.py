"""The shuffle algorithms, one file each."""
