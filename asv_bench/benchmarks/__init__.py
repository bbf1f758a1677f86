"""Benchmarks. asv imports this folder alone; the package above is found here, and in workers."""

import os
import sys
from pathlib import Path

_root = str(Path(__file__).resolve().parents[2])
sys.path.append(_root)
_paths = (_root, os.environ.get("PYTHONPATH"))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, _paths))  # of the workers of Ray
