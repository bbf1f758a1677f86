"""Blockwise expressions over Parquet files as queries of Polars, with the results of pandas.

`rules` says which operations Polars does as pandas does. `translate` makes `terms` of the
expressions that rules cover, `compiled` puts them into the expression of a computation, and `query`
runs them in a task.
"""
