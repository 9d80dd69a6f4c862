"""How a file kvstore works, as its context resources say."""

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
    """How a file kvstore works: the values of its context resources.

    Attributes
    ----------
    sync : {"full", "file", "none"}
        What reaches the disk before a write is done: the file and its directory, only the file,
        or nothing.
    mode : {"default", "memmap", "direct"}
        How files are read: "direct" past the page cache, the others through it.
    locking : FileIoLocking
    retries : Retries
    executor : Executor
        The threads its operations should run on.
    """

    sync: FileIoSync
    mode: FileIoMode
    locking: FileIoLocking
    retries: Retries
    executor: Executor

    @classmethod
    def from_resources(cls, resources: Mapping[str, Context.Resource]) -> FileOptions:
        """The options that bound context resources stand for."""
        return cls(
            sync=resources["file_io_sync"].value,
            mode=resources["file_io_mode"].value,
            locking=resources["file_io_locking"].value,
            retries=resources["file_io_retries"].value,
            executor=resources["file_io_concurrency"].value,
        )
