"""What a GPU would do for each operation: waits of the host, and bytes that kernels move."""

from __future__ import annotations

import re

from tests._data import run_python

LIMITS = {  # waits, and bytes that are read or written for each byte of the frame
    "filter": (1, 2.2),
    "concat": (0, 4.5),
    "sort": (1, 7.3),
    "sort, 1000 keys": (1, 6.0),
    "sort by two": (5, 23.0),
    "groupby sum": (3, 8.0),
    "groupby min": (3, 8.0),
    "merge": (3, 9.5),
    "drop_duplicates": (3, 6.0),
    "hash and split": (4, 8.0),
    "groupby 1 M": (3, 11.0),
}
LINE = r"(\w.*?) +\d+ launches +(\d+) waits +([\d.]+) moved +[\d.]+ allocated (\d+) unordered sums"


def test_operations_stay_below_their_limits() -> None:
    done = run_python("-m", "asv_bench.gpu", "--module", "strict", "--rows", "200000")
    found = {name: figures for name, *figures in re.findall(LINE, done.stdout)}
    assert found.keys() == LIMITS.keys(), done.stderr
    for name, (waits, moved) in LIMITS.items():
        assert int(found[name][0]) <= waits, name
        assert float(found[name][1]) <= moved, name
        assert found[name][2] == "0", name
