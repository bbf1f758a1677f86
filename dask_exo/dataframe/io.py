"""Outputs of a dataframe: atomic Parquet directories, and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dask.dataframe as dd

from dask_exo.dask_adapter import new_collection
from dask_exo.dataframe.base import FrameMethods
from dask_exo.planning.resume import CheckpointExpr

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa


class OutputMethods(FrameMethods):
    """Methods that store a dataframe."""

    def checkpoint(self) -> dd.DataFrame:
        """Store the partitions in ``exo.checkpoint.path``, for the next program that needs them.

        Partitions are written as they are computed. The next program with the same code and the
        same input reads them instead, even if this one fails. Without
        ``exo.checkpoint.path`` nothing happens. See ``docs/checkpoints.md``.

        Returns
        -------
        dask.dataframe.DataFrame

        Examples
        --------
        >>> import dask
        >>> import pandas as pd
        >>> import dask_exo
        >>> from dask_exo.testing import InlineFutures
        >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(4)}), npartitions=2)
        >>> kept = ddf.assign(b=ddf.a * 2).exo.checkpoint()
        >>> exo = dask_exo.Scheduler(InlineFutures())
        >>> with dask.config.set({"exo.checkpoint.path": "memory://kept", "scheduler": exo}):
        ...     kept.b.sum().compute()
        np.int64(12)
        """
        return new_collection(CheckpointExpr(self._frame))

    def to_parquet(  # noqa: PLR0913  all by name
        self,
        path: str,
        *,
        target_file_size: int | str | None = None,
        partition_on: str | Sequence[Any] = (),
        overwrite: bool = False,
        write_index: bool = True,
        compression: str = "snappy",
        schema: pa.Schema | None = None,
    ) -> pd.DataFrame:
        """Write a directory of Parquet files: all of it, each row once, or nothing.

        Partitions are staged, and committed together once all are written. A recomputed task does
        not duplicate its rows. If the computation fails, ``path`` is unchanged. With
        ``exo.checkpoint.path``, the program that follows a killed one writes the missing
        partitions only. ``docs/checkpoints.md`` says what concurrent readers see, on disks and in
        object stores.

        Parameters
        ----------
        path : str
            Of a directory to make; or a URL for fsspec.
        target_file_size : int or str, optional
            Bytes of a file, about: partitions that make larger ones are cut. Small ones are not put
            together: use ``repartition``. By default, one file for each partition.
        partition_on : label or list of labels
            Columns whose values become directories, ``column=value/``.
        overwrite : bool
            Whether to replace what is at ``path``, if it holds nothing but Parquet.
        write_index : bool
            Whether the index becomes columns of the files.
        compression : str
            Of `pyarrow.parquet.write_table`.
        schema : pyarrow.Schema, optional
            Of all files; by default what the columns of the dataframe say.

        Returns
        -------
        pandas.DataFrame
            A row for each file: file (below ``path``), rows and nbytes.

        Raises
        ------
        OutputExistsError
            ``path`` exists, and ``overwrite`` is false.
        OutputError
            It cannot be written, or an argument is not one of those above.
        ColumnError
            There is no column of ``partition_on``.

        Examples
        --------
        >>> import tempfile
        >>> import pandas as pd
        >>> import dask_exo
        >>> ddf = dd.from_pandas(pd.DataFrame({"a": range(4)}), npartitions=2)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     ddf.exo.to_parquet(f"{directory}/out").rows.tolist()
        ...     pd.read_parquet(f"{directory}/out").a.tolist()
        [2, 2]
        [0, 1, 2, 3]
        """
        from dask_exo.dataframe.to_parquet import write

        return write(
            self.to_pandas(),  # type: ignore[attr-defined]
            path,
            target_file_size=target_file_size,
            partition_on=partition_on,
            overwrite=overwrite,
            write_index=write_index,
            compression=compression,
            schema=schema,
        )
