"""What Dask's dataframes can do with dask_exo that they cannot do otherwise: ``ddf.exo``."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import dask.dataframe as dd
from dask.dataframe.extensions import register_dataframe_accessor, register_series_accessor
from dask.utils import M, parse_bytes

from dask_exo import arguments
from dask_exo.dask_adapter import new_collection
from dask_exo.epochs import Epochs, How, epochs
from dask_exo.errors import SortArgumentError
from dask_exo.graph.merge_rows import SpreadMerge
from dask_exo.graph.shuffle_rows import ShuffleRows
from dask_exo.graph.sort_rows import SortRows
from dask_exo.online import OnlineGroupBy
from dask_exo.pipeline import Pipeline

_VALUES = "values"


class _Accessor:
    """A namespace that says what is in it."""

    def __repr__(self) -> str:
        methods = [
            f"  {name}{_bare(getattr(type(self), name))}"
            for name in sorted(vars(type(self)))
            if not name.startswith("_")
        ]
        return "\n".join([f"{type(self).__name__} of dask_exo:", *methods])


class FrameAccessor(_Accessor):
    """Methods of a Dask DataFrame under ``.exo``.

    Registered by ``import dask_exo``. It hides a column "exo", which ``ddf["exo"]`` still gets.

    Parameters
    ----------
    frame : dask.dataframe.DataFrame
    """

    def __init__(self, frame: dd.DataFrame) -> None:
        self._frame = frame

    def sort_values(
        self,
        by: Any,
        *,
        ascending: bool | Sequence[bool] = True,
        na_position: str = "last",
        npartitions: int | str | None = None,
        ignore_index: bool = False,
        key: None = None,
    ) -> dd.DataFrame:
        """Sort rows over all partitions, stably, in one pass over the input.

        Gives what `pandas.DataFrame.sort_values` with ``kind="stable"`` gives for the
        concatenated frame, row by row and with its index. Nothing is computed on the call.

        Parameters
        ----------
        by : label or list of labels
            Columns, or the name of the index; the first is the most significant.
        ascending : bool or list of bool
            One for all, or one for each.
        na_position : {"last", "first"}
            Where nulls come, whatever the direction.
        npartitions : int, optional
            Number of output partitions. By default, and with "auto", as many as there are.
        ignore_index : bool
            Whether to number the rows anew, from 0 on over all partitions.
        key : None
            Not supported: assign a column to sort by.

        Returns
        -------
        dask.dataframe.DataFrame
            Of partitions about equally long, divisions unknown. Equal keys may be in several.

        Raises
        ------
        ColumnError
            There is no such column.
        SortArgumentError
            Any other argument is not one of those above.
        SortKeyError
            When it is computed: values of a key cannot be compared with each other.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> df = pd.DataFrame({"a": [2, None, 1, 2], "b": list("xyzw")})
        >>> ddf = dd.from_pandas(df, npartitions=2)
        >>> ddf.exo.sort_values(["a", "b"], na_position="first").compute()
             a  b
        1  NaN  y
        2  1.0  z
        3  2.0  w
        0  2.0  x
        """
        names = arguments.labels(self._frame, by)
        if key is not None:
            raise SortArgumentError(
                f"key={key!r} is not supported: assign a column, ddf.assign(k=...), sort by it, "
                f"and drop it"
            )
        sort = SortRows(
            self._frame,
            names,
            arguments.directions(ascending, names),
            arguments.na_position(na_position),
            arguments.count(npartitions),
            bool(ignore_index),
        )
        return new_collection(sort)

    def set_index(
        self,
        column: Any,
        *,
        drop: bool = True,
        npartitions: Any = None,
        split_equal: bool = False,
        **options: Any,
    ) -> dd.DataFrame:
        """Make a column the index, rows sorted by it.

        Parameters
        ----------
        column : label
            Without ``split_equal``, whatever Dask's takes.
        drop : bool
            Whether the column is only in the index afterwards.
        npartitions : int, optional
            Number of output partitions.
        split_equal : bool
            Whether rows of equal index may be in several partitions. By default they may not:
            this is Dask's ``set_index``, with known divisions, which a look at all the data before
            the computation finds. With it, partitions are about equally long however often a
            value repeats, the data is read once, rows of equal index keep their order, nulls
            come last, and divisions are unknown.
        **options
            For Dask's ``set_index``.

        Returns
        -------
        dask.dataframe.DataFrame

        Raises
        ------
        ColumnError
            There is no such column.
        SortArgumentError
            ``options`` are given with ``split_equal``, or another argument is not one of these.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> ddf = dd.from_pandas(pd.DataFrame({"a": [7] * 6, "b": range(6)}), npartitions=3)
        >>> ddf.exo.set_index("a", split_equal=True).map_partitions(len).compute().tolist()
        [2, 2, 2]
        """
        if not split_equal:
            return self._frame.set_index(column, drop=drop, npartitions=npartitions, **options)
        if options:
            raise SortArgumentError(
                f"set_index with split_equal=True has no arguments {sorted(options)}: leave them "
                f"out, or split_equal"
            )
        arguments.check_columns([column], self._frame, "to sort by")
        ordered = self.sort_values([column], npartitions=npartitions)
        meta = self._frame._meta.set_index(column, drop=drop)
        return ordered.map_partitions(M.set_index, column, drop=drop, meta=meta)

    def merge(  # noqa: PLR0913  as Dask has them
        self,
        right: Any,
        how: str = "inner",
        on: Any = None,
        *,
        left_on: Any = None,
        right_on: Any = None,
        suffixes: tuple[str, str] = ("_x", "_y"),
        indicator: bool = False,
        npartitions: int | None = None,
    ) -> dd.DataFrame:
        """Join on columns, so that a frequent key makes no partition larger than the others.

        Gives the rows of Dask's ``merge``, with which it shares everything else. That puts all rows
        of a key into one partition, as later steps may count on; this one spreads the rows of
        a frequent key over several, and copies those that it has on the other side to each of them.

        Rows of the left side can be spread in inner, left and leftsemi joins, those of the right
        side in inner and right joins, and none in outer joins, where each row must be known to have
        no partner anywhere.

        Parameters
        ----------
        right : dask.dataframe.DataFrame or pandas.DataFrame
        how : {"inner", "left", "right", "outer", "leftsemi"}
        on, left_on, right_on : label or list of labels
            Columns.
        suffixes, indicator
            As of `pandas.DataFrame.merge`.
        npartitions : int, optional
            Number of output partitions; by default as many as the side with more of them has.

        Returns
        -------
        dask.dataframe.DataFrame
            Divisions unknown. Equal keys may be in several partitions.

        Raises
        ------
        ColumnError
            There is no such column.
        MergeArgumentError
            No columns are given, or there is none that both sides have.

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
        keys = arguments.join_keys(self._frame, right, on, left_on, right_on)
        merged = self._frame.merge(
            right,
            how=how,
            left_on=keys[0],
            right_on=keys[1],
            suffixes=suffixes,
            indicator=indicator,
            npartitions=npartitions,
        )
        return new_collection(SpreadMerge(*merged.expr.operands))

    def random_shuffle(
        self, *, seed: int = 0, window: int | None = None, npartitions: int | None = None
    ) -> dd.DataFrame:
        """Put rows in random order, over all partitions or within windows of them.

        Every row keeps its index. The order depends on the seed and on how the input is cut into
        partitions, on nothing else.

        Parameters
        ----------
        seed : int
            From 0.
        window : int, optional
            Neighbouring partitions within which rows are moved. By default all: a full shuffle.
            With windows the first rows are there as soon as one window has been read, at the
            price that rows which are far apart stay so.
        npartitions : int, optional
            Number of output partitions; by default as many as there are. Each window has its
            share of them, at least one.

        Returns
        -------
        dask.dataframe.DataFrame
            Of partitions about equally long, divisions unknown.

        Raises
        ------
        ShuffleArgumentError
            An argument is not one of those above.

        Examples
        --------
        >>> import pandas as pd
        >>> import dask_exo
        >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(6)}), npartitions=3)
        >>> sorted(ddf.exo.random_shuffle(seed=1).a.compute())
        [0, 1, 2, 3, 4, 5]
        >>> sorted(ddf.exo.random_shuffle(seed=1, window=1).partitions[2].a.compute())
        [4, 5]
        """
        arguments.number_from(0, "seed", seed)
        if window is not None:
            arguments.number_from(1, "window", window)
        if npartitions is not None:
            arguments.number_from(1, "npartitions", npartitions)
        if window is None or window >= self._frame.npartitions:
            return new_collection(ShuffleRows(self._frame, (int(seed),), npartitions))
        pieces = npartitions or self._frame.npartitions
        windows = []
        for a in range(0, self._frame.npartitions, window):
            part = self._frame.partitions[a : a + window]
            share = max(1, round(pieces * part.npartitions / self._frame.npartitions))
            windows.append(new_collection(ShuffleRows(part, (int(seed), a), share)))
        return dd.concat(windows, interleave_partitions=False)

    def to_gpu(self) -> dd.DataFrame:
        """Copy every partition to the memory of a GPU; see ``docs/gpu.md``.

        Returns
        -------
        dask.dataframe.DataFrame
            Of the backend "exo-cupy", as ``to_backend("exo-cupy")`` gives it.

        Raises
        ------
        DeviceError
            There is no GPU, and ``exo.gpu.simulate`` is not set.
        DeviceTypeError
            A column cannot lie on a device.

        Examples
        --------
        >>> import dask
        >>> import pandas as pd
        >>> import dask_exo
        >>> ddf = dd.from_pandas(pd.DataFrame({"a": [3, 1, 2]}), npartitions=2)
        >>> with dask.config.set({"exo.gpu.simulate": True}):
        ...     ddf.exo.to_gpu().nlargest(2, "a").exo.to_pandas().compute().a.tolist()
        [3, 2]
        """
        return self._frame.to_backend("exo-cupy")

    def to_pandas(self) -> dd.DataFrame:
        """Copy every partition to host memory, if it is on a GPU."""
        return self._frame.to_backend("pandas")

    def groupby(self, by: Any) -> OnlineGroupBy:
        """Group rows, to aggregate them online.

        Parameters
        ----------
        by : label or list of labels
            Columns.

        Returns
        -------
        OnlineGroupBy
            Its ``agg_online`` yields estimates while it runs, and ends with the exact result.

        Raises
        ------
        ColumnError
            There is no such column.
        """
        return OnlineGroupBy(self._frame, by)

    def pipeline(
        self, *, memory: int | str | None = None, target: int | str | None = None
    ) -> Pipeline:
        """Begin a pipeline of stages that ask for different things, such as CPUs and GPUs.

        Parameters
        ----------
        memory : int or str, optional
            Bytes of partitions that there may be between stages; by default
            ``exo.stream.memory-fraction`` of the object store.
        target : int or str, optional
            Bytes of a partition between stages; by default ``exo.stream.target-partition-size``,
            or an eighth of ``memory`` if that is less.

        Returns
        -------
        Pipeline
        """
        sizes = [None if size is None else parse_bytes(size) for size in (memory, target)]
        return Pipeline(self._frame, memory=sizes[0], target=sizes[1])

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
        """Batches to train on, epoch after epoch, each epoch in a random order of its own.

        While one epoch is consumed, the next one is shuffled in the background. Shuffled
        partitions are half as long as those of the frame; a consumer holds one and fetches the
        next one meanwhile. The shuffled rows of two epochs are in the object store, or spilled.

        With ``split`` each consumer gets neighbouring rows of the shuffled epoch, so that which
        rows does not depend on who is slower, and all get the same number of batches. No consumer
        waits for another one: one that is more than an epoch behind has its epochs shuffled anew.
        Consumers that are tasks of Ray keep slots from the shuffle, unless they ask for none
        (``num_cpus=0``).

        Parameters
        ----------
        count : int
            Epochs.
        batch_size : int
            Rows.
        seed : int
            Decides the order of all epochs.
        window : int, optional
            See `random_shuffle`.
        format : {"pandas", "numpy", "torch"}
            What a batch is: a frame, or a dict of arrays or tensors by column.
        drop_last : bool
            Whether a last batch of an epoch with fewer rows is left out: with ``split`` all
            batches are full, and fewer than ``split * batch_size`` rows are left over. Without
            it, fewer than ``split`` rows are, and only where they would be batches of one row.
            Rows are never given twice.
        split : int, optional
            Number of consumers: threads of this process, or processes of the same Ray program.

        Returns
        -------
        Epochs, or with ``split`` a list of them
            An iterator. Its ``epoch`` says which epoch the last batch belongs to; ``state_dict()``
            and ``load_state_dict(state)`` go on exactly where another one stopped. It can be
            pickled for another process.

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
        how = How(count, batch_size, seed, window, drop_last, consumers)
        consumed = epochs(self._frame, how, format)
        return consumed[0] if split is None else consumed


class SeriesAccessor(_Accessor):
    """Methods of a Dask Series under ``.exo``.

    Parameters
    ----------
    series : dask.dataframe.Series
    """

    def __init__(self, series: dd.Series) -> None:
        self._series = series

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
        frame = self._series.to_frame(name=_VALUES)
        ordered = FrameAccessor(frame).sort_values(
            [_VALUES],
            ascending=ascending,
            na_position=na_position,
            npartitions=npartitions,
            ignore_index=ignore_index,
            key=key,
        )
        meta = ordered._meta[_VALUES].rename(self._series.name)
        return ordered[_VALUES].map_partitions(M.rename, self._series.name, meta=meta)

    def to_gpu(self) -> dd.Series:
        """Copy every partition to the memory of a GPU; see `FrameAccessor.to_gpu`."""
        return self._series.to_backend("exo-cupy")

    def to_pandas(self) -> dd.Series:
        """Copy every partition to host memory, if it is on a GPU."""
        return self._series.to_backend("pandas")


def register_accessors() -> None:
    """Give Dask's DataFrame and Series their ``exo``."""
    for register, accessor in (
        (register_dataframe_accessor, FrameAccessor),
        (register_series_accessor, SeriesAccessor),
    ):
        register("exo")(accessor)


def _bare(method: Any) -> inspect.Signature:
    """The signature without types and self."""
    parameters = list(inspect.signature(method).parameters.values())[1:]
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
    return inspect.Signature(bare)
