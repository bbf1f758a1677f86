"""Demand: how many tasks all programs of a cluster want to run at a time, for Ray's autoscaler.

The autoscaler knows only the last request, of any program, and keeps to it after that program has
died. So one actor on the head node adds up what all programs want, forgets dead ones, and asks the
autoscaler. It ends when no program wants anything.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from typing import Any

import ray
import ray.exceptions
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray.autoscaler.sdk import request_resources
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ray.core.generated.autoscaler_pb2 import (  # type: ignore[attr-defined]  # created at import
    GetClusterStatusReply,
)
from ray.experimental import internal_kv

from dask_exo.cluster.on_ray.services import on_head
from dask_exo.cluster.on_ray.tasks import ended_programs
from dask_exo.cluster.on_ray.translation import check_connection, translated
from dask_exo.cluster.resources import Amounts, Wants

CHECK = 5.0  # seconds between two looks for dead programs
UNUSED = 30.0  # seconds without demand after which the actor ends
MOST = 10_000  # tasks at a time that the autoscaler is asked for
ANSWER = 20.0  # seconds in which the actor must answer
_PLACE = "dask_exo-demand"  # namespace of the actor


class DemandKeeper:
    """Sum of what programs want: by job, then by computation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wants: dict[str, dict[str, Wants]] = {}
        self._asked: list[dict[str, float]] = []
        self._last = time.monotonic()
        threading.Thread(target=self._watch, name="dask_exo-demand", daemon=True).start()

    def ask(self, job: str, who: str, wants: Wants) -> None:
        """Replace what a computation of a job wants; empty ``wants`` take it back."""
        with self._lock:
            of_job = self._wants.setdefault(job, {})
            of_job.pop(who, None)
            if wants:
                of_job[who] = wants
            if not of_job:
                del self._wants[job]
            self._request()

    def _request(self) -> None:
        total = Counter[Amounts]()
        for of_job in self._wants.values():
            for wants in of_job.values():
                total.update(wants)
        asked = [dict(amounts) for amounts, count in total.items() for _ in range(count)][:MOST]
        if asked != self._asked:
            request_resources(bundles=asked)
            self._asked = asked
        if asked:
            self._last = time.monotonic()

    def _watch(self) -> None:
        while True:
            time.sleep(CHECK)
            with self._lock, contextlib.suppress(Exception):  # Ray does not answer: the next may
                for job in ended_programs() & self._wants.keys():
                    del self._wants[job]
                self._request()
                if time.monotonic() - self._last > UNUSED:
                    ray.get_runtime_context().current_actor.__ray_terminate__.remote()


_remote_keeper: Any = ray.remote(DemandKeeper)


def ask(who: str, wants: Wants) -> bool:
    """Tell the autoscaler what a computation wants; return whether it may add nodes for it."""
    check_connection()
    if not scales():
        return False
    options = on_head(_PLACE, _PLACE)
    job = ray.get_runtime_context().get_job_id()
    for attempt in range(2):
        keeper = _remote_keeper.options(**options, get_if_exists=True).remote()
        try:
            with translated():
                ray.get(keeper.ask.remote(job, who, dict(wants)), timeout=ANSWER)
            break
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            if attempt:  # it has just ended; a third one would, too
                return False
    refused = _refused() if wants else []
    return not any(dict(amounts) in refused for amounts in wants)


def scales() -> bool:
    """Return whether an autoscaler that can start nodes serves the cluster."""
    if is_autoscaler_v2():
        return True
    status = internal_kv._internal_kv_get(DEBUG_AUTOSCALING_STATUS)
    if not status:
        return False
    report = json.loads(status).get("autoscaler_report") or {}
    # one that cannot start nodes names each node's type after the node
    return any(not kind.startswith("node_") for kind in report.get("active_nodes") or {})


def _refused() -> list[dict[str, float]]:
    """Return the requests for which the autoscaler has reported that no type of node has enough."""
    if not is_autoscaler_v2():
        return []
    client: Any = internal_kv.internal_kv_get_gcs_client()
    reply = GetClusterStatusReply()
    reply.ParseFromString(client.get_cluster_status(timeout_s=ANSWER))
    return [
        dict(request.request.resources_bundle)
        for constraint in reply.autoscaling_state.infeasible_cluster_resource_constraints
        for request in constraint.resource_requests
    ]
