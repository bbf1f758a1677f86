"""Examples beside other libraries run as a user would run them, where the library is installed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests._data import run_python

INTEGRATIONS = Path(__file__).parents[2] / "examples" / "integrations"
NEEDS = {
    "delta_lake": "deltalake",
    "gradient_boosting": "xgboost",
    "hugging_face": "datasets",
    "iceberg": "pyiceberg",
    "mlflow_report": "mlflow",
    "open_telemetry": "opentelemetry.sdk",
    "prefect_flow": "prefect",
    "torch_loader": "torch",
    "torch_model": "torch",
}


@pytest.mark.cluster
@pytest.mark.parametrize("name", NEEDS)
def test_an_integration_runs(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS[name])
    done = run_python(INTEGRATIONS / f"{name}.py", PREFECT_HOME=str(tmp_path), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_each_is_short_and_tried() -> None:
    programs = [path for path in INTEGRATIONS.glob("*.py") if path.stem != "__init__"]
    assert {path.stem for path in programs} == set(NEEDS)
    assert all(len(path.read_text(encoding="utf-8").splitlines()) <= 60 for path in programs)


def test_the_dashboard_asks_for_what_is_exported() -> None:
    dashboard = json.loads((INTEGRATIONS / "grafana.json").read_text(encoding="utf-8"))
    asked = {
        name
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for name in re.findall(r"ray_(dask_exo_\w+)", target["expr"])
    }
    page = Path(__file__).parents[2] / "docs" / "report.md"
    assert asked
    assert asked <= set(re.findall(r"`(dask_exo_\w+)`", page.read_text(encoding="utf-8")))
