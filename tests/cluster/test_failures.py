"""Bad input and bad luck, on real Ray: a typed error that says what to do, and Ray usable after."""

from __future__ import annotations

import _thread
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

import dask_exo
from dask_exo import errors
from tests._data import run_python

pytestmark = [pytest.mark.cluster]


@pytest.fixture
def ddf(cluster):
    yield dd.from_pandas(pd.DataFrame({"k": range(1000), "v": 1.0}), npartitions=8)
    assert dask.delayed(sum)([1, 2]).compute() == 3  # whatever happened, Ray still works


class MineError(Exception):
    """An error of a user's own."""


def descend(depth: int) -> None:
    if depth == 0:
        raise MineError("bad leaf")
    descend(depth - 1)


@pytest.mark.parametrize("depth", [600, 900])
def test_an_exception_from_deep_down_keeps_its_type(ddf, depth: int) -> None:
    with pytest.raises(MineError, match="bad leaf") as caught:
        dask.delayed(descend)(depth).compute()
    assert caught.traceback[-1].name == "descend"


def fail(part: pd.DataFrame) -> pd.DataFrame:
    if 500 in part["k"].values:
        raise MineError("row 500 is bad")
    return part


@pytest.mark.parametrize("shuffled", [False, True], ids=["map", "shuffle"])
def test_user_exceptions_keep_type_and_traceback(ddf, shuffled):
    bad = ddf.map_partitions(fail, meta=ddf._meta)
    bad = bad.shuffle("k") if shuffled else bad
    with pytest.raises(MineError, match="row 500 is bad") as caught:
        bad.compute()
    assert any("fail" in note and "dask_exo" in note for note in caught.value.__notes__)
    assert caught.traceback[-1].name == "fail"


def test_an_exception_in_the_task_after_a_shuffle_is_raised(ddf) -> None:
    with pytest.raises(MineError):
        ddf.shuffle("k").map_partitions(fail, meta=ddf._meta).compute()


class UnpicklableError(Exception):
    def __init__(self, lock: object) -> None:
        super().__init__("holds a lock")
        self.lock = lock


def raise_unpicklable() -> None:
    raise UnpicklableError(threading.Lock())


def test_unpicklable_exceptions_keep_type_and_message(cluster) -> None:
    with pytest.raises(UnpicklableError, match="holds a lock"):
        dask.delayed(raise_unpicklable)().compute()


def test_a_function_that_cannot_be_sent_is_named(cluster) -> None:
    lock = threading.Lock()
    bad = dask.delayed(lambda x: (x, lock), name="locked")(1, dask_key_name="my-key")
    with pytest.raises(errors.SerializationError, match="'my-key' cannot be sent to another"):
        dask.compute(bad, dask.delayed(abs)(-1))


def test_a_warning_in_a_task_reaches_the_caller(cluster) -> None:
    def warn() -> int:
        import warnings

        warnings.warn("mind the gap", UserWarning, stacklevel=1)
        return 1

    with pytest.warns(UserWarning, match="mind the gap"):
        assert dask.delayed(warn)().compute() == 1


def test_an_unknown_shuffle_method_is_refused(ddf) -> None:
    with (
        dask.config.set({"dataframe.shuffle.method": "magic"}),
        pytest.raises(errors.ShuffleMethodError, match="'magic' is not a shuffle method"),
    ):
        ddf.sum().compute()


def test_an_unknown_key_is_refused_before_anything_runs(ddf) -> None:
    with (
        dask.config.set({"exo.shuffle.algorythm": "push"}),
        pytest.raises(errors.ConfigError, match=r"exo\.shuffle\.algorithm"),
    ):
        ddf.sum().compute()


def test_a_missing_column_is_named(ddf) -> None:
    with pytest.raises(KeyError, match="nowhere"):
        ddf.shuffle("nowhere").compute()


def test_a_partition_larger_than_the_store_is_refused(cluster) -> None:
    def big(_: int) -> pd.DataFrame:
        return pd.DataFrame({"k": np.arange(32 * 2**20)})

    ddf = dd.from_map(big, [0, 1], meta=pd.DataFrame({"k": np.arange(1)}))
    said = r"512.00 MiB, but the object store of a node takes 228.88 MiB .* exo.object-store-memory"
    with pytest.raises(errors.StoreFullError, match=said):
        ddf.shuffle("k").map_partitions(len).compute()


def test_empty_input_has_an_empty_result(cluster) -> None:
    empty = dd.from_pandas(pd.DataFrame({"k": [1], "v": [1.0]}), npartitions=1)
    empty = empty[empty.k > 5]
    assert len(empty.shuffle("k", npartitions=4).compute()) == 0
    assert empty.merge(empty, on="k").compute().columns.tolist() == ["k", "v_x", "v_y"]
    assert empty.groupby("k").v.sum(split_out=2).compute().empty


def test_a_result_can_be_written_to(ddf) -> None:
    got = ddf.shuffle("k").compute()
    got.iloc[0, 0] = 7
    assert got.iloc[0, 0] == 7
    array = dask.delayed(np.arange)(100_000).compute()
    array[0] = 5
    assert array[0] == 5


def test_a_task_may_write_into_its_input(cluster) -> None:
    def double(array: np.ndarray) -> np.ndarray:
        array *= 2
        return array

    source = dask.delayed(np.ones)(50_000)
    twice, once = dask.compute(dask.delayed(double)(source), dask.delayed(np.sum)(source))
    assert twice.sum() == 100_000
    assert once == 50_000


def test_several_threads_compute_at_once(ddf) -> None:
    # optimized here: Dask's own optimizer locks up in threads on Python 3.11, on any scheduler
    jobs = [ddf.shuffle("k", npartitions=n).map_partitions(len).optimize() for n in range(3, 11)]
    with ThreadPoolExecutor(4) as pool:
        lengths = list(pool.map(lambda job: dask_exo.get(job.expr, job.__dask_keys__()), jobs))
        sums = list(pool.map(lambda n: dask.delayed(sum)([n, n]).compute(), range(50)))
    assert [sum(part.sum() for part in parts) for parts in lengths] == [1000] * 8
    assert sums == [2 * n for n in range(50)]


def test_an_interrupt_stops_what_runs_and_frees_the_store(cluster, tmp_path: Path) -> None:
    def slow(i: int) -> np.ndarray:
        (tmp_path / f"started-{i}").touch()
        time.sleep(1.0)
        return np.ones(10**6)

    @dask.delayed
    def total(parts: list[np.ndarray]) -> float:
        return float(sum(part.sum() for part in parts))

    job = total([dask.delayed(slow)(i) for i in range(40)])

    def interrupt() -> None:
        while len(list(tmp_path.iterdir())) < 4:
            time.sleep(0.05)
        _thread.interrupt_main()

    # started in the background, as by some CI, Python ignores interrupts
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        threading.Thread(target=interrupt, daemon=True).start()
        with pytest.raises(KeyboardInterrupt):
            job.compute()
    finally:
        signal.signal(signal.SIGINT, before)
    time.sleep(2.5)  # what was running may end
    count = len(list(tmp_path.iterdir()))
    time.sleep(1.5)
    assert len(list(tmp_path.iterdir())) == count < 40  # nothing new was started
    assert dask.delayed(abs)(-1).compute() == 1
    # the `cluster` fixture checks that the store is empty


class LateError(Exception):
    """An error that the handler of a signal raises, as a time limit of tests does."""


@pytest.fixture
def armed() -> Iterator[threading.Event]:
    """An event; while it is set, SIGUSR1 raises a `LateError` in the main thread."""
    event = threading.Event()

    def handle(*_: object) -> None:
        if event.is_set():
            raise LateError("it is late")

    before = signal.signal(signal.SIGUSR1, handle)
    yield event
    event.clear()
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("engine", ["local", "ray"])
def test_an_error_of_a_signal_handler_ends_a_wait(
    cluster, armed: threading.Event, tmp_path: Path, engine: str
) -> None:
    def wait(i: int) -> int:
        (tmp_path / f"started-{i}").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.02)
        return i

    def send() -> None:
        while not list(tmp_path.iterdir()):
            time.sleep(0.02)
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(5)
        (tmp_path / "go").touch()

    armed.set()
    sender = threading.Thread(target=send)
    sender.start()
    with dask.config.set({"exo.engine": engine}):
        with pytest.raises(LateError):
            dask.delayed(sum)([dask.delayed(wait)(i) for i in range(2)]).compute()
        assert not (tmp_path / "go").exists()
        sender.join()
        assert dask.delayed(sum)([1, 2]).compute() == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a callback
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_an_interrupt_at_any_moment_leaves_dask_usable(
    ddf, armed: threading.Event, engine: str
) -> None:
    with dask.config.set({"exo.engine": engine}):
        for moment in np.linspace(0.0005, 0.15, 30):
            timer = threading.Timer(moment, os.kill, (os.getpid(), signal.SIGUSR1))
            try:
                armed.set()
                timer.start()
                ddf.shuffle("k").v.sum().compute()
                armed.clear()
            except (LateError, errors.SerializationError):  # raised while it was pickled
                armed.clear()
            timer.join()
            assert ddf.shuffle("k").v.sum().compute() == 1000


def test_a_task_may_end_while_it_is_cancelled() -> None:
    done = run("""
        import time, ray, dask_exo
        from dask_exo.cluster.on_ray import RayFutures, running
        with dask_exo.enable(num_cpus=2, object_store_memory="100MB"):
            assert running()  # waits for the start
            futures = RayFutures()
            for turn in range(60):
                refs = [futures.submit(time.sleep, 0.002) for _ in range(60)]
                futures.wait(refs)
                futures.cancel(refs)
                ready, left = ray.wait(refs, num_returns=len(refs), timeout=30)
                assert not left
            print("alive")
    """)
    assert "alive" in done.stdout, done.stderr


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process, as a user's script."""
    return run_python("-c", textwrap.dedent(code), **env)


@pytest.mark.parametrize(
    ("end", "how"),
    [
        ("os._exit(3)", "with no message, as after SIGKILL or os._exit,"),
        ("sys.exit(5)", "with exit code 5"),
        ("ctypes.string_at(0)", "with SIGSEGV"),
    ],
    ids=["exit", "sys-exit", "crash"],
)
def test_a_task_that_ends_its_worker_is_named(cluster, end: str, how: str) -> None:
    job = dask.delayed(exec)(f"import ctypes, os, sys; {end}", dask_key_name="ends")
    said = rf"task 'ends': its worker died at each of 4 attempts, at last {how} on node [\d.]+"
    with pytest.raises(errors.WorkerLostError, match=said) as caught:
        job.compute()
    assert "partition" not in str(caught.value)
    assert ("in string_at" in str(caught.value)) == (how == "with SIGSEGV")


@pytest.mark.parametrize("log", ["null", "ray"])
def test_messages_of_ray_are_printed_on_request(log: str) -> None:
    done = run(
        """
        import os, time, dask, dask_exo, dask_exo.errors as errors
        with dask_exo.enable(num_cpus=1, engine="ray"):
            try:
                dask.delayed(os._exit)(3).compute()
            except errors.WorkerLostError:
                time.sleep(2)
    """,
        DASK_EXO__LOG=log,
    )
    assert done.returncode == 0, done.stderr
    assert ("(raylet)" in done.stdout + done.stderr) == (log == "ray")


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1:1", "Connection refused"),
        ("tcp://127.0.0.1:8786", "a Ray cluster is named HOST:PORT"),
        ("ray://127.0.0.1:10001", "Ray Client is not supported"),
    ],
)
def test_an_address_where_no_cluster_can_be_is_named(address, why) -> None:
    done = run(f"""
        import dask_exo, dask_exo.errors as errors
        try:
            dask_exo.enable(address="{address}")
        except errors.ClusterError as error:
            print(error)
        import dask
        print(dask.config.get("scheduler", None))
    """)
    assert f"exo.address='{address}'" in done.stdout, done.stderr
    assert why in done.stdout
    assert done.stdout.strip().endswith("None")


def test_a_store_of_a_size_that_cannot_be_is_named_by_its_key() -> None:
    done = run("""
        import dask, dask_exo, dask_exo.errors as errors
        enabled = dask_exo.enable(object_store_memory="1MB")
        for need in (dask.delayed(abs)(1).compute, lambda: enabled.cluster):
            try:
                need()
            except errors.ClusterError as error:
                print(error)
    """)
    message = "exo.object-store-memory is 1,000,000 bytes: change it"
    assert done.stdout.count(message) == 2, done.stderr


def test_a_start_that_takes_too_long_is_repeated() -> None:
    done = run(
        """
        import dask, dask_exo, os, ray
        from pathlib import Path
        with dask_exo.enable(num_cpus=1, object_store_memory="100MB"):
            print(dask.delayed(sum)([1, 2]).compute())
            print(len(list(Path(os.environ["TMPDIR"]).glob("exo-*"))))  # of the second start only
    """,
        RAY_gcs_server_port_wait_time_s="0",
        TMPDIR=(place := tempfile.mkdtemp(prefix="t")),
    )
    assert done.stdout.split() == ["3", "1"], done.stderr
    assert done.stderr.count("did not start in time on this busy machine") == 1
    shutil.rmtree(place)


def test_a_spill_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = run(f"""
        import dask_exo, dask_exo.errors as errors
        try:
            dask_exo.enable(spill_directory={str(tmp_path / "file")!r})
        except errors.SpillError as error:
            print(error)
    """)
    assert "exo.spill-directory" in done.stdout, done.stderr


def test_one_line_is_enough_and_starts_a_private_ray() -> None:
    place = Path(tempfile.mkdtemp(prefix="t"))
    done = run(
        """
        import dask, dask.dataframe as dd, pandas as pd, dask_exo
        dask.config.set(scheduler=dask_exo.get)
        df = pd.DataFrame({"k": range(100), "v": 2})
        print(dd.from_pandas(df, npartitions=4).shuffle("k").v.sum().compute())
        import ray
        print(ray.is_initialized())
        print(dask.delayed(sum)([1, 2]).persist().compute(), ray.is_initialized())
        print(dask.delayed(sum)([1, 2]).compute(scheduler="exo"))
    """,
        TMPDIR=str(place),
    )
    place.rmdir()  # it is empty: the private Ray's directory is gone with the program
    assert done.stdout.split("\n")[:4] == ["200", "False", "3 True", "3"], done.stderr
    assert done.stderr.count("dask_exo: started a private Ray") == 1


def test_disable_undoes_enable_and_useless_keys_are_refused() -> None:
    done = run("""
        import dask, dask_exo, ray, dask_exo.errors as errors
        keys = "scheduler", "dataframe.shuffle.method"
        before = [dask.config.get(key, None) for key in keys]
        dask_exo.enable(num_cpus=1)
        assert dask.base.get_scheduler() is dask_exo.get
        try:
            dask_exo.enable(num_cpus=5)
        except errors.ConfigError as error:
            print(error)
        assert dask.base.get_scheduler() is dask_exo.get
        dask_exo.disable()
        assert not ray.is_initialized()
        assert before == [dask.config.get(key, None) for key in keys]
        with dask_exo.enable(num_cpus=1, **{"shuffle.algorithm": "push"}) as on:
            print(on)
        assert not ray.is_initialized()
        try:
            dask_exo.enable(num_cpu=1)
        except errors.ConfigError as error:
            print(error)
        assert not ray.is_initialized()
    """)
    assert done.returncode == 0, done.stderr
    assert "num_cpus" in done.stdout
    assert "<dask_exo on Ray at" in done.stdout
    assert "exo.num-cpus" in done.stdout


mounts = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode != 0,
    reason="needs the right to mount a small disk",
)


def run_on_disk(folder: Path, size: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the path of a small disk, which only its processes see."""
    mount = f'mount -t tmpfs -o size={size} tmpfs "$1" && exec "$2" -c "$3" "$1"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", str(folder), sys.executable]
    return subprocess.run(
        [*command, textwrap.dedent(code)], capture_output=True, text=True, timeout=200, check=False
    )


@mounts
def test_a_full_disk_is_an_error_that_names_the_key(tmp_path: Path) -> None:
    code = """
        import dask.dataframe as dd, numpy as np, pandas as pd, sys, dask_exo
        import dask_exo.errors as errors
        def part(i):
            return pd.DataFrame({"k": np.random.default_rng(i).integers(0, 2**40, 2_000_000)})
        with dask_exo.enable(num_cpus=2, object_store_memory="120MB", spill_directory=sys.argv[1]):
            df = dd.from_map(part, range(24), meta=part(0).iloc[:0])
            # known before it happens, and found out when it happens
            for job in (lambda: df.shuffle("k").map_partitions(len), lambda: df.persist().k):
                try:
                    print(job().sum().compute())
                except errors.SpillError as error:
                    print(type(error).__name__, error)
            print(dd.from_pandas(part(1)[:100], npartitions=2).k.count().compute())
    """
    done = run_on_disk(tmp_path, "60m", code)
    assert done.stdout.count("SpillError") == 2, done.stdout + done.stderr
    assert done.stdout.count("exo.spill-directory") == 2
    assert "must be spilled" in done.stdout
    assert "\n100\n" in done.stdout


@mounts
def test_a_disk_that_turns_read_only_is_named(tmp_path: Path) -> None:
    code = """
        import subprocess, sys, dask, dask_exo, numpy as np
        from dask_exo.errors import SpillError
        def remount(how):
            subprocess.run(["mount", "-o", f"remount,{how}", sys.argv[1]], check=True)
        def blocks():
            data = [dask.delayed(np.ones)(10**6) for _ in range(40)]
            return dask.delayed(len)(list(dask.persist(*data))).compute()
        dask_exo.enable(num_cpus=2, object_store_memory="80MB", spill_directory=sys.argv[1])
        dask.delayed(sum)([1, 2]).compute()
        remount("ro")
        try:
            blocks()
        except SpillError as error:
            print("SpillError", error)
        remount("rw")
        print("then", blocks())
    """
    done = run_on_disk(tmp_path, "900m", code)
    assert done.stdout.count("SpillError") == 1, done.stdout + done.stderr
    assert f"since '{tmp_path}" in done.stdout
    assert "then 40\n" in done.stdout
