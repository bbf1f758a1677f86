"""Requests to S3: how many there are, how many are repeated, and slower ones where it is throttled.

s3fs and boto3 build their clients on botocore, which calls an initializer for each session. So the
requests of user functions and of Dask's readers count, too. Arrow's own client of S3 does not use
botocore: what it does is not counted.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from functools import lru_cache
from typing import Any

RETRIED, THROTTLED = "retried", "throttled"
RETRIES = {"AWS_RETRY_MODE": "adaptive", "AWS_MAX_ATTEMPTS": "10"}
"""Variables of workers: a client that is throttled repeats its request later, and all further
requests at a lower rate, until it is not throttled any more."""

_lock = threading.Lock()
_counts = Counter[str]()  # requests by the name of their operation, and those retried or throttled


@lru_cache(1)
def count_requests() -> None:
    """Count the requests of all sessions of this process from now on."""
    with contextlib.suppress(ImportError, AttributeError):  # no botocore, or before 1.37
        import botocore

        botocore.register_initializer(_initialize)


@lru_cache(1)
def slow_down_if_throttled() -> None:
    """Let all clients of this process repeat requests, as `RETRIES` says, unless it is set."""
    for name, value in RETRIES.items():
        os.environ.setdefault(name, value)  # noqa: TID251  botocore reads it


def take_counts() -> dict[str, int]:
    """Return the requests since the last call of this function, by operation."""
    if not _counts:
        return {}
    with _lock:
        counts = dict(_counts)
        _counts.clear()
    return counts


def _initialize(session: Any) -> None:
    session.register("request-created.s3", _count_request)
    session.register("response-received.s3", _count_response)


def _count_request(request: Any, operation_name: str, **_: Any) -> None:
    """Count an attempt; its context says whether it is the first."""
    with _lock:
        _counts[operation_name] += 1
        if request.context.get("retries", {}).get("attempt", 1) > 1:
            _counts[RETRIED] += 1


def _count_response(response_dict: Any, **_: Any) -> None:
    if response_dict is not None and response_dict["status_code"] in (429, 503):
        with _lock:
            _counts[THROTTLED] += 1
