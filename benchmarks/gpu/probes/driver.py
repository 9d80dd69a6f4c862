"""Is there a driver, and does a device answer it? By libcuda alone."""

import ctypes


def run(findings, target, variant):
    del target, variant
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        findings.note("devices", 0)
        findings.note("why", f"no driver: {error}")
        return
    version, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(version))
    findings.note("cuda_of_driver", version.value)
    status = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    findings.note("devices", 0 if status else count.value)
    if status:
        findings.note("why", f"the driver answers with CUDA error {status}")
    elif not count.value:
        findings.note("why", "the driver counts no device")
