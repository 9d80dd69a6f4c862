"""Options of a file kvstore, from its context resources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpustore.resources._retries import Retries
    from gpustore.resources.file_io_locking import FileIoLocking
    from gpustore.resources.file_io_mode import FileIoMode
    from gpustore.resources.file_io_sync import FileIoSync
    from gpustore.runtime.context import Context
    from gpustore.runtime.executor import Executor


RESOURCES: Final = (
    "file_io_concurrency",
    "file_io_locking",
    "file_io_mode",
    "file_io_retries",
    "file_io_sync",
)


@dataclass(frozen=True, slots=True)
class FileOptions:
    """Options of a file kvstore: the values of its context resources.

    Attributes
    ----------
    sync : {"full", "file", "none"}
        Parts that reach the disk before a write is done: file and directory, the file only, or
        none.
    mode : {"default", "memmap", "direct"}
        Method of reading: "direct" past the page cache, the others through it.
    locking : FileIoLocking
    retries : Retries
    executor : Executor
        Threads for its operations.
    """

    sync: FileIoSync
    mode: FileIoMode
    locking: FileIoLocking
    retries: Retries
    executor: Executor

    @classmethod
    def from_resources(cls, resources: Mapping[str, Context.Resource]) -> FileOptions:
        """Return the options of bound context resources."""
        return cls(
            sync=resources["file_io_sync"].value,
            mode=resources["file_io_mode"].value,
            locking=resources["file_io_locking"].value,
            retries=resources["file_io_retries"].value,
            executor=resources["file_io_concurrency"].value,
        )
