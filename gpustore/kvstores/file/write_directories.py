"""Directories in which the native core writes files under TensorStore's lock protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpustore.errors import GpustoreError
from gpustore.kvstores.columns import ABSENT
from gpustore.kvstores.file.directory import Directories
from gpustore.kvstores.file.key import is_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from gpustore.errors import StoreIOError
    from gpustore.kvstores.file.options import FileOptions
    from gpustore.kvstores.file.root import Root


class FileWriteDirectories:
    """Directories of keys; see :class:`~gpustore.kvstores.base.WriteDirectories`.

    Parameters
    ----------
    root : Root
        Root of the store, outside of which nothing is opened.
    options : FileOptions
    check_key : callable
        Raises InvalidKeyError for an illegal key.
    """

    __slots__ = ("_check_key", "_directories", "_last", "_open", "syncs")

    def __init__(self, root: Root, options: FileOptions, check_key: Callable[[str], None]) -> None:
        self.syncs = options.sync != "none"
        self._check_key = check_key
        self._directories = Directories(root, sync=options.sync == "full", remove_locks=True)
        self._open: dict[str, int] = {}
        self._last: tuple[str, int] = "", -1

    def open(self, index: int, key: str) -> int | None:
        at = key.rfind("/") + 1
        parent = key[:at]
        last, descriptor = self._last
        # Keys of chunks follow one another; what is before their last slash was found legal.
        if parent == last and descriptor >= 0 and is_plain(key, at):
            return descriptor
        try:
            self._check_key(key)
            if parent in self._open:
                self._last = parent, self._open[parent]
                return self._open[parent]
            if self._directories.room <= parent.count("/"):  # Those above it are opened, too.
                return None if self._open else -1
            descriptor = self._directories.open(parent, index=index, create=True)
            self._directories.clean(parent)
        except (GpustoreError, OSError):
            return -1  # The kvstore tries again, and words the error.
        self._open[parent] = descriptor
        self._last = parent, descriptor
        return descriptor

    def version(self, generation: bytes) -> bytes | None:
        return None if generation == ABSENT else generation[1:]

    def changed(self, indices: Iterable[int], keys: Sequence[str]) -> None:
        last, found = None, []
        for index in indices:
            parent = keys[index][: keys[index].rfind("/") + 1]
            if parent != last:
                last, found = parent, self._directories.changes(parent)
            found.append(index)

    def close(self) -> dict[int, StoreIOError]:
        self._open.clear()
        self._last = "", -1
        self._directories.close()
        return self._directories.error
