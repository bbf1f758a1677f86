"""A private Ray is its user's own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import ray
from packaging.version import parse as version

from dask_exo.cluster.on_ray import RayFutures
from tests._data import run_python

pytestmark = [pytest.mark.cluster]

KNOCK = """
import sys
from ray._raylet import GcsClient
try:
    print(GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, 5))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.skipif(version(ray.__version__) < version("2.60"), reason="tokens are not the default")
@pytest.mark.skipif(os.environ.get("RAY_AUTH_MODE") == "disabled", reason="tokens are off")
@pytest.mark.parametrize(
    "sent", [{"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "f" * 64}]
)
def test_without_its_token_nobody_is_let_in(cluster, sent) -> None:
    address = ray.get_runtime_context().gcs_address
    done = run_python("-c", KNOCK, address, **sent)
    assert done.stdout.strip() == "AuthenticationError", done.stdout + done.stderr


def test_what_it_spills_can_be_read_by_its_user_only(cluster) -> None:
    (disk,) = RayFutures().disks()
    assert stat.S_IMODE(Path(disk.path).stat().st_mode) == 0o700
