"""The files of examples/deploy are what the programs that read them expect."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
import ray
import yaml
from dask.utils import parse_bytes

from dask_exo.cluster.on_ray.node_state import NODE_VARIABLES, spill_batch

FOLDER = Path(__file__).parents[2] / "examples" / "deploy"
# Options of `ray start` that a file uses are those that the installed Ray has.
OPTION = re.compile(r"--([a-z][a-z-]+)=?")


@pytest.fixture(scope="module")
def options() -> str:
    from ray.scripts.scripts import start

    return " ".join(option for param in start.params for option in param.opts)


@pytest.mark.parametrize("name", ["ray-up.yaml", "ray-up-local.yaml"])
def test_ray_up_follows_the_schema_of_ray(name, options) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    config = yaml.safe_load(text)
    schema = Path(ray.__file__).parent / "autoscaler" / "ray-schema.json"
    jsonschema.validate(config, json.loads(schema.read_text(encoding="utf-8")))
    kinds = config.get("available_node_types", {config.get("head_node_type")})
    assert config.get("head_node_type") in kinds
    starts = [
        line
        for name in ("head_start_ray_commands", "worker_start_ray_commands")
        for line in config[name]
        if "ray start" in line
    ]
    for line in starts:
        for option in OPTION.findall(line.partition("ray start")[2]):
            assert f"--{option}" in options
    assert "--head" in starts[0]
    assert "$RAY_HEAD_IP" in starts[1]


def test_kuberay_has_room_for_the_store(options) -> None:
    manifest = yaml.safe_load((FOLDER / "kuberay.yaml").read_text(encoding="utf-8"))
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayCluster")
    # that of KubeRay 1.7, strict, and without what the manifest does not use
    schema = json.loads(Path(__file__).with_name("kuberay.json").read_text(encoding="utf-8"))
    jsonschema.validate(manifest, schema)
    (workers,) = manifest["spec"]["workerGroupSpecs"]
    for group in (workers, manifest["spec"]["headGroupSpec"]):
        assert all(f"--{name}" in options for name in group["rayStartParams"])
        spec = group["template"]["spec"]
        volumes = {volume["name"] for volume in spec["volumes"]}
        assert {m["name"] for c in spec["containers"] for m in c["volumeMounts"]} == volumes
    spec = workers["template"]["spec"]
    store = int(workers["rayStartParams"]["object-store-memory"])
    sizes = {v["name"]: v["emptyDir"]["sizeLimit"] for v in spec["volumes"]}
    (container,) = spec["containers"]
    assert store <= parse_bytes(sizes["shm"] + "B")
    assert 2 * store <= parse_bytes(container["resources"]["limits"]["memory"] + "B")
    assert workers["rayStartParams"]["object-spilling-directory"] in {
        mount["mountPath"] for mount in container["volumeMounts"]
    }


def test_the_slurm_script_is_one(options) -> None:
    path = FOLDER / "slurm.sh"
    bash = shutil.which("bash")
    assert bash is not None
    subprocess.run([bash, "-n", str(path)], check=True)
    text = path.read_text(encoding="utf-8")
    given = re.findall(r"ray start (.*(?:\n.*)?--block)", text)
    assert len(given) == 2
    sizes = re.search(r"sizes=\(([^)]*)\)", text)[1]
    for name in OPTION.findall(sizes + " ".join(given)):
        assert f"--{name}" in options


def test_the_image_has_the_variables_of_nodes() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    instructions = {line.split()[0] for line in text.splitlines() if line[:1] not in ("", "#")}
    assert instructions == {"FROM", "RUN", "COPY", "ENV", "USER", "WORKDIR"}
    (variables,) = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    found = dict(pair.split("=") for pair in variables.split())
    assert NODE_VARIABLES.items() <= found.items()


FILES = ["kuberay.yaml", "ray-up.yaml", "ray-up-local.yaml", "slurm.sh"]


@pytest.mark.parametrize("name", FILES)
def test_nodes_are_started_with_what_they_need(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    for variable, value in NODE_VARIABLES.items():
        assert re.search(rf'{variable}(=|, value: "){value}\b', text)
    store = int(re.search(r'object-store-memory(?:=|: ")(\d+)', text)[1])
    batch = int(re.search(r'RAY_min_spilling_size(?:=|, value: ")(\d+)', text)[1])
    assert batch == spill_batch(store)
