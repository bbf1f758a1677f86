"""What Dask's dataframes can do with dask_exo that they cannot do otherwise: ``ddf.exo``."""

from __future__ import annotations

from typing import Any

import dask.dataframe as dd
from dask.dataframe.extensions import register_dataframe_accessor, register_series_accessor
from dask.utils import M

from dask_exo.accessors.base import Accessor
from dask_exo.accessors.grouping import Grouping
from dask_exo.accessors.joining import Joining
from dask_exo.accessors.ordering import Ordering
from dask_exo.epochs import Epochs, How, epochs
from dask_exo.pipeline import Pipeline, of

_VALUES = "values"


class FrameAccessor(Ordering, Joining, Grouping):
    """Methods of a Dask DataFrame under ``.exo``.

    Registered by ``import dask_exo``. It hides a column "exo", which ``ddf["exo"]`` still gets.

    Parameters
    ----------
    frame : dask.dataframe.DataFrame
    """

    def pipeline(self, **options: Any) -> Pipeline:
        """Begin a pipeline of stages that ask for different things, such as CPUs and GPUs.

        Parameters
        ----------
        **options
            Those of `dask_exo.pipeline.of`: ``memory``, ``target``, ``retries`` and ``on_error``.

        Returns
        -------
        Pipeline
        """
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


class SeriesAccessor(Accessor):
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


def register_accessors() -> None:
    """Give Dask's DataFrame and Series their ``exo``."""
    for register, accessor in (
        (register_dataframe_accessor, FrameAccessor),
        (register_series_accessor, SeriesAccessor),
    ):
        register("exo")(accessor)
