"""Versions of an OCDBT database and the tree that holds the older ones.

With arity 2**a, the manifest holds the latest versions, those in the same block of 2**a
generations; older ones lie in version nodes. A node of height 0 is such a block, a node of height
h has up to 2**a nodes of height h - 1. The manifest refers to at most one node of each height
from 1 on, the highest first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final, TypeAlias

from gpustore.errors import GpustoreError
from gpustore.kvstores.ocdbt.columns import encode_varint
from gpustore.kvstores.ocdbt.envelope import VERSION_NODE, open_body, seal
from gpustore.kvstores.ocdbt.location import (
    ABSENT_ROOT,
    FileTable,
    Location,
    read_files,
    read_locations,
)
from gpustore.kvstores.ocdbt.node import Totals
from gpustore.kvstores.ocdbt.time import format_time

if TYPE_CHECKING:
    from gpustore.kvstores.ocdbt.columns import Reader
    from gpustore.kvstores.ocdbt.location import DataFile
    from gpustore.runtime.buffer import Buffer


_GENERATION_BITS: Final = 64
_TIME = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Version:
    """One version of the database.

    Attributes
    ----------
    generation : int
    root_height : int
    root : Location
        :data:`~gpustore.kvstores.ocdbt.location.ABSENT_ROOT` if there are no keys.
    totals : Totals
    commit_time : int
        Nanoseconds since the epoch.
    """

    generation: int
    root_height: int
    root: Location
    totals: Totals
    commit_time: int

    @property
    def is_empty(self) -> bool:
        """Whether the version has no keys."""
        return self.root[1:] == ABSENT_ROOT[1:]


@dataclass(frozen=True, slots=True)
class VersionSubtree:
    """A reference to a version node.

    Attributes
    ----------
    generation : int
        Generation of its last version.
    location : Location
    num_generations : int
    commit_time : int
        Commit time of its first version, in nanoseconds since the epoch.
    height : int
    """

    generation: int
    location: Location
    num_generations: int
    commit_time: int
    height: int


VersionArray: TypeAlias = tuple[Version, ...] | tuple[VersionSubtree, ...]


@dataclass(frozen=True, slots=True)
class VersionNode:
    """A node of the version tree.

    Attributes
    ----------
    arity_log2 : int
    height : int
    entries : tuple of Version or tuple of VersionSubtree
        Versions if the height is 0.
    """

    arity_log2: int
    height: int
    entries: VersionArray

    @property
    def memory_nbytes(self) -> int:
        """Approximate memory of the node, in bytes."""
        return 600 * len(self.entries)

    def encode(self, level: int | None) -> bytes:
        """Return the bytes of the node, compressed with this level."""
        table = FileTable(_files(self.entries))
        encoded = _encode_entries(self.entries, table)
        body = bytes((self.arity_log2, self.height)) + table.encoded + encoded
        return seal(VERSION_NODE, body, level)


def max_height(arity_log2: int) -> int:
    """Return the largest height of a version node."""
    return (_GENERATION_BITS - 1) // arity_log2 - 1


def max_generation(arity_log2: int) -> int:
    """Return the largest generation, for which all version nodes and the manifest are full.

    >>> max_generation(16) == 2**48 + 2**16
    True
    """
    return (1 << arity_log2 * (max_height(arity_log2) + 1)) + (1 << arity_log2)


def subtree_ranges(generation: int, arity_log2: int) -> Iterator[tuple[int, int, int]]:
    """Yield the older generations in each version node that a manifest refers to.

    Parameters
    ----------
    generation : int
        Latest generation.
    arity_log2 : int

    Yields
    ------
    height, first, last : int
        Height of a node, and the first and last generation that it can hold.

    Examples
    --------
    >>> list(subtree_ranges(300, 4))
    [(1, 257, 288), (2, 1, 256)]
    """
    last = (generation - 1) >> arity_log2 << arity_log2
    height = 1
    while last:
        bits = (height + 1) * arity_log2
        before = (last - 1) >> bits << bits
        yield height, before + 1, last
        last = before
        height += 1


def read_versions(
    reader: Reader, files: Sequence[DataFile], arity_log2: int
) -> tuple[Version, ...]:
    """Read and check an array of versions."""
    count = _read_count(reader, 1, 1 << arity_log2)
    generations = reader.varints64(count).tolist()
    heights = reader.fixed(count, "u1").tolist()
    locations = _read_locations(reader, files, count, may_be_absent=True)
    totals = zip(*(reader.varints64(count).tolist() for _ in range(3)), strict=True)
    times = reader.fixed(count, "<u8").tolist()
    rows = zip(generations, heights, locations, map(Totals._make, totals), times, strict=True)
    versions = tuple(Version(*row) for row in rows)
    _check_generations(reader, generations)
    _check_times(reader, times)
    if generations[-1] > max_generation(arity_log2):
        raise reader.error(
            f"generation_number={generations[-1]} exceeds maximum {max_generation(arity_log2)} "
            f"for version_tree_arity_log2={arity_log2}"
        )
    first, last = ((end - 1) >> arity_log2 for end in (generations[0], generations[-1]))
    if first != last:
        raise reader.error(
            f"Generation range [{generations[0]}, {generations[-1]}] exceeds maximum of "
            f"[{(last << arity_log2) + 1}, {generations[-1]}]"
        )
    for version in versions:
        if version.is_empty and version.root_height:
            raise reader.error(
                f"non-zero root_height={version.root_height} for empty generation "
                f"{version.generation}"
            )
        if version.is_empty and any(version.totals):
            raise reader.error(
                f"non-zero statistics {tuple(version.totals)} for empty "
                f"generation_number={version.generation}"
            )
    return versions


def read_subtrees(
    reader: Reader, files: Sequence[DataFile], arity_log2: int, height: int | None
) -> tuple[VersionSubtree, ...]:
    """Read and check an array of references to version nodes.

    Parameters
    ----------
    reader : Reader
    files : sequence of DataFile
    arity_log2 : int
    height : int or None
        Height of the nodes; None in a manifest, which contains it.
    """
    in_manifest = height is None
    highest = max_height(arity_log2)
    count = _read_count(
        reader, 0 if in_manifest else 1, highest if in_manifest else 1 << arity_log2
    )
    generations = reader.varints64(count).tolist()
    locations = _read_locations(reader, files, count)
    numbers = reader.varints64(count).tolist()
    times = reader.fixed(count, "<u8").tolist()
    heights = reader.fixed(count, "u1").tolist() if height is None else [height] * count
    rows = zip(generations, locations, numbers, times, heights, strict=True)
    subtrees = tuple(VersionSubtree(*row) for row in rows)
    _check_generations(reader, generations)
    _check_times(reader, times)
    for i, subtree in enumerate(subtrees):
        if in_manifest:
            if not 1 <= subtree.height <= highest:
                raise reader.error(f"entry_height[{i}] outside valid range [1, {highest}]")
            if i and subtree.height >= heights[i - 1]:
                raise reader.error(
                    f"entry_height[{i}]={subtree.height} >= entry_height[{i - 1}]={heights[i - 1]}"
                )
        _check_subtree(reader, i, subtree, arity_log2, in_manifest=in_manifest)
    if height is not None:
        bits = arity_log2 * (height + 2)
        first, last = generations[0], generations[-1]
        if (first - 1) >> bits != (last - 1) >> bits:
            raise reader.error(
                f"generation_number[0]={first} cannot be in the same node as "
                f"generation_number[{count - 1}]={last}"
            )
    return subtrees


def _check_subtree(
    reader: Reader, i: int, subtree: VersionSubtree, arity_log2: int, *, in_manifest: bool
) -> None:
    generation = subtree.generation
    # A node in the manifest grows by whole nodes of the height below, one in a node is whole.
    step = 1 << arity_log2 * (subtree.height + (not in_manifest))
    if generation % step:
        raise reader.error(f"generation_number[{i}]={generation} is not a multiple of {step}")
    bits = arity_log2 * (subtree.height + 1)
    limit = generation - ((generation - 1) >> bits << bits)
    if not 1 <= subtree.num_generations <= limit:
        raise reader.error(
            f"num_generations[{i}]={subtree.num_generations} for "
            f"generation_number[{i}]={generation} is outside valid range [1, {limit}]"
        )


def _read_count(reader: Reader, minimum: int, maximum: int) -> int:
    count = reader.varint()
    if not minimum <= count <= maximum:
        raise reader.error(f"num_children={count} outside valid range [{minimum}, {maximum}]")
    return count


def _read_locations(
    reader: Reader, files: Sequence[DataFile], count: int, *, may_be_absent: bool = False
) -> list[Location]:
    columns = read_locations(reader, files, count, may_be_absent=may_be_absent)
    file, offset, nbytes = (column.tolist() for column in columns)
    return [Location(files[file[i]], offset[i], nbytes[i]) for i in range(count)]


def _check_generations(reader: Reader, generations: Sequence[int]) -> None:
    if generations and not generations[0]:
        raise reader.error("generation_number[0] must be non-zero")
    for i, (before, generation) in enumerate(pairwise(generations), 1):
        if generation <= before:
            raise reader.error(
                f"generation_number[{i}]={generation} <= generation_number[{i - 1}]={before}"
            )


def _check_times(reader: Reader, times: Sequence[int]) -> None:
    for i, (before, time) in enumerate(pairwise(times), 1):
        if time <= before:
            raise reader.error(
                f"commit_time[{i}]={format_time(time)} <= "
                f"commit_time[{i - 1}]={format_time(before)}"
            )


def _files(entries: VersionArray) -> Iterator[DataFile]:
    for entry in entries:
        yield (entry.root if isinstance(entry, Version) else entry.location).file


def _encode_entries(entries: VersionArray, table: FileTable) -> bytes:
    if isinstance(entries[0], Version):
        return encode_versions([e for e in entries if isinstance(e, Version)], table)
    return encode_subtrees([e for e in entries if isinstance(e, VersionSubtree)], table)


def encode_versions(versions: Sequence[Version], table: FileTable) -> bytes:
    """Encode an array of versions."""
    columns = (
        _varints(version.generation for version in versions),
        bytes(version.root_height for version in versions),
        _encode_locations([version.root for version in versions], table),
        *(_varints(version.totals[i] for version in versions) for i in range(3)),
        *(_TIME.pack(version.commit_time) for version in versions),
    )
    return encode_varint(len(versions)) + b"".join(columns)


def encode_subtrees(
    subtrees: Sequence[VersionSubtree], table: FileTable, *, in_manifest: bool = False
) -> bytes:
    """Encode an array of references to version nodes."""
    columns = (
        _varints(subtree.generation for subtree in subtrees),
        _encode_locations([subtree.location for subtree in subtrees], table),
        _varints(subtree.num_generations for subtree in subtrees),
        *(_TIME.pack(subtree.commit_time) for subtree in subtrees),
        bytes(subtree.height for subtree in subtrees) if in_manifest else b"",
    )
    return encode_varint(len(subtrees)) + b"".join(columns)


def _varints(values: Iterable[int]) -> bytes:
    return b"".join(map(encode_varint, values))


def _encode_locations(locations: Sequence[Location], table: FileTable) -> bytes:
    return b"".join(
        (
            _varints(table.index[location.file] for location in locations),
            _varints(location.offset for location in locations),
            _varints(location.nbytes for location in locations),
        )
    )


def read_version_node(data: Buffer, transitive: bytes, *, max_nbytes: int) -> VersionNode:
    """Decode and check a version node.

    Parameters
    ----------
    data : Buffer
    transitive : bytes
        Base path of the node's data file.
    max_nbytes : int
        Largest decoded node, in bytes.

    Raises
    ------
    CorruptChunkError, LimitError
    """
    try:
        reader = open_body(data, VERSION_NODE, max_nbytes=max_nbytes)
        arity_log2, height = reader.byte(), reader.byte()
        if not 1 <= arity_log2 <= 16:
            raise reader.error(
                f"Expected version_tree_arity_log2 in range [1, 16] but received: {arity_log2}"
            )
        if height > max_height(arity_log2):
            raise reader.error(
                f"Expected height in range [0, {max_height(arity_log2)}] but received: {height}"
            )
        files = read_files(reader, transitive, max_nbytes=max_nbytes)
        entries: VersionArray
        if height:
            entries = read_subtrees(reader, files, arity_log2, height - 1)
        else:
            entries = read_versions(reader, files, arity_log2)
        reader.finish()
    except GpustoreError as error:
        raise error.prefixed("Error decoding version tree node") from error.__cause__
    return VersionNode(arity_log2, height, entries)


def advance(
    versions: Sequence[Version],
    subtrees: Sequence[VersionSubtree],
    new: Version,
    arity_log2: int,
    *,
    read: Callable[[VersionSubtree], VersionNode],
    write: Callable[[VersionNode], Location],
) -> tuple[tuple[Version, ...], tuple[VersionSubtree, ...]]:
    """Return the contents of a manifest after a version is added to it.

    Parameters
    ----------
    versions, subtrees : sequence of Version, VersionSubtree
        Current contents; no versions in a new database.
    new : Version
        New version, with a greater generation than all others.
    arity_log2 : int
    read, write : callable
        Functions that read and write changed version nodes.
    """
    if not versions:
        return (new,), ()
    if (versions[-1].generation - 1) >> arity_log2 == (new.generation - 1) >> arity_log2:
        return (*versions, new), tuple(subtrees)

    def stored(node: VersionNode, count: int) -> VersionSubtree:
        first, last = node.entries[0], node.entries[-1]
        return VersionSubtree(last.generation, write(node), count, first.commit_time, node.height)

    old = {subtree.height: subtree for subtree in subtrees}
    # What the manifest had at the height below no longer fits there and becomes a child.
    child: VersionSubtree | None = stored(
        VersionNode(arity_log2, 0, tuple(versions)), len(versions)
    )
    kept = []
    for height, first, last in subtree_ranges(new.generation, arity_log2):
        subtree = old.get(height)
        own = subtree if subtree and first <= subtree.generation <= last else None
        if child and first <= child.generation <= last:
            entries = [] if own is None else list(read(own).entries)
            entries.append(child)
            count = child.num_generations + (0 if own is None else own.num_generations)
            own = stored(VersionNode(arity_log2, height, tuple(entries)), count)  # type: ignore[arg-type]
        if own:
            kept.append(own)
        child = subtree
    return (new,), tuple(reversed(kept))
