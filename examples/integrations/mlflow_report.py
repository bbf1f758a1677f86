"""Log the report of a computation to MLflow: its figures as metrics, the page as an artifact.

Needs mlflow.
"""

from __future__ import annotations

import json
import os
import tempfile

os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"

import dask.dataframe as dd
import mlflow
import pandas as pd

import dask_exo
from dask_exo.report.report import Report


def log(report: Report) -> None:
    """Log a report to the active run."""
    figures = json.loads(report.to_json())
    mlflow.log_metrics({k: float(v) for k, v in figures.items() if isinstance(v, (int, float))})
    mlflow.log_text(str(report), "report.txt")
    mlflow.log_text(report.to_html(), "report.html")


def main() -> None:
    orders = pd.DataFrame({"user": [i * 7 % 100 for i in range(1000)], "amount": range(1000)})
    with (
        tempfile.TemporaryDirectory() as folder,
        dask_exo.enable(num_cpus=2, object_store_memory="300MB"),
    ):
        mlflow.set_tracking_uri(f"sqlite:///{folder}/runs.db")
        experiment = mlflow.create_experiment("orders", artifact_location=f"{folder}/artifacts")
        with mlflow.start_run(experiment_id=experiment) as run:
            dd.from_pandas(orders, npartitions=4).shuffle("user").compute()
            log(dask_exo.last_report())
        found = mlflow.get_run(run.info.run_id).data.metrics
        assert found["tasks"] > 4
        print({name: found[name] for name in ("seconds", "tasks", "spilled")})


if __name__ == "__main__":
    main()
