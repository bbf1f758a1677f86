"""Where the partitions of a dataframe lie."""

from __future__ import annotations

import dask.dataframe as dd

from dask_exo.dataframe.base import OfFrame


class Placing(OfFrame):
    """Methods that copy partitions to another memory."""

    def to_gpu(self) -> dd.DataFrame:
        """Copy every partition to the memory of a GPU; see ``docs/gpu.md``.

        Tasks on such partitions run on workers with a GPU, ``exo.gpu.per-task`` of one for each.

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
