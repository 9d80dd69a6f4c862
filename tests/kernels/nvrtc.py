"""NVRTC by ctypes: compiles device code on machines without a GPU or a driver.

The library comes from the wheel ``nvidia-cuda-nvrtc``, or from a CUDA toolkit on the library path.
"""

import ctypes
import functools
import re
import site
import sysconfig
from pathlib import Path

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")

CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")
"""What CuPy 14 adds to the options of every kernel, besides the architecture."""

_RESOURCES = re.compile(
    r"Compiling entry function '(?P<name>\w+)'.*?"
    r"(?P<stack>\d+) bytes stack frame, (?P<spill_stores>\d+) bytes spill stores, "
    r"(?P<spill_loads>\d+) bytes spill loads.*?Used (?P<registers>\d+) registers(?P<rest>[^\n]*)",
    re.DOTALL,
)


class CompileError(Exception):
    """NVRTC refused a source; the text is its log."""


@functools.cache
def library():
    """The loaded library, or None."""
    folders = {*site.getsitepackages(), sysconfig.get_path("purelib")}
    found = sorted(
        str(path)
        for folder in folders
        for path in Path(folder).glob("nvidia/*/lib/libnvrtc.so.*")
        if "alt" not in path.name
    )
    for name in [*found, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]:
        try:
            loaded = ctypes.CDLL(name)
        except OSError:
            continue
        loaded.nvrtcGetErrorString.restype = ctypes.c_char_p
        return loaded
    return None


def _check(status):
    if status:
        raise CompileError(library().nvrtcGetErrorString(status).decode())


def _text(program, kind):
    size = ctypes.c_size_t()
    _check(getattr(library(), f"nvrtcGet{kind}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(getattr(library(), f"nvrtcGet{kind}")(program, buffer))
    return buffer.value.decode()


def compile_source(source, expressions, architecture, options):
    """Compile instances of a source.

    Returns
    -------
    resources : dict
        For each expression: registers, stack, spill_stores, spill_loads and shared, in bytes.
    ptx : str
    """
    assert library() is not None, "no NVRTC on this machine: pip install nvidia-cuda-nvrtc"
    program = ctypes.c_void_p()
    _check(
        library().nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None
        )
    )
    try:
        for expression in expressions:
            _check(library().nvrtcAddNameExpression(program, expression.encode()))
        flags = [
            *options,
            *CUPY_OPTIONS,
            f"-arch={architecture}",
            "--ptxas-options=-v",
        ]
        array = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
        status = library().nvrtcCompileProgram(program, len(flags), array)
        log = _text(program, "ProgramLog")
        if status:
            raise CompileError(log)
        found = {}
        for match in _RESOURCES.finditer(log):
            shared = re.search(r"(\d+) bytes smem", match["rest"])
            numbers = ("registers", "stack", "spill_stores", "spill_loads")
            found[match["name"]] = {name: int(match[name]) for name in numbers}
            found[match["name"]]["shared"] = int(shared[1]) if shared else 0
        resources = {}
        for expression in expressions:
            lowered = ctypes.c_char_p()
            _check(
                library().nvrtcGetLoweredName(program, expression.encode(), ctypes.byref(lowered))
            )
            resources[expression] = found[lowered.value.decode()]
        return resources, _text(program, "PTX")
    finally:
        library().nvrtcDestroyProgram(ctypes.byref(program))
