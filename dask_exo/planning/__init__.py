"""Graph in, rewrite, run: from what Dask hands a scheduler to values."""
