"""Shares of a cluster for programs that compute at the same time.

Ray gives a worker back only when its program has no further task for it. A program that always has
some would keep the others waiting, so each one submits no more tasks than its share of the slots.
The key-value store of the cluster has the weight of each program that computes.
"""

from __future__ import annotations

import threading

import ray
from ray.experimental import internal_kv

from dask_exo.cluster.on_ray.tasks import entries, forget_ended
from dask_exo.cluster.on_ray.translation import check_connection

_PLACE = "dask_exo-shares"  # namespace in the key-value store that every Ray cluster has

_lock = threading.Lock()
_weights: dict[str, float] = {}  # of the computations of this process
_put: dict[str, float] = {}  # key of this process → the weight that it has in the store


def share(who: str, weight: float) -> float:
    """Return the part of the cluster that a computation may use; a weight of 0 ends it."""
    check_connection()
    context = ray.get_runtime_context()
    if context.worker.mode == ray.WORKER_MODE:
        return 1.0  # a task that computes is a part of its program
    key = f"{context.get_job_id()} {context.get_worker_id()}"
    with _lock:
        _weights.pop(who, None)
        if weight:
            _weights[who] = weight
        own = max(_weights.values(), default=0.0)
        _publish(key, own)
        if not own:
            return 1.0
        others = _others(key)
        return own / (own + sum(others)) / len(_weights)


def _publish(key: str, weight: float) -> None:
    if _put.get(key, 0.0) == weight:
        return
    if weight:
        internal_kv._internal_kv_put(key, repr(weight), overwrite=True, namespace=_PLACE)
    else:
        internal_kv._internal_kv_del(key, namespace=_PLACE)
    _put.clear()
    _put[key] = weight


def _others(own: str) -> list[float]:
    """Return the weights of other programs; remove those of dead ones."""
    if not any(key != own for key in entries(_PLACE)):
        return []
    forget_ended(_PLACE)
    others = (key for key in entries(_PLACE) if key != own)
    texts = (internal_kv._internal_kv_get(key, namespace=_PLACE) for key in others)
    return [float(text) for text in texts if text]  # one may have ended just now
