"""Data files of a commit: values and nodes, joined."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from gpustore.kvstores.columns import WriteRequest
from gpustore.kvstores.ocdbt.location import DataFile, Location

if TYPE_CHECKING:
    from gpustore.kvstores.base import Base
    from gpustore.runtime.buffer import Buffer


DEFAULT_TARGET_NBYTES: Final = 2 << 30


class DataFiles:
    """Data files to write before a manifest may refer to them.

    Parameters
    ----------
    base : Base
        The root of the database.
    target_nbytes : int
        Size in bytes after which another file begins.
    """

    def __init__(self, base: Base, target_nbytes: int) -> None:
        self._base = base
        self._target_nbytes = target_nbytes
        self._current: dict[str, _Growing] = {}
        self._pending: list[_Growing] = []

    def add(self, prefix: str, data: Buffer) -> Location:
        """Add data to a file with this prefix of its name; return their future location."""
        growing = self._current.get(prefix)
        if growing is None or growing.nbytes >= self._target_nbytes:
            growing = self._current[prefix] = _Growing(prefix)
            self._pending.append(growing)
        return growing.add(data)

    def flush(self) -> None:
        """Write all files. Later additions go to other files."""
        pending, self._pending, self._current = self._pending, [], {}
        if pending:
            keys = [self._base.path + growing.file.path for growing in pending]
            values = [growing.join() for growing in pending]
            self._base.driver.write_many(WriteRequest(keys, values)).raise_first()


class _Growing:
    """A file that is not written yet."""

    def __init__(self, prefix: str) -> None:
        self.file = DataFile(b"", f"{prefix}{secrets.token_hex(16)}".encode())
        self.nbytes = 0
        self._parts: list[Buffer] = []

    def add(self, data: Buffer) -> Location:
        location = Location(self.file, self.nbytes, len(data))
        self._parts.append(data)
        self.nbytes += len(data)
        return location

    def join(self) -> Buffer:
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
