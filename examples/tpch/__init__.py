"""The 22 queries of TPC-H as ordinary Dask code, checked against DuckDB.

python -m examples.tpch --scale 1 --check

They are derived from TPC-H, and no results of a TPC-H benchmark: those have rules of their own,
and are audited.
"""
