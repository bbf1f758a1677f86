"""Benchmarks. asv imports this folder alone; the packages above are found here, and in workers."""

import os
import sys
from pathlib import Path

_above = [str(path) for path in Path(__file__).resolve().parents[1:3]]  # of benchmarks, asv_bench
sys.path += _above
_paths = filter(None, [*_above, os.environ.get("PYTHONPATH")])
os.environ["PYTHONPATH"] = os.pathsep.join(_paths)  # of the workers of Ray
