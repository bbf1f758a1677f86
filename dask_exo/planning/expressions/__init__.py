"""Expressions of Dask that dask_exo adds: sorts, joins and groups of its own."""
