"""The B+tree of a new version: new nodes where entries change, and references to kept ones.

1. Walk down to the leaves that change, reading all that are needed of a level at once. Children
   that are deleted whole are not read.
2. Merge the changes into the columns of each leaf, leaves that lie side by side into one.
3. Split entries that have become too large; a node consists of new parts and references to kept
   ones.
4. Encode the new nodes from the leaves up. Each except the root leaves out the common prefix of its
   keys.

A tree whose root would have a single child becomes lower instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from gpustore.errors import GpustoreError, LimitError
from gpustore.kvstores.ocdbt.keys import Keys
from gpustore.kvstores.ocdbt.location import ABSENT_ROOT, Location, common_nbytes
from gpustore.kvstores.ocdbt.node import MAX_ENTRIES, Interior, Leaf, Totals
from gpustore.kvstores.ocdbt.tree import child, child_rows, load, root_of

if TYPE_CHECKING:
    from gpustore.kvstores.ocdbt.columns import Int64s
    from gpustore.kvstores.ocdbt.database import Database
    from gpustore.kvstores.ocdbt.tree import Subtree
    from gpustore.kvstores.ocdbt.version_tree import Version


Stored: TypeAlias = bytes | Location
"""A value in a leaf: inline bytes, or a location."""

_MAX_HEIGHT: Final = 255
# What an entry is taken to need, besides keys, values and names of data files.
_LEAF_ENTRY_NBYTES: Final = 16
_INDIRECT_NBYTES: Final = 16
_INTERIOR_ENTRY_NBYTES: Final = 56


class KeyRange(NamedTuple):
    """Keys from `low` to before `high`; None for no bound."""

    low: bytes
    high: bytes | None


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of a commit.

    Attributes
    ----------
    writes : sequence of (bytes, Stored or None)
        New values in ascending order of the keys, each key once; None deletes.
    deleted : KeyRange or None
        Range that is deleted first.
    """

    writes: Sequence[tuple[bytes, Stored | None]]
    deleted: KeyRange | None = None


class Tree(NamedTuple):
    """A written tree."""

    height: int
    root: Location
    totals: Totals


@dataclass(slots=True)
class _Kept:
    """A node of the old version."""

    first: bytes
    prefix_nbytes: int
    location: Location
    totals: Totals


@dataclass(slots=True)
class _NewLeaf:
    """A leaf to be written; `prefix` precedes all its keys."""

    leaf: Leaf
    prefix: bytes

    height = 0

    @property
    def first(self) -> bytes:
        return self.prefix + self.leaf.keys[0]


@dataclass(slots=True)
class _NewInterior:
    """An interior node to be written."""

    height: int
    entries: list[_Entry]

    @property
    def first(self) -> bytes:
        return self.entries[0].first


_New: TypeAlias = _NewLeaf | _NewInterior
_Entry: TypeAlias = _Kept | _NewLeaf | _NewInterior


class Rewrite:
    """Makes the tree of a new version.

    Parameters
    ----------
    database : Database
    max_node_nbytes : int
        Estimated size in bytes above which a node is split; 0 for never.
    level : int or None
        Compression level of nodes.
    write : callable
        Takes the bytes of a node and returns their location.

    Attributes
    ----------
    num_deleted : int
        Number of keys in the deleted range.
    """

    def __init__(
        self,
        database: Database,
        *,
        max_node_nbytes: int,
        level: int | None,
        write: Callable[[bytes], Location],
    ) -> None:
        self._database = database
        self._max_node_nbytes = max_node_nbytes or 1 << 62
        self._level = level
        self._write = write
        self.num_deleted = 0

    def apply(self, version: Version | None, changes: Changes) -> Tree:
        """Write the changed parts of a version's tree; return the new tree, None without keys."""
        news: list[_New] = []
        if version is None or version.is_empty:
            leaf = _merge(_empty_leaf(), changes.writes)
            news = list(self._split_leaf(leaf, b""))
        else:
            root = root_of(version)
            (node,) = self._load([root])
            news = self._update(root, None, node, changes)
        while len(news) > 1:
            news = list(self._split_interior(news[0].height + 1, news))
        if not news:
            return Tree(0, ABSENT_ROOT, Totals(0, 0, 0))
        root_node = self._lowered(news[0])
        if root_node.height > _MAX_HEIGHT:
            raise LimitError(f"OCDBT tree would have a height of more than {_MAX_HEIGHT}")
        written = self._encode(root_node, is_root=True)
        return Tree(root_node.height, written.location, written.totals)

    # ------------------------------------------------------------------ walking down

    def _load(self, subtrees: Sequence[Subtree]) -> Iterator[Leaf | Interior]:
        for node in load(self._database, subtrees):
            if isinstance(node, GpustoreError):
                raise node
            yield node

    def _update(
        self, subtree: Subtree, limit: bytes | None, node: Leaf | Interior, changes: Changes
    ) -> list[_New]:
        """Return the replacement of a node with whole keys below `limit`."""
        if isinstance(node, Leaf):
            prefix, writes = subtree.prefix, changes.writes
            rows = child_rows(node, prefix, *changes.deleted) if changes.deleted else range(0)
            leaf = self._without(node, rows)
            if all(key.startswith(prefix) for key, _ in writes):
                writes = [(key[len(prefix) :], value) for key, value in writes]
            else:
                leaf, prefix = _with_prefix(leaf, prefix), b""
            return list(self._split_leaf(_merge(leaf, writes), prefix))
        return list(self._split_interior(node.height, self._entries(subtree, limit, node, changes)))

    def _entries(
        self, subtree: Subtree, limit: bytes | None, node: Interior, changes: Changes
    ) -> list[_Entry]:
        firsts = [subtree.prefix + key for key in node.keys.tolist()]
        parts = _distribute(firsts, limit, changes)
        changed = {
            row: child(node, row, subtree)
            for row, part in enumerate(parts)
            if part is not None and (part.writes or part.deleted is not None)
        }
        nodes = self._load(list(changed.values()))
        entries: list[_Entry] = []
        for row, part in enumerate(parts):
            if part is None:
                self.num_deleted += int(node.num_keys[row])
            elif row in changed:
                end = firsts[row + 1] if row + 1 < len(firsts) else limit
                new = self._update(changed[row], end, next(nodes), part)
                entries = self._joined(entries, new)
            else:
                prefix_nbytes = len(subtree.prefix) + int(node.prefix_nbytes[row])
                totals = node.child_totals(row)
                entries.append(_Kept(firsts[row], prefix_nbytes, node.child(row), totals))
        return entries

    def _joined(self, entries: list[_Entry], new: list[_New]) -> list[_Entry]:
        """Return entries followed by new ones; two small leaves side by side become one."""
        if entries and new:
            before, after = entries[-1], new[0]
            if isinstance(before, _NewLeaf) and isinstance(after, _NewLeaf):
                parts = [_with_prefix(one.leaf, one.prefix) for one in (before, after)]
                both = _concatenated(*parts)
                return [*entries[:-1], *self._split_leaf(both, b""), *new[1:]]
        return [*entries, *new]

    def _without(self, leaf: Leaf, deleted: range) -> Leaf:
        if not deleted:
            return leaf
        self.num_deleted += len(deleted)
        rows = np.arange(len(leaf.keys))
        return _taken(leaf, np.concatenate((rows[: deleted.start], rows[deleted.stop :])))

    def _lowered(self, root: _New) -> _New:
        """Return the first node from the root down that has several children, or the leaf."""
        while isinstance(root, _NewInterior) and len(root.entries) == 1:
            (entry,) = root.entries
            if isinstance(entry, _Kept):
                entry = self._opened(entry, root.height - 1)
            root = entry
        return root

    def _opened(self, kept: _Kept, height: int) -> _New:
        """Return a node of the old version for writing it again."""
        node = self._database.node(kept.location, height)
        prefix = kept.first[: kept.prefix_nbytes]
        if isinstance(node, Leaf):
            return _NewLeaf(node, prefix)
        return _NewInterior(
            height,
            [
                _Kept(
                    prefix + key,
                    len(prefix) + int(node.prefix_nbytes[row]),
                    node.child(row),
                    node.child_totals(row),
                )
                for row, key in enumerate(node.keys.tolist())
            ],
        )

    # ------------------------------------------------------------------ splitting

    def _split_leaf(self, leaf: Leaf, prefix: bytes) -> list[_NewLeaf]:
        count = len(leaf.keys)
        if not count:
            return []
        path = np.array([len(f.base) + len(f.relative) for f in (*leaf.files,)] + [0], np.int64)
        values = np.where(leaf.file < 0, leaf.nbytes, _INDIRECT_NBYTES + path[leaf.file])
        ends = self._ends(_LEAF_ENTRY_NBYTES + len(prefix) + leaf.keys.nbytes + values, 1)
        if len(ends) == 1:
            return [_NewLeaf(leaf, prefix)]
        starts = [0, *ends[:-1]]
        return [
            _NewLeaf(_taken(leaf, np.arange(start, end)), prefix)
            for start, end in zip(starts, ends, strict=True)
        ]

    def _split_interior(self, height: int, entries: Sequence[_Entry]) -> list[_NewInterior]:
        if not entries:
            return []
        sizes = [
            _INTERIOR_ENTRY_NBYTES
            + len(entry.first)
            + (len(entry.location.file.path) if isinstance(entry, _Kept) else 34)
            for entry in entries
        ]
        ends = self._ends(np.array(sizes, np.int64), 2)
        starts = [0, *ends[:-1]]
        return [
            _NewInterior(height, list(entries[start:end]))
            for start, end in zip(starts, ends, strict=True)
        ]

    def _ends(self, sizes: Int64s, min_entries: int) -> list[int]:
        """Return the ends of parts of about equal size, for splitting entries of these sizes."""
        count = len(sizes)
        total = np.cumsum(sizes)
        parts = max(-(-int(total[-1]) // self._max_node_nbytes), -(-count // MAX_ENTRIES))
        parts = min(parts, max(1, count // min_entries))
        if parts == 1:
            return [count]
        goals = total[-1] * np.arange(1, parts) // parts
        ends = np.searchsorted(total, goals, side="left") + 1
        # Each part has its share, however large single entries are.
        lowest = min_entries * np.arange(1, parts)
        ends = np.maximum.accumulate(np.maximum(ends, lowest) - lowest) + lowest
        ends = np.minimum(ends, count - lowest[::-1])
        return [*ends.tolist(), count]

    # ------------------------------------------------------------------ encoding

    def _encode(self, new: _New, *, is_root: bool = False) -> _Kept:
        """Write a node and the new nodes below it."""
        node: Leaf | Interior
        if isinstance(new, _NewLeaf):
            leaf, prefix_nbytes = new.leaf, 0
            if is_root:
                leaf = _with_prefix(leaf, new.prefix)
            else:
                skip = common_nbytes(leaf.keys[0], leaf.keys[-1])
                prefix_nbytes = len(new.prefix) + skip
                if skip:
                    leaf = _taken(leaf, np.arange(len(leaf.keys)), skip)
            node = leaf.compact()
        else:
            below = [e if isinstance(e, _Kept) else self._encode(e) for e in new.entries]
            prefix_nbytes = 0
            if not is_root:
                prefix_nbytes = common_nbytes(below[0].first, below[-1].first)
                prefix_nbytes = min(prefix_nbytes, *(entry.prefix_nbytes for entry in below))
            node = _interior(new.height, below, prefix_nbytes)
        encoded = node.encode(self._level)
        location = self._write(encoded)
        self._database.keep(location, node)
        return _Kept(new.first, prefix_nbytes, location, node.totals(len(encoded)))


def _distribute(
    firsts: Sequence[bytes], limit: bytes | None, changes: Changes
) -> list[Changes | None]:
    """Return the changes in each child; None for a child that is deleted whole."""
    deleted = changes.deleted
    parts: list[Changes | None] = []
    position = 0
    writes = changes.writes
    for row, first in enumerate(firsts):
        end = firsts[row + 1] if row + 1 < len(firsts) else limit
        start = position
        while position < len(writes) and (
            row + 1 == len(firsts) or writes[position][0] < firsts[row + 1]
        ):
            position += 1
        some = writes[start:position]
        touched = None
        if deleted is not None:
            low, high = deleted
            outside = (high is not None and high <= first) or (end is not None and end <= low)
            below = low <= first
            inside = below and (high is None or (end is not None and end <= high))
            if inside and not some:
                parts.append(None)
                continue
            touched = None if outside else deleted
        parts.append(Changes(some, touched))
    return parts


# --------------------------------------------------------------------------- columns


def _empty_leaf() -> Leaf:
    none = np.zeros(0, np.int64)
    return Leaf((), Keys(b"", np.zeros(1, np.int64)), none, none, none, b"")


def _with_prefix(leaf: Leaf, prefix: bytes) -> Leaf:
    if not prefix:
        return leaf
    keys = leaf.keys.prefixed(prefix)
    return Leaf(leaf.files, keys, leaf.nbytes, leaf.file, leaf.offset, leaf.inline)


def _taken(leaf: Leaf, rows: Int64s, skip: int = 0) -> Leaf:
    """Return some entries of a leaf, without the first bytes of their keys."""
    return Leaf(
        leaf.files,
        leaf.keys.take(rows, skip),
        leaf.nbytes[rows],
        leaf.file[rows],
        leaf.offset[rows],
        leaf.inline,
    )


def _concatenated(first: Leaf, second: Leaf) -> Leaf:
    """Return the entries of one leaf followed by those of another."""
    keys = Keys(
        first.keys.data + second.keys.data,
        np.concatenate((first.keys.start, second.keys.start[1:] + len(first.keys.data))),
    )
    is_inline = second.file < 0
    return Leaf(
        first.files + second.files,
        keys,
        np.concatenate((first.nbytes, second.nbytes)),
        np.concatenate((first.file, np.where(is_inline, -1, second.file + len(first.files)))),
        np.concatenate((first.offset, second.offset + np.where(is_inline, len(first.inline), 0))),
        first.inline + second.inline,
    )


def _merge(leaf: Leaf, writes: Sequence[tuple[bytes, Stored | None]]) -> Leaf:
    """Return a leaf with some keys written or deleted."""
    if not writes:
        return leaf
    count = len(leaf.keys)
    kept = np.ones(count, bool)
    before = []
    new = []
    for key, value in writes:
        row = leaf.keys.rank(key)
        if row < count and leaf.keys[row] == key:
            kept[row] = False
        if value is not None:
            before.append(row)
            new.append((key, value))
    rows = np.flatnonzero(kept)
    both = leaf
    if new:
        both = _concatenated(leaf, _leaf_of(new))
        rows = np.insert(rows, np.searchsorted(rows, before), np.arange(count, count + len(new)))
    return _taken(both, rows)


def _leaf_of(entries: Sequence[tuple[bytes, Stored]]) -> Leaf:
    files = tuple({one.file for _, one in entries if isinstance(one, Location)})
    index = {file: i for i, file in enumerate(files)}
    inline = []
    position = 0
    columns = np.empty((3, len(entries)), np.int64)
    for i, (_, value) in enumerate(entries):
        if isinstance(value, Location):
            columns[:, i] = value.nbytes, index[value.file], value.offset
        else:
            columns[:, i] = len(value), -1, position
            inline.append(value)
            position += len(value)
    keys = Keys.of([key for key, _ in entries])
    return Leaf(files, keys, columns[0], columns[1], columns[2], b"".join(inline))


def _interior(height: int, entries: Sequence[_Kept], skip: int) -> Interior:
    files = tuple({entry.location.file for entry in entries})
    index = {file: i for i, file in enumerate(files)}
    return Interior(
        height,
        files,
        Keys.of([entry.first[skip:] for entry in entries]),
        np.array([entry.prefix_nbytes - skip for entry in entries], np.int64),
        np.array([index[entry.location.file] for entry in entries], np.int64),
        np.array([entry.location.offset for entry in entries], np.uint64),
        np.array([entry.location.nbytes for entry in entries], np.uint64),
        *(np.array([entry.totals[i] for entry in entries], np.uint64) for i in range(3)),
    )
