// The native core of gpustore on the host: a shared library that Python loads with ctypes.
//
// hatch_build.py compiles this file alone; it includes the headers beside it. Names of exported
// functions begin with `gpustore_core_`.
#include <cstdint>

#include "functions.h"

extern "C" __attribute__((visibility("default"))) int64_t gpustore_core_abi() {
    // Python compares it with `ABI` of gpustore/backends/native/library.py.
    return static_cast<int64_t>(sizeof(gpustore::Functions));
}
