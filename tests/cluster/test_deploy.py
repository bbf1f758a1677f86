"""The commands of examples/deploy start a cluster, with processes of this machine as its nodes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests._data import run_python

pytestmark = pytest.mark.cluster

DEPLOY = Path(__file__).parents[2] / "examples" / "deploy"
BIN = Path(sys.executable).parent

PROGRAM = """
import os, sys, warnings
warnings.simplefilter("error", UserWarning)  # of variables that a node lacks
import dask, dask.dataframe as dd, pandas as pd, dask_exo
from dask_exo.cluster.on_ray import RayFutures
address = sys.argv[1] if len(sys.argv) > 1 else os.environ["DASK_EXO__ADDRESS"]
dask_exo.enable(address=address)
ddf = dd.from_pandas(pd.DataFrame({"a": range(1000)}), npartitions=8)
assert ddf.shuffle("a").a.sum().compute() == 499500
futures = RayFutures()
assert all(node.disk for node in futures.nodes()), futures.nodes()
print("spills to", *{disk.path for disk in futures.disks()})
print("done on", len(futures.nodes()))
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("", 0))
        return one.getsockname()[1]


def smaller(text: str, folder: Path) -> str:
    """Return commands for this machine: of small stores, and with this environment."""
    words = {
        "40000000000": "200000000",
        "20000000000": "200000000",
        "10000000000": "104857600",
        "5000000000": "104857600",
        "~/venv/bin/ray": f"{BIN}/ray",
        "/mnt/spill": f"{folder}/spill",
        "$HOME/spill": f"{folder}/spill",
        "--autoscaling-config=~/ray_bootstrap_config.yaml": f"--temp-dir={folder}/r",
        "ulimit -n 65536": "true",
        "--num-cpus=0": "--num-cpus=0 --include-dashboard=false",
    }
    for old, new in words.items():
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("name", ["ray-up.yaml", "ray-up-local.yaml"])
def test_the_commands_of_ray_up_start_a_cluster(name: str, ray_folder: Path) -> None:
    from ray.util import get_node_ip_address

    folder = ray_folder
    (folder / "spill").mkdir()
    config, port = yaml.safe_load((DEPLOY / name).read_text()), free_port()
    ip = get_node_ip_address()
    for key in ("head_start_ray_commands", "worker_start_ray_commands"):
        for line in config[key]:
            if "ray stop" in line:
                continue  # it would stop every Ray of this machine
            command = smaller(line, folder).replace("6379", str(port))
            environment = {**os.environ, "RAY_HEAD_IP": ip}
            subprocess.run(["bash", "-c", command], env=environment, check=True, timeout=60)
    environment = {"RAY_AUTH_MODE": "disabled"}
    done = run_python("-c", PROGRAM, f"{ip}:{port}", timeout=100, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"spills to {folder}/spill" in done.stdout
    assert done.stdout.endswith("done on 1\n")


SRUN = """#!/bin/bash
while [[ $1 == -* ]]; do
  [[ $1 == -w ]] && shift
  shift
done
exec "$@"
"""


def test_the_script_for_slurm_starts_a_cluster(ray_folder: Path) -> None:
    folder = ray_folder
    (folder / "spill").mkdir()
    home, shims = folder / "h", folder / "b"
    (home / "venv" / "bin").mkdir(parents=True)
    (home / "venv" / "bin" / "activate").write_text(f"export PATH={shims}:{BIN}:$PATH\n")
    shims.mkdir()
    for name, text in {"srun": SRUN, "scontrol": "#!/bin/bash\nprintf 'one\\ntwo\\n'\n"}.items():
        (shims / name).write_text(text)
        (shims / name).chmod(0o755)
    script, program = folder / "slurm.sh", folder / "program.py"
    script.write_text(smaller((DEPLOY / "slurm.sh").read_text(), folder))
    program.write_text(PROGRAM)
    environment = {
        **os.environ,
        "HOME": str(home),
        "TMPDIR": str(folder),
        "RAY_TMPDIR": f"{folder}/r",
        "SLURM_JOB_ID": str(int(time.time()) % 10_000),
        "SLURM_JOB_NODELIST": "one,two",
        "SLURM_CPUS_PER_TASK": "2",
    }
    with (folder / "output").open("w") as output:
        done = subprocess.run(
            ["bash", str(script), str(program)],
            env=environment,
            stdout=output,
            stderr=output,
            timeout=150,
            check=False,
        )
    text = (folder / "output").read_text()
    assert done.returncode == 0, text
    assert "done on 2" in text, text
    assert not list((home / ".ray").glob("token-*"))  # it is deleted
