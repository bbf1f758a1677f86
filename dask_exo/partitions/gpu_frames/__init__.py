"""Frames in GPU memory, on arrays of cupy, or of numpy where GPUs are simulated."""

from dask_exo.partitions.gpu.dispatch import register, to_device
from dask_exo.partitions.gpu_frames.frame import DeviceFrame
from dask_exo.partitions.gpu_frames.index import DeviceIndex
from dask_exo.partitions.gpu_frames.merge import concat
from dask_exo.partitions.gpu_frames.series import DeviceSeries

__all__ = ["DeviceFrame", "DeviceIndex", "DeviceSeries", "concat", "to_device"]

register()
