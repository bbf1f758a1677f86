"""The same jobs on dask_exo and on everything else that people would use for them.

``python -m asv_bench.peers --rows 5_000_000`` makes the data, runs the systems in turns, each in
processes of its own, compares their results, and prints medians and ratios. The raw figures stay
in a JSON file.
"""
