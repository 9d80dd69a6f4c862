"""Whether a CUDA device answers: the only reason for which a test marked ``gpu`` is skipped."""

import ctypes
import functools


@functools.cache
def answers():
    """Whether the driver is there and counts at least one device."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    count = ctypes.c_int(0)
    return (
        driver.cuInit(0) == 0
        and driver.cuDeviceGetCount(ctypes.byref(count)) == 0
        and count.value > 0
    )
