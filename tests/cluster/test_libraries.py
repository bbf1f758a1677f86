"""Libraries that use Dask, unchanged, against what they compute without it or on one thread."""

from __future__ import annotations

import doctest
import runpy
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore"),  # of the libraries
]

EXAMPLES = Path(__file__).parents[2] / "examples"
XARRAY = [
    "climatology",
    "anomaly",
    "weekly",
    "smooth",
    "hot days",
    "extremes",
    "zonal",
    "magnitude",
]


def example(name: str) -> dict[str, Any]:
    """The functions of an example."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


@pytest.mark.parametrize("name", XARRAY)
def test_xarray_gives_what_it_gives_without_dask(name: str) -> None:
    xr = pytest.importorskip("xarray")
    functions = example("xarray_dask")
    ds = functions["weather"](90)
    lazy = functions["analysis"](ds.chunk({"time": 20, "lat": 9}))[name]
    assert lazy.chunks
    xr.testing.assert_allclose(lazy.compute(), functions["analysis"](ds)[name])


def test_the_example_tries_all_of_that() -> None:
    pytest.importorskip("xarray")
    functions = example("xarray_dask")
    assert set(functions["analysis"](functions["weather"](90))) == set(XARRAY)


def test_xarray_persists_and_regroups() -> None:
    xr = pytest.importorskip("xarray")
    ds = example("xarray_dask")["weather"](90)
    kept = ds.chunk({"time": 20}).persist()
    xr.testing.assert_allclose(kept.mean("time").compute(), ds.mean("time"))
    groups = kept.groupby("time.dayofweek").shuffle_to_chunks().sortby("time")
    xr.testing.assert_equal(groups.drop_vars("dayofweek", errors="ignore").compute(), ds)


@pytest.mark.parametrize("name", ["clusters", "regressions", "search"])
def test_dask_ml_gives_what_it_gives_on_one_thread(name: str) -> None:
    pytest.importorskip("dask_ml")
    compute = example("machine_learning")[name]
    got = compute()
    with dask.config.set(scheduler="sync"):
        np.testing.assert_allclose(got, compute(), rtol=1e-6)


class Recorder(doctest.DocTestRunner):
    """Runs the examples of a docstring, and remembers what they print."""

    def __init__(self) -> None:
        super().__init__()
        self.printed: list[str] = []

    def report_start(self, out: Any, test: Any, example: Any) -> None:
        """Say nothing."""

    def report_success(self, out: Any, test: Any, example: Any, got: str) -> None:
        self.printed.append(got)

    report_failure = report_success

    def report_unexpected_exception(self, out: Any, test: Any, example: Any, exc_info: Any) -> None:
        self.printed.append(repr(exc_info[1]))


def documented(module: str, name: str) -> list[str]:
    """What the examples in the docstring of a library's object print."""
    thing = getattr(pytest.importorskip(module), name)
    (test,) = doctest.DocTestFinder(recurse=False).find(thing, name)
    recorder = Recorder()
    recorder.run(test, out=lambda text: None)
    assert any(recorder.printed)
    return recorder.printed


DOCSTRINGS = [
    ("xarray", "map_blocks"),
    ("xarray", "apply_ufunc"),
    ("dask_ml.wrappers", "ParallelPostFit"),
    ("dask_ml.model_selection", "train_test_split"),
    ("dask_ml.model_selection", "GridSearchCV"),
    ("dask_ml.preprocessing", "StandardScaler"),
    ("dask_ml.preprocessing", "Categorizer"),
    ("dask_ml.preprocessing", "DummyEncoder"),
    ("dask_ml.preprocessing", "OrdinalEncoder"),
    ("dask_ml.preprocessing", "LabelEncoder"),
    ("dask_ml.decomposition", "PCA"),
    ("dask_ml.metrics", "accuracy_score"),
    ("dask_ml.ensemble", "BlockwiseVotingClassifier"),
    ("dask_ml.naive_bayes", "GaussianNB"),
]


@pytest.mark.parametrize(("module", "name"), DOCSTRINGS, ids=[name for _, name in DOCSTRINGS])
def test_an_example_of_its_own_documentation_prints_the_same(module: str, name: str) -> None:
    got = documented(module, name)
    with dask.config.set(scheduler="sync"):
        assert got == documented(module, name)


def test_dask_image_filters_as_scipy_does() -> None:
    filters = pytest.importorskip("dask_image.ndfilters")
    ndimage = pytest.importorskip("scipy.ndimage")
    image = np.random.default_rng(0).random((200, 200))
    got = filters.gaussian_filter(da.from_array(image, chunks=50), 2).compute()
    np.testing.assert_allclose(got, ndimage.gaussian_filter(image, 2))


def test_dask_image_finds_the_same_regions_as_scipy() -> None:
    measure = pytest.importorskip("dask_image.ndmeasure")
    ndimage = pytest.importorskip("scipy.ndimage")
    spots = np.random.default_rng(0).random((200, 200)) > 0.6
    got = measure.label(da.from_array(spots, chunks=50))[0].compute()
    expected, regions = ndimage.label(spots)
    pairs = np.unique(np.stack([got.ravel(), expected.ravel()]), axis=1)
    assert pairs.shape[1] == regions + 1  # one name for each, and the background
    assert len(set(pairs[0])) == len(set(pairs[1])) == regions + 1
