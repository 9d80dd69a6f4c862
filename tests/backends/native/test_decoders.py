"""Functions of other libraries have the prototypes that the native core calls them with.

The prototypes are those of ``kernels/host/functions.h``; each function is called with them through
ctypes, and its results are those of the library's own Python package.
"""

import ctypes
import gzip
import importlib
import re
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from numcodecs import blosc, lz4, zstd

from gpustore.backends.native import decoders
from gpustore.codecs import libdeflate
from gpustore.errors import UnsupportedError
from tests.matrix import each

HEADER = Path(__file__).parents[3] / "kernels" / "host" / "functions.h"
MEMBER = re.compile(r"^    (.+?)\s*\(\*(\w+)\)\((.*)\);$", re.MULTILINE)

CODECS = ("blosc", "zstd", "lz4", "gzip", "zlib", "crc32c")
CTYPES = {
    "void": None,
    "int": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "unsigned long long": ctypes.c_ulonglong,
    "uint32_t": ctypes.c_uint32,
    "void*": ctypes.c_void_p,
    "const void*": ctypes.c_void_p,
    "char*": ctypes.c_void_p,
    "const char*": ctypes.c_void_p,
    "const uint8_t*": ctypes.c_void_p,
    "size_t*": ctypes.POINTER(ctypes.c_size_t),
}

VALUES = (np.arange(5000, dtype="<u2") // 7).tobytes()
NOISE = np.random.default_rng(0).integers(0, 256, 3000, np.uint8).tobytes()

# What libdeflate returns.
SUCCESS, INSUFFICIENT_SPACE = 0, 3


def prototypes():
    """Function -> its type, as the header declares it."""
    found = {}
    for result, name, parameters in MEMBER.findall(HEADER.read_text(encoding="utf-8")):
        types = [re.sub(r"\s*\w+$", "", p.strip()) for p in parameters.split(",") if p.strip()]
        found[name] = ctypes.CFUNCTYPE(CTYPES[result], *(CTYPES[t] for t in types))
    return found


class Functions:
    """Functions that were found, callable with the prototypes of the header."""

    def __init__(self):
        self._types = prototypes()
        self._addresses = decoders.addresses(*CODECS)

    def __getattr__(self, name):
        if name not in self._types:
            raise AttributeError(name)
        if not self._addresses[name]:
            pytest.skip(f"{name} is not found")
        return self._types[name](self._addresses[name])


call = Functions()


def error(size):
    """Whether a size returned by zstd is an error (zstd_errors.h has up to 120)."""
    return size > 2**64 - 120


def memory(nbytes):
    """Memory with a guard behind it."""
    return ctypes.create_string_buffer(b"\xaa" * (nbytes + 16), nbytes + 16)


def is_guarded(buffer):
    return buffer.raw[-16:] == b"\xaa" * 16


def sizes(*values):
    return [ctypes.c_size_t(value) for value in values]


def test_the_header_has_the_functions_that_are_looked_for_in_the_same_order():
    declared = re.findall(r"\(\*(\w+)\)\(", HEADER.read_text(encoding="utf-8"))
    assert list(prototypes()) == declared
    assert list(decoders.addresses()) == declared


def test_functions_are_found_for_the_codecs_that_are_asked_for():
    assert not any(decoders.addresses().values())
    assert not any(decoders.addresses("bytes", "bz2").values())
    found = decoders.addresses("crc32c", "lz4")
    there = {name for name, address in found.items() if address}
    assert there <= {"crc32c_extend", "LZ4_decompress_safe", "LZ4_compress_fast"}


def test_installed_libraries_export_everything():
    """Wheels do; a build that does not decodes in Python."""
    assert decoders.decodable() == ("raw", *CODECS)


@pytest.mark.matrix("costly")
def test_nothing_is_loaded_before_a_codec_is_used():
    code = (
        "import sys, gpustore; from gpustore.backends.native import decoders, library\n"
        "library.library(); decoders.addresses('bytes')\n"
        "assert not [m for m in sys.modules if m.startswith(('numcodecs', 'deflate'))]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


@pytest.mark.matrix("costly")
def test_a_library_that_is_not_installed_has_no_functions():
    code = (
        "import sys; sys.modules['deflate'] = sys.modules['numcodecs'] = None\n"
        "from gpustore.backends.native import decoders\n"
        "assert not any(decoders.addresses('gzip', 'blosc', 'zstd', 'lz4').values())\n"
        "assert decoders.decodable() == ('raw', 'crc32c'), decoders.decodable()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_libdeflate_of_conda_is_a_library_of_the_environment(tmp_path, monkeypatch):
    _deflate = importlib.import_module("deflate._deflate")
    monkeypatch.setitem(sys.modules, "deflate", None)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    find = decoders._find.__wrapped__
    assert not any(find("libdeflate").values())
    (tmp_path / "lib").mkdir()
    shutil.copy(_deflate.__file__, tmp_path / "lib" / libdeflate.CONDA_NAME)
    assert all(find("libdeflate").values())


FRAMES = {
    f"{name}-{shuffle}": (name, shuffle)
    for name in ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
    for shuffle in (0, 1, 2)
}


def frame(name, data=VALUES):
    cname, shuffle = FRAMES[name]
    return blosc.compress(data, cname.encode(), 5, shuffle, 0, 2)


@each("name", FRAMES)
def test_blosc_frames_decode_to_the_same_bytes(name):
    encoded = frame(name)
    decoded = memory(len(VALUES))
    assert call.blosc_decompress_ctx(encoded, decoded, len(VALUES), 1) == len(VALUES)
    assert decoded.raw[:-16] == blosc.decompress(encoded)
    assert is_guarded(decoded)


@each("name", FRAMES)
def test_blosc_frames_that_do_not_fit_are_errors(name):
    encoded = frame(name)
    decoded = memory(len(VALUES) - 1)
    assert call.blosc_decompress_ctx(encoded, decoded, len(VALUES) - 1, 1) < 0
    assert is_guarded(decoded)


@each("name", FRAMES)
def test_blosc_compresses_to_the_same_frame(name):
    cname, shuffle = FRAMES[name]
    room = len(VALUES) + 16
    encoded = memory(room)
    arguments = 5, shuffle, 2, len(VALUES), VALUES, encoded, room, cname.encode(), 0, 1
    length = call.blosc_compress_ctx(*arguments)
    assert encoded.raw[:length] == frame(name, np.frombuffer(VALUES, "<u2"))
    assert is_guarded(encoded)


def test_blosc_reports_that_a_frame_needs_more_room():
    encoded = memory(1000)
    arguments = 5, 0, 1, len(NOISE), NOISE, encoded, 1000, b"lz4", 0, 1
    assert call.blosc_compress_ctx(*arguments) <= 0
    assert is_guarded(encoded)


@pytest.fixture
def dctx():
    context = call.ZSTD_createDCtx()
    yield context
    assert call.ZSTD_freeDCtx(context) == 0


@pytest.fixture
def cctx():
    context = call.ZSTD_createCCtx()
    yield context
    assert call.ZSTD_freeCCtx(context) == 0


def test_zstd_frames_decode_to_the_same_bytes(dctx):
    encoded = zstd.compress(VALUES, 3)
    assert call.ZSTD_getFrameContentSize(encoded, len(encoded)) == len(VALUES)
    assert call.ZSTD_findFrameCompressedSize(encoded + b"more", len(encoded) + 4) == len(encoded)
    decoded = memory(len(VALUES))
    length = call.ZSTD_decompressDCtx(dctx, decoded, len(VALUES), encoded, len(encoded))
    assert decoded.raw[:length] == zstd.decompress(encoded) == VALUES
    assert is_guarded(decoded)


def test_zstd_frames_that_do_not_fit_are_errors(dctx):
    encoded = zstd.compress(VALUES, 3)
    decoded = memory(len(VALUES))
    assert error(call.ZSTD_decompressDCtx(dctx, decoded, len(VALUES) - 1, encoded, len(encoded)))
    for length in (1, 4, 9, len(encoded) - 1):
        part = encoded[:length]
        assert error(call.ZSTD_decompressDCtx(dctx, decoded, len(VALUES), part, length))
        assert error(call.ZSTD_findFrameCompressedSize(part, length))
    assert call.ZSTD_getFrameContentSize(encoded[:4], 4) == 2**64 - 2
    assert is_guarded(decoded)


@each(("level", "checksum"), [(1, 0), (3, 1), (-5, 0)])
def test_zstd_compresses_to_the_same_frame(level, checksum):
    level_parameter, checksum_parameter = 100, 201  # zstd.h: ZSTD_c_compressionLevel, ...
    context = call.ZSTD_createCCtx()
    assert not error(call.ZSTD_CCtx_setParameter(context, level_parameter, level))
    assert not error(call.ZSTD_CCtx_setParameter(context, checksum_parameter, checksum))
    encoded = memory(len(VALUES) + 100)
    length = call.ZSTD_compress2(context, encoded, len(VALUES) + 100, VALUES, len(VALUES))
    assert encoded.raw[:length] == zstd.Zstd(level=level, checksum=bool(checksum)).encode(VALUES)
    assert is_guarded(encoded)
    assert call.ZSTD_freeCCtx(context) == 0


def test_zstd_reports_what_it_cannot_do(cctx):
    encoded = memory(100)
    assert error(call.ZSTD_compress2(cctx, encoded, 100, NOISE, len(NOISE)))
    assert error(call.ZSTD_CCtx_setParameter(cctx, 99999, 1))
    assert is_guarded(encoded)


def test_lz4_blocks_decode_to_the_same_bytes():
    encoded = lz4.compress(VALUES)
    block = encoded[4:]  # numcodecs puts the size before it
    decoded = memory(len(VALUES))
    assert call.LZ4_decompress_safe(block, decoded, len(block), len(VALUES)) == len(VALUES)
    assert decoded.raw[:-16] == lz4.decompress(encoded) == VALUES
    assert call.LZ4_decompress_safe(block, decoded, len(block), len(VALUES) - 1) < 0
    for length in (1, len(block) // 2, len(block) - 1):
        assert call.LZ4_decompress_safe(block[:length], decoded, length, len(VALUES)) < 0
    assert is_guarded(decoded)


@each("acceleration", [1, 8])
def test_lz4_compresses_to_the_same_block(acceleration):
    room = len(VALUES) + 100
    encoded = memory(room)
    length = call.LZ4_compress_fast(VALUES, encoded, len(VALUES), room, acceleration)
    assert encoded.raw[:length] == lz4.compress(VALUES, acceleration)[4:]
    assert call.LZ4_compress_fast(NOISE, encoded, len(NOISE), 1000, acceleration) == 0
    assert is_guarded(encoded)


DEFLATE = {"gzip": gzip.compress, "zlib": zlib.compress}


@pytest.fixture
def inflate():
    context = call.libdeflate_alloc_decompressor()
    yield context
    call.libdeflate_free_decompressor(context)


@each("name", DEFLATE)
def test_deflate_streams_decode_to_the_same_bytes(inflate, name):
    decode = getattr(call, f"libdeflate_{name}_decompress_ex")
    encoded = DEFLATE[name](VALUES) + b"behind"
    decoded = memory(len(VALUES))
    used, made = sizes(0, 0)
    arguments = inflate, encoded, len(encoded), decoded, len(VALUES), used, made
    assert decode(*arguments) == SUCCESS
    assert decoded.raw[:-16] == VALUES
    assert (used.value, made.value) == (len(encoded) - 6, len(VALUES))
    assert is_guarded(decoded)


@each("name", DEFLATE)
def test_deflate_streams_that_do_not_fit_are_errors(inflate, name):
    decode = getattr(call, f"libdeflate_{name}_decompress_ex")
    encoded = DEFLATE[name](VALUES)
    decoded = memory(len(VALUES))
    used, made = sizes(0, 0)
    short = inflate, encoded, len(encoded), decoded, len(VALUES) - 1, used, made
    assert decode(*short) == INSUFFICIENT_SPACE
    damaged = encoded[:-5] + bytes([encoded[-5] ^ 1]) + encoded[-4:]
    values = [encoded[:length] for length in (0, 1, 20, len(encoded) - 1)]
    for value in (*values, damaged):
        assert decode(inflate, value, len(value), decoded, len(VALUES), used, made) != SUCCESS
    assert is_guarded(decoded)


@each("name", DEFLATE)
@each("level", [0, 1, 3, 6, 9])
def test_deflate_compresses_to_the_same_stream(name, level):
    compress = getattr(call, f"libdeflate_{name}_compress")
    context = call.libdeflate_alloc_compressor(level)
    room = len(VALUES) + 100
    encoded = memory(room)
    length = compress(context, VALUES, len(VALUES), encoded, room)
    package = importlib.import_module("deflate")
    expected = getattr(package, f"{name}_compress")(VALUES, level)
    assert encoded.raw[:length] == expected == libdeflate.compress(name, VALUES, level, room)
    assert compress(context, NOISE, len(NOISE), encoded, 1000) == 0
    assert is_guarded(encoded)
    call.libdeflate_free_compressor(context)


def test_a_missing_libdeflate_is_named(monkeypatch):
    monkeypatch.setattr(libdeflate, "path", lambda: "/nowhere/libdeflate.so.0")
    with pytest.raises(UnsupportedError, match="install the package deflate"):
        libdeflate._library.__wrapped__()


def test_crc32c_is_that_of_the_library():
    whole = google_crc32c.value(VALUES)
    assert call.crc32c_extend(0, VALUES, len(VALUES)) == whole
    first = call.crc32c_extend(0, VALUES, 1234)
    assert call.crc32c_extend(first, VALUES[1234:], len(VALUES) - 1234) == whole
    assert call.crc32c_extend(0, b"", 0) == 0
