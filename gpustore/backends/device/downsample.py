"""Blocks of arrays on a device, reduced by kernels."""

from __future__ import annotations

from gpustore.backends.downsampling import Cells, Downsampling
from gpustore.device.kernels.descriptor import KernelLaunch
from gpustore.device.kernels.downsample import Blocks, can_downsample, downsample_launches
from gpustore.device.protocol import DeviceArray


def launches_of(
    source: DeviceArray | None, job: Downsampling, cells: Cells, target: DeviceArray
) -> list[KernelLaunch] | None:
    """Return the launches that reduce blocks of an array; None if no kernel does it.

    Parameters
    ----------
    source : DeviceArray or None
        Elements of all blocks, None if they are not on the device.
    job : Downsampling
    cells : Cells
    target : DeviceArray
        Array of the same data type, but for the byte order.
    """
    factors = job.factors
    if source is None or not factors or not can_downsample(source.dtype, job.method, factors):
        return None
    if 0 in cells.counts:
        return []
    dims = [
        Blocks(count, factor, size, first * factor - before, step * factor, *strides)
        for count, factor, size, first, before, step, *strides in zip(
            *(cells.counts, factors, source.shape, cells.firsts, job.before, cells.steps),
            *(source.strides, cells.strides),
            strict=True,
        )
    ]
    address, dtypes = target.address + cells.offset, (source.dtype, target.dtype)
    return downsample_launches(source.address, address, dims, dtypes, job.method)
