"""Members of a zip archive that are lost because its directory, which has no checksum, is damaged.

A key that the directory does not have may be that of a member with a damaged name there, and must
not be taken for missing. The right name stands in the local header of the member. So before a key
is missing, the local headers of those that could be the one are looked at, once: a damaged name
has the same length, or the directory could not be read. Of very many, only those are looked at
whose names differ in one or two bytes, and not for ever: chunks nobody wrote are missing, too.
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
"""So many local headers are looked at together, of archives on this machine and on others."""

_COMPARED: Final = 1 << 21
"""So many names are compared with those of missing keys, while one directory is the current one."""


def find_lost(
    archive: Archive, directory: Directory, keys: Sequence[str], generations: Sequence[bytes]
) -> dict[int, GpustoreError]:
    """What is wrong with keys that `directory` does not have, but the archive.

    Parameters
    ----------
    archive : Archive
    directory : Directory
    keys, generations : sequence
        Those with the generation ABSENT are looked for.

    Returns
    -------
    dict of int to GpustoreError
        By position in `keys`.

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
    """Note which members could have these names, all of one length."""
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
        with contextlib.suppress(GpustoreError):  # Who reads that member will be told.
            directory.data_start[row] = read_local_header(directory, row, head)
    if is_all:
        directory.looked_at.add(nbytes)


def _alike(
    directory: Directory, rows: NDArray[np.int64], names: Sequence[bytes]
) -> NDArray[np.bool_]:
    """Which members have a name that differs from one of `names` in one or two bytes."""
    places = directory.start[rows][:, None] + (RECORD.itemsize + np.arange(len(names[0])))
    found = np.frombuffer(directory.blob, np.uint8)[places]
    alike = np.zeros(len(rows), bool)
    for name in names:
        alike |= (found != np.frombuffer(name, np.uint8)).sum(axis=1) <= 2
    return alike
