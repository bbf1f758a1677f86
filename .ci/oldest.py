"""Check the lower bounds of pyproject.toml: install exactly these, and run a program on Ray.

``python .ci/oldest.py FOLDER`` makes a virtual environment in a new folder.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = """
import tempfile
import dask, dask.dataframe as dd, numpy as np, pandas as pd
import dask_exo

n = 10_000
df = pd.DataFrame({"k": np.arange(n) % 100, "s": [f"n{i}" for i in range(n)], "v": 1.0})
for engine in "local", "ray":
    settings = {"scheduler": dask_exo.get, "exo.engine": engine, "exo.num-cpus": 2}
    with dask.config.set(settings), tempfile.TemporaryDirectory() as folder:
        ddf = dd.from_pandas(df, npartitions=5)
        assert sorted(ddf.shuffle("k").compute().s) == sorted(df.s)
        assert ddf.sort_values("s").compute().s.is_monotonic_increasing
        assert (ddf.groupby("k").v.sum().compute() == 100).all()
        assert len(ddf.merge(ddf[["k"]].drop_duplicates(), on="k").compute()) == n
        ddf.set_index("s").to_parquet(folder)
        read = dd.read_parquet(folder)
        assert read.v.sum().compute() == n
        with dask.config.set({"exo.compile": "verify"}):
            assert (read[read.k < 50].v * 2).sum().compute() == n
        assert ddf.persist().v.sum().compute() == n
    print(engine, "ok", flush=True)
with dask_exo.Client() as client:
    assert client.submit(sum, client.map(abs, [-1, 2])).result() == 3
    assert client.compute(ddf.v.sum()).result() == n
print("client ok", flush=True)
"""


def main(folder: str) -> None:
    """Install and run; raise an error if either fails."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pins = [bound.replace(">=", "==") for bound in project["dependencies"]]
    print(*pins, flush=True)
    venv.create(folder, with_pip=True)
    python = Path(folder, "bin", "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *pins], check=True)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([python, "-c", PROGRAM], check=True, env=env, timeout=300)


if __name__ == "__main__":
    main(sys.argv[1])
