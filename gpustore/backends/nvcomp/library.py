"""nvcomp's batched C calls, by :mod:`ctypes`, in the library of the wheel ``nvidia-libnvcomp``.

They read the table of a :class:`~gpustore.device.protocol.CodecBatch` as it lies, wait for nothing
and give a status for each stream.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from gpustore.backends.nvcomp import call
from gpustore.backends.nvcomp.abi import (
    DETECTS_DAMAGE,
    FORMATS,
    LARGEST,
    NO_NVCOMP,
    ROWS,
    Alignments,
    Properties,
    prototypes,
)
from gpustore.device.protocol import STATUSES, CodecBatch, DeviceCodec
from gpustore.errors import DeviceError

try:
    # By name: nvcomp's Python package takes this attribute off the package `nvidia` again.
    from nvidia import libnvcomp
except ImportError:
    libnvcomp = None


def _library_path() -> Path:
    """Return the path of the shared library in the installed wheel."""
    if libnvcomp is None:
        raise DeviceError(NO_NVCOMP)
    folder = Path(libnvcomp.__file__).parent / "lib64"
    found = sorted(folder.glob("libnvcomp.so.[0-9]*"))
    if not found:
        raise DeviceError(f"nvcomp: no libnvcomp.so in {folder}; install nvidia-libnvcomp again")
    return found[-1]


class Library:
    """nvcomp's C library.

    Parameters
    ----------
    path : Path, optional
        The shared library; by default that of the installed wheel.

    Attributes
    ----------
    name : str
        Name of the library for messages.
    version : int
        Version number; 6000 is 6.0.

    Raises
    ------
    DeviceError
        If the library cannot be loaded, or its prototypes are not known.
    """

    def __init__(self, path: Path | None = None) -> None:
        found = path or _library_path()
        self._functions: dict[str, Any] = {}
        try:
            library = ctypes.CDLL(str(found))
            properties = Properties()
            library.nvcompGetProperties(ctypes.byref(properties))
            self.version = properties.version
            self.name = f"nvcomp {self.version // 1000}.{self.version // 100 % 10}, C library"
            major = self.version // 1000
            if major not in ROWS:
                raise DeviceError(f"{self.name}: only versions {[*ROWS]} are known")
            self._major, self._prototypes = major, prototypes(major)
            for name, prototype in self._prototypes.items():
                self._functions[name] = getattr(library, name)
                self._functions[name].restype = ctypes.c_int
                self._functions[name].argtypes = list(prototype.values())
        except (OSError, AttributeError) as error:
            raise DeviceError(f"nvcomp: {found} cannot be used: {error}") from error
        self._codecs = {name: self._describe(name) for name in FORMATS}

    def _call(self, call: call.Call) -> None:
        function, arguments = call
        order = self._prototypes[function]
        status = self._functions[function](*[arguments[name] for name in order])
        if status:
            reason = STATUSES.get(status, "unknown status")
            raise DeviceError(f"nvcomp: {function}: {reason} ({status})")

    def _describe(self, codec: str) -> DeviceCodec:
        found = Alignments()
        self._call(call.alignments(self._major, codec, ctypes.addressof(found)))
        decoded_max, encodes_max = LARGEST[codec]
        return DeviceCodec(
            name=codec,
            src_alignment=found.input,
            dst_alignment=found.output,
            temp_alignment=found.temp,
            decoded_max_nbytes=decoded_max,
            encodes_max_nbytes=encodes_max,
            detects_damage=codec in DETECTS_DAMAGE,
        )

    def codec(self, name: str) -> DeviceCodec | None:
        return self._codecs.get(name)

    def _temp_nbytes(self, verb: str, codec: str, count: int, longest: int, total: int) -> int:
        found = ctypes.c_size_t()
        where = ctypes.addressof(found)
        self._call(call.temp_nbytes(self._major, verb, codec, count, longest, total, where))
        return found.value

    def decompress_temp_nbytes(
        self, codec: str, count: int, max_nbytes: int, total_nbytes: int
    ) -> int:
        return self._temp_nbytes("decompress", codec, count, max_nbytes, total_nbytes)

    def decompress(self, batch: CodecBatch, stream: int) -> None:
        self._call(call.decompress(self._major, batch, stream))

    def compress_nbytes(self, codec: str, count: int, max_nbytes: int) -> tuple[int, int]:
        bound = ctypes.c_size_t()
        where = ctypes.addressof(bound)
        self._call(call.bound(self._major, codec, max_nbytes, where))
        temp = self._temp_nbytes("compress", codec, count, max_nbytes, count * max_nbytes)
        return bound.value, temp

    def compress(self, batch: CodecBatch, stream: int) -> None:
        self._call(call.compress(self._major, batch, stream))
