"""Messages about workers that have died."""

from __future__ import annotations

import pytest

from dask_exo.cluster.on_ray.translation import ended


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
