"""Run programs of other libraries with `dask_exo.Client`: scikit-learn on joblib, and LightGBM.

Their own examples, with another import of the client. ``pip install joblib scikit-learn lightgbm``.
"""

import dask.array as da
import joblib
import lightgbm
import numpy as np
from sklearn.datasets import load_digits, make_blobs
from sklearn.model_selection import GridSearchCV
from sklearn.svm import SVC

from dask_exo.client import Client


def grid_search() -> None:
    """https://joblib.readthedocs.io/en/stable/auto_examples/parallel/distributed_backend_simple"""
    digits = load_digits()
    data = digits.data[:600], digits.target[:600]
    grid = {"C": np.logspace(-2, 2, 3), "gamma": [1e-3, 1e-2]}
    search, alone = GridSearchCV(SVC(), grid, cv=2), GridSearchCV(SVC(), grid, cv=2)
    with joblib.parallel_config(backend="dask"):
        search.fit(*data)
    alone.fit(*data)
    assert (search.best_params_, search.best_score_) == (alone.best_params_, alone.best_score_)
    print("GridSearchCV:", search.best_params_)


def boosting() -> None:
    """https://github.com/microsoft/LightGBM/tree/main/examples/python-guide/dask"""
    x, y = make_blobs(n_samples=1000, n_features=50, centers=2, random_state=0)
    blocks, labels = da.from_array(x, chunks=(100, 50)), da.from_array(y, chunks=100)
    model = lightgbm.DaskLGBMClassifier(n_estimators=10).fit(blocks, labels)
    share = (model.predict(blocks).compute() == y).mean()
    assert share > 0.99
    print("DaskLGBMClassifier:", share)


if __name__ == "__main__":
    with Client(n_workers=2, threads_per_worker=1):
        grid_search()
        boosting()
