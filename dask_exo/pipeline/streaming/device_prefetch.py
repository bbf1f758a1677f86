"""Frames leave a device at the end of a stage: while one is copied, the next one is computed."""

from __future__ import annotations

from collections.abc import Callable

from dask_exo.partitions.gpu.packed import begin
from dask_exo.partitions.gpu_frames import DeviceFrame
from dask_exo.pipeline.streaming.provenance import Frame
from dask_exo.pipeline.streaming.transforms import Frames, on_host


def staged(frames: Frames) -> Frames:
    """Frames in host memory, in their order.

    One that lies on a device is given when the next one has been made, unless it is the last.

    Parameters
    ----------
    frames : iterator of Frame
    """
    coming: Callable[[], Frame] | None = None
    for frame in frames:
        following = _begin(frame)
        if coming is not None:
            yield coming()
        coming = following
        if frame.last or not isinstance(frame.data, DeviceFrame):
            yield coming()
            coming = None
    if coming is not None:
        yield coming()


def _begin(frame: Frame) -> Callable[[], Frame]:
    """Begin to copy a frame."""
    if not isinstance(frame.data, DeviceFrame):
        return lambda: frame._replace(data=on_host(frame.data))
    packed = begin(frame.data)
    return lambda: frame._replace(data=packed().frame("numpy").to_pandas())
