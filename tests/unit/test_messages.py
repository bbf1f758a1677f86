"""Errors say what is wrong, where, what is needed and there, and what to do."""

from __future__ import annotations

import ast
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_exo
from dask_exo import errors, pipeline
from dask_exo.cli import sort, validate
from dask_exo.client import Client
from dask_exo.cluster import on_ray, spilling
from dask_exo.config import Config
from dask_exo.errors import Failure
from dask_exo.partitions.gpu import arrays
from dask_exo.partitions.gpu_frames import to_device
from dask_exo.shuffle.choose import Shape
from dask_exo.shuffle.run_shuffle import check_disk_space
from dask_exo.shuffle.spec import Tally, verify
from dask_exo.testing import InlineFutures

PACKAGE = Path(dask_exo.__file__).parent
LEAVES = {
    name: one
    for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, errors.ExoError) and one is not errors.ExoError
}
# Words by which a message says what to do, and those that name what there is to choose from.
REMEDY = re.compile(
    r"\b(needs?|must be|send|give|use|set|call|create|make|raise|lower|choose|convert|take|free|"
    r"name|start|add|"
    r"leave|pass|import|write|rename|assign|compute|begin|move|yield|export|merge|sort|fill|find|"
    r"look|pickle|drop|docs/\w+\.md|there are|say what|do it|do that|apply|in the call)\b"
    r"|\.(reset_index|to_backend|astype|fillna|categorize|set_categories)\(",
    re.IGNORECASE,
)
SAID_ELSEWHERE = {
    "hint",
    "instead",
    "text",
    "what",
    "why",
}  # of a message: texts that say what to do


def raised() -> Iterator[tuple[str, str, str]]:
    """Where an error of ours is made, its class, and the constant parts of its message."""
    for path in sorted(PACKAGE.rglob("*.py")):
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id in LEAVES and node.args:
                where = f"{path.relative_to(PACKAGE)}:{node.lineno}"
                yield where, node.func.id, text(node.args[0])


def text(node: ast.expr) -> str:
    """A message, its values as ``{code}``."""
    if isinstance(node, ast.JoinedStr):
        return "".join(map(text, node.values))
    if isinstance(node, ast.FormattedValue):
        return "{" + ast.unparse(node.value) + "}"
    return str(node.value) if isinstance(node, ast.Constant) else "{" + ast.unparse(node) + "}"


MESSAGES = list(raised())


def test_there_are_messages_of_nearly_all_classes() -> None:
    assert len(MESSAGES) > 130
    assert LEAVES.keys() - {name for _, name, _ in MESSAGES} <= {"DeviceTypeError", "SortKeyError"}


@pytest.mark.parametrize(("where", "name", "message"), MESSAGES, ids=[m[0] for m in MESSAGES])
def test_a_message_says_what_to_do(where: str, name: str, message: str) -> None:
    if name == "CancelledError":  # somebody has asked for it
        return
    values = set(re.findall(r"\{([^}]*)\}", message))
    whole = next(iter(values)) if message.startswith("{") and message.endswith("}") else ""
    if whole.startswith("_impossible("):  # told by `test_of_each_class`
        return
    constant = re.sub(r"\{[^}]*\}", " ", message)
    assert len(constant.split()) >= 3 or values & SAID_ELSEWHERE, message
    assert REMEDY.search(constant) or values & SAID_ELSEWHERE, message


@pytest.mark.parametrize("name", LEAVES)
def test_each_error_class_documents_cause_remedy_and_base(name: str) -> None:
    one = LEAVES[name]
    assert "*When*: " in one.__doc__
    assert "*What helps*: " in one.__doc__
    builtins = [
        base for base in one.__mro__ if base.__module__ in ("builtins", "concurrent.futures._base")
    ]
    assert builtins[0] not in (Exception, BaseException, object)
    again = pickle.loads(pickle.dumps(one("x=1: need 2")))  # noqa: S301
    assert type(again) is one
    assert str(again) == "x=1: need 2"


def frame(**columns: object) -> dd.DataFrame:
    return dd.from_pandas(pd.DataFrame({"k": [1, 2, 3, 4], **columns}), npartitions=2)


def mixed() -> dd.DataFrame:
    made = [pd.DataFrame({"o": pd.Series([v] * 3, dtype=object)}) for v in (1, "x")]
    with dask.config.set({"dataframe.convert-string": False}):
        return dd.from_map(lambda i: made[i], range(2), meta=made[0])


def configured(**keys: object) -> None:
    with dask.config.set({f"exo.{key}": value for key, value in keys.items()}):
        Config.current()


def unwritable() -> None:
    spilling.usable("/proc/nowhere")


def lacking() -> None:
    Failure.of("sum-1", ValueError("gone wrong", threading.Lock())).reraise()


def needing(gpus: float) -> None:
    ddf = frame().exo.map_partitions(len, meta=("k", "int64"), num_gpus=gpus)
    nodes = [dask_exo.cluster.futures.Node("n1", 2, 10**9, resources={"CPU": 2.0})]
    ddf.compute(scheduler=dask_exo.Scheduler(InlineFutures(nodes)))


def unsendable() -> None:
    lock = threading.Lock()
    futures = dask_exo.Scheduler(InlineFutures())
    dask.delayed(lambda: lock)().compute(scheduler=futures)


def method() -> None:
    with dask.config.set({"dataframe.shuffle.method": "bubble"}):
        frame().k.sum().compute(scheduler=dask_exo.Scheduler(InlineFutures()))


def epochs() -> None:
    next(iter(frame().exo.epochs(1, 2, seed=1, format="csv")))


CASES: list[tuple[str, Callable[[], object], list[str]]] = [
    ("ConfigError", lambda: configured(**{"shuffle.algoritm": "push"}),
     ["'exo.shuffle.algoritm'", "did you mean 'exo.shuffle.algorithm'"]),
    ("ConfigError", lambda: configured(**{"scheduler.tasks-per-slot": 0}),
     ["exo.scheduler.tasks-per-slot", "minimum of 1", "docs/configuration.md"]),
    ("ConfigError", lambda: configured(**{"address": "h:1", "num-cpus": 4, "num-gpus": 1}),
     ["exo.num-cpus, exo.num-gpus has no effect", "exo.address is h:1", "set exo.address: null"]),
    ("ConfigError",
     lambda: configured(**{"shuffle.late-floor": "9s", "shuffle.speculation": False}),
     ["exo.shuffle.late-floor has no effect", "set exo.shuffle.speculation: true"]),
    ("ShuffleMethodError", method, ["dataframe.shuffle.method='bubble'", "leave it at 'tasks'"]),
    ("SpillError", unwritable,
     ["exo.spill-directory='/proc/nowhere'", "cannot be written", "Name a directory"]),
    ("SpillError",
     lambda: check_disk_space("sort", Shape(8 * 10**9, 10, 10, 1, 2, 10**9), None, disk=6 * 10**9),
     ["shuffle sort", "7.45 GiB", "0.93 GiB", "6.52 GiB must be spilled", "5.59 GiB",
      "exo.spill-directory"]),
    ("IntegrityError", lambda: verify("join", Tally(10, 4), Tally(9, 3)),
     ["join", "10 rows went in", "9 came out", "Compute it again"]),
    ("ColumnError", lambda: frame().exo.sort_values("kk"), ["'kk'", "'k'"]),
    ("SortArgumentError", lambda: frame().exo.sort_values("k", ascending=[True, False]),
     ["ascending=[True, False]", "2 directions", "need one or 1", "by=['k']"]),
    ("SortKeyError",
     lambda: mixed().exo.sort_values("o").compute(scheduler="sync"),
     ["'o'", "no common order", ".astype("]),
    ("MergeArgumentError", lambda: frame().exo.merge(frame(), left_on="k"),
     ["right side", "need right_on="]),
    ("AggregationError", lambda: frame().exo.groupby("k").quantile("k", 2),
     ["q=2", "from 0 to 1"]),
    ("ShuffleArgumentError", epochs, ["format='csv'", "there are", "pandas"]),
    ("PipelineError", lambda: frame().exo.pipeline(on_error="ignore"),
     ["on_error='ignore'", "need 'raise' or 'skip'"]),
    ("PipelineError", lambda: pipeline.of(3), ["begin with a int", "need a Dask dataframe"]),
    ("OptionsError", lambda: dask_exo.options(num_gpus=-1), ["GPU", "-1", "need a number from 0"]),
    ("OptionsError", lambda: needing(1), ["1 GPU", "exo.num-gpus", "request less"]),
    ("InputError", lambda: sort.files("/no/such/*.csv"), ["/no/such/*.csv", "give another path"]),
    ("OutputError", lambda: sort.check(frame(), ["k"], Path("/no/such/out"), overwrite=False),
     ["'/no/such/out'", "no directory '/no/such'", "make it first"]),
    ("OutputExistsError", lambda: sort.check(frame(), ["k"], Path("/"), overwrite=False),
     ["'/'", "exists", "--overwrite"]),
    ("InputError", lambda: validate.validate(PACKAGE / "report", ["k"]),
     ["no *.parquet", "report", "give another directory"]),
    ("ResultError", lacking, ["'sum-1'", "gone wrong", "raise one of a class in a module"]),
    ("SerializationError", unsendable, ["cannot be sent", "lock", "created inside the task"]),
    ("UnsupportedError", lambda: Client(security=True), ["security", "RAY_USE_TLS"]),
    ("DeviceTypeError",
     lambda: to_device(pd.DataFrame({"o": [object()]}), arrays.HOST), ["object", ".astype("]),
    ("DeviceOperationError",
     lambda: to_device(pd.DataFrame({"k": [1.0, 2.0]}), arrays.HOST).apply(np.sum),
     ["'apply'", ".to_backend('pandas')"]),
    ("NoClientError", dask_exo.get_client, ["create one with dask_exo.Client()"]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fails", "said"), CASES, ids=[case[0] for case in CASES])
def test_of_each_class(name: str, fails: Callable[[], object], said: list[str]) -> None:
    if on_ray.running():
        pytest.skip("another test of this process runs Ray")
    with pytest.raises(LEAVES[name]) as caught:
        fails()
    assert type(caught.value) is LEAVES[name]
    for part in said:
        assert part in str(caught.value), str(caught.value)
