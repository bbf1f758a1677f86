"""The accessor ``.exo`` of Dask's DataFrame and Series."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import dask.dataframe as dd
import pandas as pd
from dask.dataframe.extensions import register_dataframe_accessor, register_series_accessor
from dask.utils import M

from dask_exo import validation
from dask_exo.dask_adapter import Merge, new_collection
from dask_exo.dataframe.groupby import GroupBy
from dask_exo.dataframe.publish import PublishMethods
from dask_exo.dataframe.sort import SortMethods
from dask_exo.dataframe.to_parquet import OutputMethods
from dask_exo.errors import MergeArgumentError
from dask_exo.execution.requests import options
from dask_exo.planning.skew_resistant import SpreadMerge

if TYPE_CHECKING:
    from dask_exo.pipeline import Pipeline
    from dask_exo.training import Epochs

_VALUES = "values"
_OPTIONS = frozenset(inspect.signature(options).parameters)
_OF_DASK = frozenset({*inspect.signature(dd.map_partitions).parameters, "token"})


class Accessor(PublishMethods):
    """Methods of DataFrame and Series; the repr lists all of a namespace."""

    def __init__(self, collection: Any) -> None:
        self._frame = collection

    def __repr__(self) -> str:
        methods = [
            f"  {name}{_untyped(getattr(type(self), name))}"
            for name in dir(type(self))
            if not name.startswith("_")
        ]
        return "\n".join([f"{type(self).__name__} of dask_exo:", *methods])

    def to_gpu(self) -> Any:
        """Copy every partition to the memory of a GPU, as ``to_backend("exo-cupy")`` does.

        Tasks on such partitions run on workers with a GPU, ``exo.gpu.per-task`` of one for each.
        See ``docs/gpu.md``.

        Raises
        ------
        DeviceError
            There is no GPU, and ``exo.gpu.simulate`` is not set.
        DeviceTypeError
            A column has a type that a GPU cannot store.

        Examples
        --------
        >>> import dask
        >>> import pandas as pd
        >>> import dask_exo
        >>> ddf = dd.from_pandas(pd.DataFrame({"a": [3, 1, 2]}), npartitions=2)
        >>> with dask.config.set({"exo.gpu.simulate": True}):
        ...     gpu = ddf.exo.to_gpu()
        ...     gpu[gpu.a > 1].exo.to_pandas().compute().a.tolist()
        [3, 2]
        """
        return self._frame.to_backend("exo-cupy")

    def to_pandas(self) -> Any:
        """Copy every partition to host memory, if it is on a GPU."""
        return self._frame.to_backend("pandas")


def _untyped(method: Any) -> inspect.Signature:
    """Return the signature without types and self."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    return inspect.Signature([p.replace(annotation=inspect.Parameter.empty) for p in parameters])


class FrameAccessor(Accessor, SortMethods, OutputMethods):
    """Methods of a Dask DataFrame under ``.exo``.

    ``import dask_exo`` registers it. It hides a column "exo", which ``ddf["exo"]`` still returns.
    """

    def groupby(self, by: Any) -> GroupBy:
        """Group rows by a column or a list of columns; rows with a null among them are left out.

        ``agg`` and ``quantile`` of the result are lazy and exact, and a heavy hitter does not make
        one partition larger. ``agg_online`` yields estimates while it runs, and the exact result at
        the end.

        Raises
        ------
        ColumnError
            There is no such column.
        """
        return GroupBy(self._frame, by)

    def merge(  # noqa: PLR0913  as Dask has them
        self,
        right: Any,
        how: str = "inner",
        on: Any = None,
        *,
        left_on: Any = None,
        right_on: Any = None,
        left_index: bool = False,
        right_index: bool = False,
        suffixes: tuple[str, str] = ("_x", "_y"),
        indicator: bool = False,
        npartitions: int | None = None,
    ) -> dd.DataFrame:
        """Join on columns or indexes; a heavy hitter does not make one partition larger.

        Returns the rows of `pandas.DataFrame.merge`. Dask's ``merge`` puts all rows of a key into
        one partition, and later steps may depend on that. This one spreads the rows of a heavy
        hitter over several partitions, and copies its rows on the other side to each of them.

        The side with more rows of the key is spread; in leftsemi joins, the left side. In left,
        right and outer joins each row without a partner comes out once. Nulls are keys like others.

        Parameters
        ----------
        right : dask.dataframe.DataFrame or pandas.DataFrame
        how : {"inner", "left", "right", "outer", "leftsemi"}
        on, left_on, right_on : label or list of labels
            Columns; by default all that both sides have.
        left_index, right_index : bool
            Whether the index of a side is its key.
        suffixes, indicator
            Arguments of `pandas.DataFrame.merge`.
        npartitions : int, optional
            Number of output partitions; by default that of the side with more.

        Returns
        -------
        dask.dataframe.DataFrame
            Divisions unknown. Equal keys may be in several partitions.

        Raises
        ------
        ColumnError
            There is no such column.
        MergeArgumentError
            The keys of a side are missing or ambiguous, or no column is in both.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> views = pd.DataFrame({"page": [7] * 90 + list(range(10)), "n": range(100)})
        >>> views = dd.from_pandas(views, npartitions=5)
        >>> pages = dd.from_pandas(pd.DataFrame({"page": range(10)}), npartitions=5)
        >>> int(views.merge(pages, on="page", broadcast=False).map_partitions(len).compute().max())
        91
        >>> int(views.exo.merge(pages, on="page").map_partitions(len).compute().max())
        21
        """
        if isinstance(right, pd.DataFrame):
            right = dd.from_pandas(right, npartitions=1, sort=False)
        keys = validation.join_keys(
            self._frame,
            right,
            on=on,
            left_on=left_on,
            right_on=right_on,
            left_index=left_index,
            right_index=right_index,
        )
        if how == "leftsemi" and right_index:
            raise MergeArgumentError(
                "how='leftsemi' with right_index=True: need columns of the right side; "
                "reset_index() it first"
            )
        merged = self._frame.merge(
            right, how=how, **keys, suffixes=suffixes, indicator=indicator, npartitions=npartitions
        ).expr
        if isinstance(merged, Merge):
            return new_collection(SpreadMerge(*merged.operands))
        # Dask renames the index where those of both sides have different names
        spread = new_collection(SpreadMerge(*merged.frame.operands))
        return spread.rename_axis(index=spread._meta.index.name)

    def pipeline(self, **options: Any) -> Pipeline:
        """Start a pipeline of stages with different resource requests, such as CPUs and GPUs.

        Options are those of `dask_exo.pipeline.of`: ``memory``, ``target``, ``retries`` and
        ``on_error``.
        """
        from dask_exo.pipeline import of  # few programs need it

        return of(self._frame, **options)

    def epochs(  # noqa: PLR0913  all by name
        self,
        count: int,
        batch_size: int,
        *,
        seed: int = 0,
        window: int | None = None,
        format: str = "pandas",  # noqa: A002  as everybody calls it
        drop_last: bool = False,
        split: int | None = None,
    ) -> Epochs | list[Epochs]:
        """Iterate over batches for training, each epoch in a random order of its own.

        While one epoch is consumed, the next one is shuffled in the background. Shuffled
        partitions are half as long as those of the frame; a consumer holds one and fetches the
        next one meanwhile. The object store has the shuffled rows of two epochs, or spills them;
        with ``window`` and one consumer, of some windows only.

        With ``split`` each consumer gets neighbouring rows of the shuffled epoch, so the rows do
        not depend on timing, and all get the same number of batches. No consumer waits for another:
        if one is more than an epoch behind, its epochs are shuffled again. Consumers that are tasks
        of Ray take slots from the shuffle, unless they request none (``num_cpus=0``).

        Parameters
        ----------
        count : int
            Number of epochs.
        batch_size : int
            Rows of a batch.
        seed : int
            Determines the order of all epochs.
        window : int, optional
            See `random_shuffle`.
        format : {"pandas", "numpy", "torch"}
            Type of a batch: a frame, or a dict of arrays or tensors by column.
        drop_last : bool
            Whether to leave out a last batch with fewer rows. With ``split`` all batches are then
            full, and fewer than ``split * batch_size`` rows are left over. By default fewer than
            ``split`` rows are left over, and only where they would be batches of one row. No row
            comes twice.
        split : int, optional
            Number of consumers: threads of this process, or processes of the same Ray program.

        Returns
        -------
        Epochs, or with ``split`` a list of them
            An iterator that can be pickled for another process. Its ``epoch`` is that of the last
            batch; ``state_dict()`` and ``load_state_dict(state)`` continue where another stopped.

        Raises
        ------
        ShuffleArgumentError
            An argument is not one of those above.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(5)}), npartitions=2)
        >>> [len(batch) for batch in ddf.exo.epochs(2, batch_size=2)]
        [2, 2, 1, 2, 2, 1]
        >>> first, second = ddf.exo.epochs(1, batch_size=2, split=2, drop_last=True)
        >>> [len(batch) for batch in first], [len(batch) for batch in second]
        ([2], [2])
        """
        consumers = 1 if split is None else split
        from dask_exo.training import EpochSpec, epochs  # few programs need it

        spec = EpochSpec(count, batch_size, seed, window, drop_last, consumers)
        shares = epochs(self._frame, spec, format)
        return shares[0] if split is None else shares

    def map_partitions(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function with each partition, in tasks with the requested resources.

        The same as ``ddf.map_partitions(dask_exo.options(...)(func), *args, **kwargs)``.

        Parameters
        ----------
        func : callable or class
            Each actor creates one instance of a class, with ``args`` and ``kwargs``, and calls it
            with each partition. A class needs ``meta``.
        *args
            Arguments of the function after the partition, or of the class.
        **kwargs
            ``num_cpus``, ``num_gpus``, ``resources``, ``batch_size``, ``concurrency`` and
            ``max_batch_bytes`` of `dask_exo.options`; ``meta`` and others of Dask's
            ``map_partitions``; the rest as ``args``.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(4)}), npartitions=2)
        >>> ddf.exo.map_partitions(
        ...     lambda batch, k: batch + k, 10, batch_size=1
        ... ).compute().a.tolist()
        [10, 11, 12, 13]
        """
        request = options(**{name: kwargs.pop(name) for name in _OPTIONS if name in kwargs})
        if not inspect.isclass(func):
            return self._frame.map_partitions(request(func), *args, **kwargs)
        class_options = {name: kwargs.pop(name) for name in list(kwargs) if name not in _OF_DASK}
        return self._frame.map_partitions(request(func, *args, **class_options), **kwargs)


class SeriesAccessor(Accessor):
    """Methods of a Dask Series under ``.exo``."""

    def sort_values(
        self,
        *,
        ascending: bool = True,
        na_position: str = "last",
        npartitions: int | str | None = None,
        ignore_index: bool = False,
        key: None = None,
    ) -> dd.Series:
        """Sort over all partitions; see `FrameAccessor.sort_values`.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> s = dd.from_pandas(pd.Series([2, 3, 1]), npartitions=2)
        >>> s.exo.sort_values(ascending=False).compute().tolist()
        [3, 2, 1]
        """
        frame = self._frame.to_frame(name=_VALUES)
        ordered = FrameAccessor(frame).sort_values(
            [_VALUES],
            ascending=ascending,
            na_position=na_position,
            npartitions=npartitions,
            ignore_index=ignore_index,
            key=key,
        )
        meta = ordered._meta[_VALUES].rename(self._frame.name)
        return ordered[_VALUES].map_partitions(M.rename, self._frame.name, meta=meta)


def register_accessors() -> None:
    """Register ``exo`` with Dask's DataFrame and Series."""
    register_dataframe_accessor("exo")(FrameAccessor)
    register_series_accessor("exo")(SeriesAccessor)
