"""Search for members of a zip archive whose names in its directory, without checksum, are damaged.

A key that is absent from the directory can be that of a member with a damaged name there, and must
not be reported as missing. The local header of the member has the right name. Before a key is
reported as missing, the local headers of possible members are read once: a damaged name has the
same length, or the directory could not be read. In a large archive only members whose names differ
in one or two bytes are possible, and the number of comparisons is bounded, because chunks that were
never written are missing too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpustore.errors import GpustoreError
from gpustore.kvstores.columns import ABSENT
from gpustore.kvstores.zip.archive import Archive
from gpustore.kvstores.zip.directory import RECORD, Directory, corrupt
from gpustore.kvstores.zip.member import LOCAL_HEADER, LOCAL_SIGNATURE, read_local_header
from gpustore.strict_json.parsing import quote

_MOST_HERE: Final = 1 << 12
_MOST_ELSEWHERE: Final = 1 << 6
"""Number of local headers read together, of archives on this machine and on others."""

_COMPARED: Final = 1 << 21
"""Largest number of names compared with those of missing keys, for one directory."""


def find_lost(
    archive: Archive, directory: Directory, keys: Sequence[str], generations: Sequence[bytes]
) -> dict[int, GpustoreError]:
    """Return errors for keys that are absent from `directory` and present in the archive.

    Parameters
    ----------
    archive : Archive
    directory : Directory
    keys, generations : sequence
        Keys and their generations; keys with the generation ABSENT are searched.

    Returns
    -------
    dict of int to GpustoreError
        Errors by position in `keys`.

    Raises
    ------
    Changed
    StoreIOError
        If the archive cannot be read.
    """
    names = {
        position: keys[position].encode("utf-8", "surrogateescape")
        for position, generation in enumerate(generations)
        if generation == ABSENT
    }
    wanted = set(names.values())
    for nbytes in {len(name) for name in wanted} - directory.looked_at:
        _look_at(archive, directory, [name for name in wanted if len(name) == nbytes])
    lost: dict[int, GpustoreError] = {}
    for position, name in names.items():
        row = directory.renamed.get(name)
        if row is not None:
            lost[position] = corrupt(
                f"the ZIP Local Entry at byte {directory.offset[row]} of the archive has this "
                f"name, but its directory says {quote(directory.name(row).decode('latin-1'))}"
            )
    return lost


def _look_at(archive: Archive, directory: Directory, names: Sequence[bytes]) -> None:
    """Record the members that could have these names, all of one length."""
    nbytes = len(names[0])
    most = _MOST_HERE if archive.is_local else _MOST_ELSEWHERE
    last = directory.end.start - LOCAL_HEADER.size - nbytes
    unread = (directory.record["name_nbytes"] == nbytes) & (directory.data_start < 0)
    rows = np.flatnonzero(unread & (directory.offset <= last))
    is_all = len(rows) <= most
    if not is_all:
        if directory.compared + len(rows) * len(names) > _COMPARED:
            return
        directory.compared += len(rows) * len(names)
        rows = rows[_alike(directory, rows, names)][:most]
    ranges = [
        (start, start + LOCAL_HEADER.size + nbytes) for start in directory.offset[rows].tolist()
    ]
    for row, head in zip(rows.tolist(), archive.read(ranges, directory.generation)):
        name = bytes(head[LOCAL_HEADER.size :])
        if name != directory.name(row) and bytes(head[:4]) == LOCAL_SIGNATURE:
            directory.renamed[name] = row
        with contextlib.suppress(GpustoreError):  # Reading that member raises it again.
            directory.data_start[row] = read_local_header(directory, row, head)
    if is_all:
        directory.looked_at.add(nbytes)


def _alike(
    directory: Directory, rows: NDArray[np.int64], names: Sequence[bytes]
) -> NDArray[np.bool_]:
    """Return the members whose names differ from one of `names` in one or two bytes."""
    places = directory.start[rows][:, None] + (RECORD.itemsize + np.arange(len(names[0])))
    found = np.frombuffer(directory.blob, np.uint8)[places]
    alike = np.zeros(len(rows), bool)
    for name in names:
        alike |= (found != np.frombuffer(name, np.uint8)).sum(axis=1) <= 2
    return alike
