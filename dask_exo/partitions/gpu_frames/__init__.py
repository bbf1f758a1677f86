"""Partitions in the memory of a device: frames of cupy's arrays, or of numpy's in their place."""

from dask_exo.partitions.gpu.dispatch import register, to_device
from dask_exo.partitions.gpu_frames.concat import concat
from dask_exo.partitions.gpu_frames.frame import DeviceFrame
from dask_exo.partitions.gpu_frames.index import DeviceIndex
from dask_exo.partitions.gpu_frames.series import DeviceSeries

__all__ = ["DeviceFrame", "DeviceIndex", "DeviceSeries", "concat", "to_device"]

register()
