"""Kernels over single columns in GPU memory."""
