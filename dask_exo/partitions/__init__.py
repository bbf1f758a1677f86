"""Partitions: kernels and wire formats by kind of frame, on the host and on GPUs."""
