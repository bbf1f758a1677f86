"""Messages about workers that have died."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from ray.exceptions import ObjectLostError, OwnerDiedError

from dask_exo.cluster.on_ray import translation
from dask_exo.cluster.on_ray.translation import ended
from dask_exo.errors import OwnerUnreachableError, ValueLostError


@pytest.mark.parametrize(
    ("text", "oom", "how"),
    [
        ("Worker exits with an exit code 5.", False, "with exit code 5 on n: call"),
        (
            "exit code 1. The process receives a SIGTERM.",
            False,
            "with SIGTERM on n: call",
        ),
        ("Socket closed\n*** SIGSEGV received at time=17", True, "with SIGSEGV on n: call"),
        ("Socket closed", False, "with no message, as after SIGKILL or os._exit, on n: call"),
        ("Socket closed", True, "with SIGKILL on n, as memory ran out: make smaller"),
        ("exit type: NODE_OUT_OF_MEMORY", False, "with SIGKILL on n, as memory ran out: make"),
    ],
)
def test_the_end_of_a_worker_is_told(text: str, *, oom: bool, how: str) -> None:
    assert ended(text, " on n", oom=oom).startswith(how)


def lost(kind: type, owner: str) -> Exception:
    """A value that Ray takes for lost with its owner."""

    def init(self: Exception) -> None:
        Exception.__init__(self, f"Failed to retrieve it.\nOwner worker ID: {owner}, owner node")

    return type("Lost", (kind,), {"__init__": init, "__str__": Exception.__str__})()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (lost(OwnerDiedError, "01ff"), OwnerUnreachableError),  # this program, which is alive
        (lost(OwnerDiedError, "02ff"), ValueLostError),
        (lost(ObjectLostError, "01ff"), ValueLostError),
    ],
)
def test_a_program_that_lives_is_not_dead(error, expected, monkeypatch) -> None:
    mine = SimpleNamespace(get_worker_id=lambda: "01ff")
    monkeypatch.setattr(translation.ray, "get_runtime_context", lambda: mine)
    monkeypatch.setattr(translation, "check_connection", lambda: None)
    with pytest.raises(ValueLostError) as caught, translation.translated():
        raise error
    assert type(caught.value) is expected
