"""Check the stand-in for cudf against cudf's own sources: it may have nothing that they lack.

``python .ci/cudf_sources.py FOLDER`` unpacks the wheels of cudf, dask_cudf and RMM in a new folder
and reads them without importing: that needs a GPU. The tests run our code for cudf with the
stand-in, so it calls nothing else. Where the package index has no such wheels, it says so. Needs
griffe.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[1]
WHEELS = ["cudf-cu12", "dask-cudf-cu12", "rmm-cu12"]
PLATFORMS = ["manylinux_2_24_x86_64", "manylinux_2_28_x86_64"]
STAND_IN = ROOT / "tests" / "unit" / "partitions" / "test_cudf_partition.py"
MODELS = {"DataFrame": ["DataFrame"], "Values": ["Series", "Index"]}
OWN = {"on_host", "came"}  # attributes of the stand-in
SAID = {  # what else our code relies on
    "cudf/core/buffer/spill_manager.py": "def set_spill_on_demand_globally() -> None:",
    "rmm/mr/__init__.py": "    LimitingResourceAdaptor,",
    "dask_cudf/_expr/expr.py": "class ToCudfBackend(Elemwise)",
    "dask_cudf/backends.py": "@hash_object_dispatch.register((cudf.DataFrame, cudf.Series))",
}


def unpack(folder: Path) -> bool:
    """Download the wheels, without what they depend on, and unpack them; return whether it did."""
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    options = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", *platforms]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--dest", str(folder)]
    if subprocess.run([*command, *options, *WHEELS], check=False).returncode:
        return False
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as file:
            file.extractall(folder)
    return True


def target(member: griffe.Object | griffe.Alias) -> griffe.Object | griffe.Alias:
    return member.final_target if member.is_alias else member


def differences(name: str, mine: griffe.Class, models: list[griffe.Class]) -> Iterator[str]:
    """Yield what a class of the stand-in has, and none of its models has alike."""
    for label, member in mine.members.items():
        if label in OWN or (label.startswith("__") and label != "__len__"):
            continue
        theirs = [
            target(model.all_members[label]) for model in models if label in model.all_members
        ]
        if not theirs:
            yield f"{name}.{label} is not in cudf"
        elif member.is_function and not any(accepts(each, member) for each in theirs):
            yield f"{name}.{label} takes other arguments in cudf"


def accepts(model: griffe.Object | griffe.Alias, mine: griffe.Object | griffe.Alias) -> bool:
    """Return whether a method of cudf has the parameters of ours, and requires no other ones."""
    if not model.is_function:
        return any(str(each.value).endswith(".setter") for each in mine.decorators)
    wanted, given = list(model.parameters)[1:], {each.name for each in list(mine.parameters)[1:]}
    return {each.name for each in wanted if each.required} <= given <= {e.name for e in wanted}


def main(folder: Path) -> int:
    folder.mkdir()
    if not unpack(folder):
        print(f"the package index has no {' and '.join(WHEELS)}: nothing was compared")
        return 0
    cudf = griffe.load("cudf", search_paths=[folder], allow_inspection=False)
    stand_in = griffe.visit("stand_in", STAND_IN, STAND_IN.read_text(encoding="utf-8"))
    found = [
        line
        for name, models in MODELS.items()
        for line in differences(name, stand_in[name], [target(cudf[each]) for each in models])
    ]
    found += [f"{p}: no {t!r}" for p, t in SAID.items() if t not in (folder / p).read_text()]
    print("\n".join(found) or f"cudf {next(folder.glob('cudf_*.dist-info')).stem}: nothing differs")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
