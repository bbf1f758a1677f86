"""Kernels over rows in host memory: sort, hash, join, group, count."""
