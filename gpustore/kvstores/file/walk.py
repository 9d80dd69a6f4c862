"""Traversal of the directories below the root of a file kvstore."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from gpustore.kvstores.base import prefix_end
from gpustore.kvstores.columns import ABSENT
from gpustore.kvstores.file.key import parent_of
from gpustore.kvstores.file.lock import LOCK_SUFFIX
from gpustore.kvstores.file.root import DIRECTORY_FLAGS, generation_of, io_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpustore.kvstores.file.root import Root


def walk(
    root: Root, inclusive_min: str, exclusive_max: str | None
) -> Iterator[tuple[str, list[str]]]:
    """Yield each directory that may contain keys of a range, with those keys."""
    first = max(inclusive_min, root.path)
    end = prefix_end(root.path)
    if exclusive_max is not None and (end is None or exclusive_max < end):
        end = exclusive_max
    if end is not None and first >= end:
        return
    # The deepest directory that all keys of the range are in.
    top = parent_of(first + "x")
    while not within(first, end, top, prefix_end(top)):
        top = parent_of(top)
    pending = [top]
    while pending:
        directory = pending.pop()
        keys = []
        for name, is_directory in scan(root, directory):
            path = directory + name
            if is_directory:
                path += "/"
                below = prefix_end(path)
                if (end is None or path < end) and (below is None or below > first):
                    pending.append(path)
            elif first <= path and (end is None or path < end):
                keys.append(path)
        yield directory, keys


def scan(root: Root, directory: str) -> list[tuple[str, bool]]:
    """Return the names in a directory that are not hidden, each with whether it is a directory."""
    fd = root.open(directory, DIRECTORY_FLAGS)
    if fd < 0:
        if fd in (-errno.ENOENT, -errno.ENOTDIR):
            return []
        raise io_error(-fd, "open directory", directory)
    try:
        with os.scandir(fd) as entries:
            return [
                (entry.name, entry.is_dir(follow_symlinks=False))
                for entry in entries
                if not entry.name.endswith(LOCK_SUFFIX)
            ]
    except OSError as error:
        raise io_error(error, "list directory", directory) from error
    finally:
        os.close(fd)


def only_file(root: Root, directory: str, name: str) -> bytes:
    """Return the generation of the file `name` if a directory has no other names that are not
    hidden.

    :data:`ABSENT` if it has, lacks that one, or cannot be read.
    """
    fd = root.open(directory, DIRECTORY_FLAGS)
    if fd < 0:
        return ABSENT
    found = ABSENT
    try:
        with os.scandir(fd) as entries:
            for entry in entries:
                if entry.name.endswith(LOCK_SUFFIX):
                    continue
                if entry.name != name or not entry.is_file(follow_symlinks=False):
                    return ABSENT
                found = generation_of(entry.stat(follow_symlinks=False))
    except OSError:
        return ABSENT
    finally:
        os.close(fd)
    return found


def within(inner_min: str, inner_max: str | None, outer_min: str, outer_max: str | None) -> bool:
    """Return whether a range of keys lies in another."""
    if outer_max is not None and (inner_max is None or inner_max > outer_max):
        return False
    return outer_min <= inner_min
