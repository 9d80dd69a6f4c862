"""Search for keys in the B+tree of one version of an OCDBT database.

The search goes level by level, so that a batch of keys costs one request to the base for each
level. The child must agree with its parent: in its height, and in keys that are at least the key of
its entry and less than that of the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from gpustore.errors import GpustoreError
from gpustore.kvstores.columns import ABSENT
from gpustore.kvstores.ocdbt.location import Location
from gpustore.kvstores.ocdbt.node import Interior, Leaf
from gpustore.strict_json.parsing import quote

if TYPE_CHECKING:
    from gpustore.kvstores.ocdbt.database import Database
    from gpustore.kvstores.ocdbt.version_tree import Version


# Leaves of a range that are read in one request.
_LEAVES_AT_ONCE: Final = 64

Value: TypeAlias = bytes | Location | GpustoreError | None
"""Result for a key: the value, its location, None for a missing key, or an error."""


class Subtree(NamedTuple):
    """A reference to a node.

    Attributes
    ----------
    location : Location
    height : int
    prefix : bytes
        Prefix of its stored keys.
    minimum : bytes
        Lower bound of its stored keys, inclusive.
    limit : bytes or None
        Upper bound of its stored keys, exclusive.
    """

    location: Location
    height: int
    prefix: bytes
    minimum: bytes
    limit: bytes | None


def generation_of(value: bytes | Location | None) -> bytes:
    """Return the generation of a value, or of a missing one."""
    if value is None:
        return ABSENT
    digest = hashlib.blake2b(digest_size=20)
    if isinstance(value, Location):
        digest.update(b"\0%d %d %d " % (value.offset, value.nbytes, len(value.file.base)))
        digest.update(value.file.base + value.file.relative)
    else:
        digest.update(b"\1")
        digest.update(value)
    return b"\0" + digest.digest()


def root_of(version: Version) -> Subtree:
    """Return the whole tree of a version that has keys."""
    return Subtree(version.root, version.root_height, b"", b"", None)


def child(node: Interior, row: int, subtree: Subtree) -> Subtree:
    """Return a child of a node at `subtree`."""
    key = node.keys[row]
    shared = key[: int(node.prefix_nbytes[row])]
    limit = node.keys[row + 1] if row + 1 < len(node.keys) else subtree.limit
    if limit is not None:
        # A limit without that begin is beyond all keys with it.
        limit = limit[len(shared) :] if limit.startswith(shared) else None
    return Subtree(
        node.child(row), node.height - 1, subtree.prefix + shared, key[len(shared) :], limit
    )


def load(
    database: Database, subtrees: Sequence[Subtree]
) -> Iterator[Leaf | Interior | GpustoreError]:
    """Yield checked nodes, read together; errors take their place."""
    nodes = database.nodes([(subtree.location, subtree.height) for subtree in subtrees])
    for subtree, node in zip(subtrees, nodes, strict=True):
        if isinstance(node, GpustoreError):
            yield node
            continue
        first, last = node.keys[0], node.keys[-1]
        reason = ""
        if first < subtree.minimum:
            reason = (
                f"First key {_text(first)} is less than inclusive_min {_text(subtree.minimum)} "
                "specified by parent node"
            )
        elif subtree.limit is not None and last >= subtree.limit:
            reason = (
                f"Last key {_text(last)} is not less than exclusive_max {_text(subtree.limit)} "
                "specified by parent node"
            )
        yield database.wrong(subtree.location, reason) if reason else node


def _text(key: bytes) -> str:
    return quote(key.decode("utf-8", "surrogateescape"))


def find(database: Database, version: Version, keys: Sequence[bytes]) -> list[Value]:
    """Look up keys.

    Parameters
    ----------
    database : Database
    version : Version
    keys : sequence of bytes

    Returns
    -------
    list of Value
        Result for each key.
    """
    found: list[Value] = [None] * len(keys)
    if version.is_empty:
        return found
    pending: list[tuple[Subtree, Sequence[int]]] = [(root_of(version), range(len(keys)))]
    while pending:
        nodes = load(database, [subtree for subtree, _ in pending])
        below: list[tuple[Subtree, Sequence[int]]] = []
        for (subtree, wanted), node in zip(pending, nodes, strict=True):
            if isinstance(node, GpustoreError):
                for i in wanted:
                    found[i] = node
                continue
            skip = len(subtree.prefix)
            if isinstance(node, Leaf):
                for i in wanted:
                    row = node.keys.find(keys[i][skip:])
                    if row >= 0:
                        found[i] = node.value(row)
                continue
            by_row: dict[int, list[int]] = {}
            for i in wanted:
                row = node.keys.floor(keys[i][skip:])
                if row >= 0:
                    by_row.setdefault(row, []).append(i)
            for row, some in by_row.items():
                one = child(node, row, subtree)
                inside = [i for i in some if keys[i].startswith(one.prefix)]
                if inside:
                    below.append((one, inside))
        pending = below
    return found


class LeafRows(NamedTuple):
    """A range of entries of a leaf.

    Attributes
    ----------
    leaf : Leaf
    prefix : bytes
        Prefix of the stored keys.
    low, high : int
        The rows from `low` to before `high`.
    """

    leaf: Leaf
    prefix: bytes
    low: int
    high: int

    @property
    def is_ascii(self) -> bool:
        """Whether all keys of the leaf are ASCII."""
        return self.prefix.isascii() and self.leaf.keys.data.isascii()

    def row_of(self, key: bytes) -> int:
        """Return the first row with a key that is not less than `key`; the end if all are less."""
        return child_rows(self.leaf, self.prefix, key, None).start


def child_rows(node: Leaf | Interior, prefix: bytes, low: bytes, high: bytes | None) -> range:
    """Return the rows of a node that can contain keys from `low` to before `high`.

    Parameters
    ----------
    node : Leaf or Interior
    prefix : bytes
        Prefix of its stored keys.
    low : bytes
    high : bytes or None
        Upper bound; None for none.
    """
    first, stop = 0, len(node.keys)
    if low > prefix:
        if not low.startswith(prefix):
            # All keys are greater, or all are less, as the prefix is.
            first = stop if low[: len(prefix)] > prefix else 0
        elif isinstance(node, Leaf):
            first = node.keys.rank(low[len(prefix) :])
        else:
            first = max(0, node.keys.floor(low[len(prefix) :]))
    if high is not None:
        if high <= prefix:
            stop = 0
        elif high.startswith(prefix):
            stop = node.keys.rank(high[len(prefix) :])
    return range(first, max(first, stop))


def leaves(
    database: Database, version: Version, low: bytes, high: bytes | None
) -> Iterator[LeafRows]:
    """Yield the entries from `low` to before `high`, in the order of their keys.

    Raises
    ------
    CorruptChunkError and others
        If a node on the way is damaged.
    """
    if not version.is_empty:
        yield from _leaves(database, iter([root_of(version)]), low, high, set(), 0)


def _leaves(
    database: Database,
    subtrees: Iterator[Subtree],
    low: bytes,
    high: bytes | None,
    seen: set[Location],
    above_nbytes: int,
) -> Iterator[LeafRows]:
    """Yield the entries of some subtrees, below nodes that take `above_nbytes` of memory."""
    while some := list(islice(subtrees, _LEAVES_AT_ONCE)):
        for location in (subtree.location for subtree in some):
            if location in seen:
                # A few nodes that share their children would have more keys than there are atoms.
                raise database.wrong(location, "The node is referred to twice in one tree")
            seen.add(location)
        for subtree, node in zip(some, load(database, some), strict=True):
            if isinstance(node, GpustoreError):
                raise node
            rows = child_rows(node, subtree.prefix, low, high)
            if isinstance(node, Leaf):
                if rows:
                    yield LeafRows(node, subtree.prefix, rows.start, rows.stop)
            else:
                nbytes = above_nbytes + node.memory_nbytes
                database.check_path_nbytes(subtree.location, nbytes)
                below = map(partial(child, node, subtree=subtree), rows)
                yield from _leaves(database, below, low, high, seen, nbytes)
