"""Workers of a program that was started in the background of a shell can be interrupted."""

from __future__ import annotations

import signal

from dask_exo.cluster.on_ray import futures


def test_a_worker_that_ignored_interrupts_is_reset() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as the shell does
    try:
        futures._listen.__wrapped__()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        mine = lambda *_: None  # noqa: E731
        signal.signal(signal.SIGINT, mine)
        futures._listen.__wrapped__()
        assert signal.getsignal(signal.SIGINT) is mine
    finally:
        signal.signal(signal.SIGINT, before)
