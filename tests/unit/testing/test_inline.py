import copy
import gc
import threading

import dask
import pytest

from dask_exo import Scheduler
from dask_exo.cluster.futures import Node
from dask_exo.cluster.waiting import drive
from dask_exo.testing import InlineFutures


def fail(*args):
    raise KeyError("lost")


def test_refs_in_arguments_are_replaced_but_not_nested_ones():
    f = InlineFutures()
    two = f.put(2)
    assert f.get([f.submit(pow, two, 5), f.submit(lambda pair: pair[0] is two, (two, 1))]) == [
        32,
        True,
    ]


def test_a_call_runs_before_its_submission_returns():
    f = InlineFutures()
    seen = []
    f.submit(seen.append, 1)
    assert seen == [1]


def test_calls_objects_and_live_values_are_counted():
    f = InlineFutures()
    one = f.put(1)
    many = f.split(3, lambda x: [x] * 3, one)
    more = f.stream(2, lambda: iter("ab"))
    assert (f.calls, f.objects, f.live) == (2, 6, 6)
    del many[0], more
    assert f.live == 3
    del one
    assert f.live == 2


def test_dropping_a_ref_frees_its_value():
    class Big:
        freed = 0

        def __del__(self):
            Big.freed += 1

    f = InlineFutures()
    ref = f.submit(Big)
    assert Big.freed == 0
    del ref
    assert Big.freed == 1


def test_dependents_of_a_failed_call_get_its_exception():
    f = InlineFutures()
    bad = f.submit(fail)
    first, second = f.split(2, lambda x: (x, x), bad)
    (third,) = f.stream(1, lambda x: iter([x]), second)
    errors = []
    for ref in (bad, first, third):
        with pytest.raises(KeyError, match="lost") as caught:
            f.get([ref])
        errors.append(caught.value)
    assert errors[0] is errors[1] is errors[2]
    del bad, first, second, third, errors, caught, ref
    gc.collect()
    assert f.live == 0


def test_get_raises_the_first_failure_in_order():
    f = InlineFutures()
    with pytest.raises(ZeroDivisionError):
        f.get([f.put(1), f.submit(divmod, 1, 0), f.submit(fail)])


def test_values_yielded_before_a_failure_exist():
    def halfway():
        yield 1
        raise KeyError("lost")

    f = InlineFutures()
    first, second = f.stream(2, halfway)
    assert f.get([first]) == [1]
    with pytest.raises(KeyError):
        f.get([second])


@pytest.mark.parametrize("kind", ["split", "stream"])
@pytest.mark.parametrize("made", [0, 1, 3])
def test_another_number_of_values_is_an_error(kind, made):
    f = InlineFutures()
    refs = getattr(f, kind)(2, lambda: iter(range(made)))
    with pytest.raises(ValueError, match=r"count=2"):
        f.get(refs)


@pytest.mark.parametrize("kind", ["split", "stream"])
def test_no_values_are_a_number_of_values(kind):
    f = InlineFutures()
    seen = []
    assert getattr(f, kind)(0, lambda: iter(seen.append(1) or [])) == []
    assert seen == [1]


def test_everything_is_finished_at_once():
    f = InlineFutures()
    refs = [f.put(1), f.submit(fail)]
    assert f.wait(refs, timeout=0) == (refs, [])
    f.cancel(refs)
    assert f.get(refs[:1]) == [1]


def test_nodes_are_those_given_and_others_are_refused():
    nodes = [Node("a", 2, 10), Node("b", 1, 10)]
    f = InlineFutures(nodes)
    assert f.nodes() == nodes
    assert f.get([f.submit(abs, -1, node="b")]) == [1]
    with pytest.raises(ValueError, match="'c'"):
        f.submit(abs, -1, node="c")


def test_a_coroutine_is_driven_to_its_end():
    f = InlineFutures()

    def steps():
        refs = [f.submit(abs, -i) for i in range(3)]
        yield refs
        return f.get(refs)

    assert drive(f, steps()) == [0, 1, 2]


begun, may_end = threading.Event(), threading.Event()


def wait_inside() -> int:
    begun.set()
    may_end.wait(30)
    return 1


def test_tasks_of_a_background_thread_leave_settings_alone() -> None:
    before, exo = copy.deepcopy(dask.config.get("exo")), Scheduler(InlineFutures())
    with dask.config.set({"exo.shuffle.algorithm": "push"}):
        (persisted,) = dask.persist(dask.delayed(wait_inside)(), scheduler=exo)
        assert begun.wait(30)
    may_end.set()
    assert persisted.compute(scheduler=exo) == 1
    assert dask.config.get("exo") == before
