"""Models of dask-ml: clusters, regressions, and a search for parameters.

Nothing in it is written for dask_exo but the line that says where to run. Needs dask-ml.
"""

from __future__ import annotations

import dask_ml.datasets
import numpy as np
from dask_ml.cluster import KMeans
from dask_ml.linear_model import LogisticRegression
from dask_ml.model_selection import GridSearchCV, train_test_split
from dask_ml.preprocessing import StandardScaler
from dask_ml.wrappers import Incremental
from sklearn.datasets import make_classification
from sklearn.linear_model import SGDClassifier
from sklearn.svm import SVC

import dask_exo


def clusters() -> np.ndarray:
    """(3, 2) centers, sorted."""
    X, _ = dask_ml.datasets.make_blobs(
        n_samples=20_000, chunks=2_000, centers=3, n_features=2, random_state=0
    )
    model = KMeans(n_clusters=3, init_max_iter=2, oversampling_factor=10, random_state=0)
    model.fit(X)
    return np.sort(model.cluster_centers_, axis=0)


def regressions() -> np.ndarray:
    """Scores of a model fitted over all blocks at once, and of one that is fed block by block."""
    X, y = dask_ml.datasets.make_classification(
        n_samples=5_000, n_features=8, chunks=500, random_state=0
    )
    X = StandardScaler().fit_transform(X)
    train, test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=1)
    whole = LogisticRegression(solver="lbfgs", max_iter=10).fit(train, y_train)
    fed = Incremental(SGDClassifier(random_state=0), scoring="accuracy", random_state=0)
    fed.fit(train, y_train, classes=[0, 1])
    return np.array([whole.score(test, y_test), fed.score(test, y_test)])


def search() -> np.ndarray:
    """(6,) mean test scores of a grid of parameters."""
    X, y = make_classification(n_samples=300, random_state=0)
    grid = {"C": [0.001, 0.1, 1.0], "kernel": ["linear", "rbf"]}
    found = GridSearchCV(SVC(gamma="auto", random_state=0), grid, cv=3).fit(X, y)
    return found.cv_results_["mean_test_score"]


def main() -> None:
    with dask_exo.enable(num_cpus=2, object_store_memory="500MB"):
        print("centers:", clusters().round(2).tolist())
        print("scores:", regressions().round(3).tolist())
        print("grid search:", search().round(3).tolist())


if __name__ == "__main__":
    main()
