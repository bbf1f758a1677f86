"""Partitions in the memory of a device: frames of cupy's arrays, or of numpy's in their place."""

from dask_exo.frame.device.concat import concat
from dask_exo.frame.device.dispatch import register, to_device
from dask_exo.frame.device.frame import DeviceFrame
from dask_exo.frame.device.index import DeviceIndex
from dask_exo.frame.device.series import DeviceSeries

__all__ = ["DeviceFrame", "DeviceIndex", "DeviceSeries", "concat", "to_device"]

register()
