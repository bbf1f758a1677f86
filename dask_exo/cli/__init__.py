"""Commands of ``dask exo`` that are no sort; each imports what it needs when it is called."""
