"""Reads of files into device memory by kvikio, through GPUDirect Storage where available.

Without kvikio no file is opened, and the host reads. In its compatibility mode (no GPUDirect
Storage, no ``/run/udev``, WSL) kvikio reads through host memory of its own. A read beyond the end
of a file is an error there, so reads end at the end.

Only ``backends/cuda`` uses this module. Source: kvikio 26.10, ``kvikio/cufile.py``.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from gpustore.backends.device.foreign import DeviceBytes
from gpustore.errors import UnsupportedError

try:
    import kvikio
    import kvikio.defaults
except ImportError:
    kvikio = None


_PAGE_NBYTES = 4096
"""Alignment of offsets, lengths and addresses of direct reads, in bytes."""

_THREADS = 8
"""Threads of kvikio, unless the user has set a number; kvikio's default is 1."""


class Read:
    """A read under way; see :class:`gpustore.device.protocol.FileRead`."""

    __slots__ = ("_future", "_path")

    def __init__(self, future: Any, path: Path) -> None:
        self._future = future
        self._path = path

    def result(self) -> int:
        if self._future is None:
            return 0
        try:
            return int(self._future.get())
        except RuntimeError as error:
            raise OSError(errno.EIO, str(error), str(self._path)) from error


class File:
    """An open file; see :class:`gpustore.device.protocol.DeviceFile`."""

    __slots__ = ("_file", "_nbytes", "_path", "alignment", "is_direct")

    def __init__(self, path: Path) -> None:
        if kvikio is None:
            raise UnsupportedError("reading files into device memory needs kvikio: install it")
        if kvikio.defaults.get("num_threads") == 1 and "KVIKIO_NTHREADS" not in os.environ:
            kvikio.defaults.set("num_threads", _THREADS)
        self._nbytes = path.stat().st_size
        self._path = path
        try:
            self._file = kvikio.CuFile(path, "r")
        except RuntimeError as error:
            raise OSError(errno.EIO, str(error), str(path)) from error
        self.is_direct = not kvikio.defaults.is_compat_mode_preferred()
        self.alignment = _PAGE_NBYTES if self.is_direct else 1

    def read(self, start: int, nbytes: int, dst: int) -> Read:
        wanted = min(nbytes, self._nbytes - start)
        if wanted <= 0:
            return Read(None, self._path)
        future = self._file.pread(DeviceBytes(dst, wanted), size=wanted, file_offset=start)
        return Read(future, self._path)

    def close(self) -> None:
        self._file.close()
