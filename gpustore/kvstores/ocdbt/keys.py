"""Keys of a node of an OCDBT database: one string of bytes, and the beginning of each key in it."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from gpustore.errors import LimitError
from gpustore.kvstores.ocdbt.columns import encode_varints, ragged, ragged_indices
from gpustore.kvstores.ocdbt.location import common_nbytes

if TYPE_CHECKING:
    from gpustore.kvstores.ocdbt.columns import Int64s, Reader


MAX_KEY_NBYTES: Final = 65535
# Longer common begins are compared and put together key by key.
_COLUMNWISE_NBYTES: Final = 64
# Characters that are in few keys.
_SEPARATORS: Final = (b"\0", b"\n", b"\x7f")


class Keys:
    """Keys of a node, in ascending order.

    Parameters
    ----------
    data : bytes
        The keys, joined.
    start : array of int64, shape (n + 1,)
        Beginning of each key, and the end.
    """

    __slots__ = ("_list", "_lookups", "data", "start")

    def __init__(self, data: bytes, start: Int64s) -> None:
        self.data = data
        self.start = start
        self._list: list[bytes] | None = None
        self._lookups = 0

    @classmethod
    def of(cls, keys: list[bytes]) -> Keys:
        """Make the object from single keys."""
        start = np.zeros(len(keys) + 1, np.int64)
        np.cumsum([len(key) for key in keys], out=start[1:])
        return cls(b"".join(keys), start)

    def __len__(self) -> int:
        return len(self.start) - 1

    def __getitem__(self, index: int) -> bytes:
        if index < 0:
            index += len(self)
        return self.data[self.start[index] : self.start[index + 1]]

    @property
    def nbytes(self) -> Int64s:
        """Length of each key in bytes, an int64 array of shape (n,)."""
        return np.diff(self.start)

    @property
    def memory_nbytes(self) -> int:
        """Memory of the keys in bytes, including that of their Python objects."""
        return 2 * len(self.data) + 56 * len(self)

    def tolist(self, low: int = 0, high: int | None = None) -> list[bytes]:
        """Return the keys of a range of rows."""
        if self._list is not None:
            return self._list[low:high]
        start = self.start[low : None if high is None else high + 1].tolist()
        data = self.data
        return [data[a:b] for a, b in pairwise(start)]

    def tolist_after(self, prefix: bytes, low: int, high: int) -> list[bytes]:
        """Return the keys of a range of rows with `prefix` before each."""
        joined, separator = self._joined(prefix, low, high)
        if separator:
            return joined.split(separator)
        return [prefix + key for key in self.tolist(low, high)]

    def totext(self, prefix: bytes, low: int, high: int) -> list[str]:
        """Return the keys of a range of rows as text, with `prefix` before each."""
        joined, separator = self._joined(prefix, low, high)
        if separator:
            return joined.decode("utf-8", "surrogateescape").split(separator.decode())
        keys = self.tolist(low, high)
        return [(prefix + key).decode("utf-8", "surrogateescape") for key in keys]

    def _joined(self, prefix: bytes, low: int, high: int) -> tuple[bytes, bytes]:
        """Return the keys with a separator between them, which is empty if there is none."""
        # To split them takes a third of the time of cutting them out one by one.
        first, last = int(self.start[low]), int(self.start[high])
        data = self.data[first:last]
        separator = next((one for one in _SEPARATORS if one not in data and one not in prefix), b"")
        if not separator or low >= high:
            return b"", b""
        ends = self.start[low + 1 : high] - first
        joined = np.insert(np.frombuffer(data, np.uint8), ends, separator[0]).tobytes()
        if prefix:
            joined = prefix + joined.replace(separator, separator + prefix)
        return joined, separator

    def rank(self, key: bytes) -> int:
        """Return the number of keys that are less than `key`."""
        if self._list is None:
            self._lookups += 1
            if self._lookups * 16 > len(self):
                # Once there are many, they pay for objects that are found ten times faster.
                self._list = self.tolist()
        if self._list is not None:
            return bisect_left(self._list, key)
        low, high = 0, len(self)
        data, start = self.data, self.start
        while low < high:
            middle = (low + high) // 2
            if data[start[middle] : start[middle + 1]] < key:
                low = middle + 1
            else:
                high = middle
        return low

    def find(self, key: bytes) -> int:
        """Return the row of a key, -1 if missing."""
        row = self.rank(key)
        return row if row < len(self) and self[row] == key else -1

    def floor(self, key: bytes) -> int:
        """Return the row of the last key that is not greater than `key`, -1 if all are greater."""
        row = self.rank(key)
        return row if row < len(self) and self[row] == key else row - 1

    def take(self, rows: Int64s, skip: int = 0) -> Keys:
        """Return the keys of some rows, without their first `skip` bytes."""
        nbytes = self.nbytes[rows] - skip
        start = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(nbytes, out=start[1:])
        return Keys(ragged(self.data, self.start[rows] + skip, nbytes), start)

    def prefixed(self, prefix: bytes) -> Keys:
        """Return the same keys with `prefix` before each."""
        if not prefix:
            return self
        count = len(self)
        source = prefix + self.data
        first = np.zeros(2 * count, np.int64)
        first[1::2] = self.start[:-1] + len(prefix)
        nbytes = np.full(2 * count, len(prefix), np.int64)
        nbytes[1::2] = self.nbytes
        start = self.start + len(prefix) * np.arange(count + 1)
        return Keys(ragged(source, first, nbytes), start)

    def common_nbytes(self) -> Int64s:
        """Length of the prefix shared with the key before, in bytes; 0 for the first key."""
        count = len(self)
        common = np.zeros(count, np.int64)
        data = np.frombuffer(self.data, np.uint8)
        nbytes = self.nbytes
        limit = np.minimum(nbytes[1:], nbytes[:-1])
        rows = np.flatnonzero(limit > 0) + 1
        start = self.start
        position = 0
        while len(rows) and position < _COLUMNWISE_NBYTES:
            rows = rows[data[start[rows] + position] == data[start[rows - 1] + position]]
            position += 1
            common[rows] = position
            rows = rows[limit[rows - 1] > position]
        for row in rows.tolist():
            common[row] = common_nbytes(self[row - 1], self[row])
        return common

    def encode(self, between: bytes = b"") -> bytes:
        """Return the encoded columns; `between` stands before the bytes of the keys."""
        common = self.common_nbytes()
        rest = self.nbytes - common
        data = ragged(self.data, self.start[:-1] + common, rest)
        return b"".join((encode_varints(common[1:]), encode_varints(rest), between, data))


def read_keys(
    reader: Reader, count: int, *, with_prefix: bool, max_nbytes: int
) -> tuple[Keys, Int64s]:
    """Read keys and, in an interior node, the lengths of the prefixes of the children's keys.

    Parameters
    ----------
    reader : Reader
    count : int
        Number of keys, at least 1.
    with_prefix : bool
        Whether the node is an interior node.
    max_nbytes : int
        Largest length of all keys in bytes: keys share prefixes, so a small node can have long
        ones.
    """
    common = np.zeros(count, np.int64)
    common[1:] = reader.varints(count - 1, MAX_KEY_NBYTES)
    rest = reader.varints(count, MAX_KEY_NBYTES)
    nbytes = common + rest
    longest = int(nbytes.max())
    if longest > MAX_KEY_NBYTES:
        raise reader.error(f"Key length {longest} exceeds maximum of {MAX_KEY_NBYTES}")
    wrong = np.flatnonzero(common[1:] > nbytes[:-1])
    if len(wrong):
        i = int(wrong[0]) + 1
        raise reader.error(
            f"Child {i}: Prefix length of {common[i]} exceeds previous key length "
            f"of {nbytes[i - 1]}"
        )
    prefix = np.zeros(0, np.int64)
    if with_prefix:
        prefix = reader.varints(count, MAX_KEY_NBYTES)
        wrong = np.flatnonzero(prefix > nbytes)
        if len(wrong):
            i = int(wrong[0])
            raise reader.error(
                f"Key {i}: subtree common prefix length of {prefix[i]} exceeds key length "
                f"of {nbytes[i]}"
            )
    start = np.zeros(count + 1, np.int64)
    np.cumsum(nbytes, out=start[1:])
    if int(start[-1]) > max_nbytes:
        raise LimitError(
            f"b-tree node: {count} keys of {start[-1]} bytes, which exceeds the limit "
            f"ocdbt_node_nbytes of {max_nbytes}"
        )
    data = reader.take(int(rest.sum()))
    keys = Keys(_join_keys(data, common, rest, start), start)
    _check_order(reader, keys, common)
    return keys, prefix


def _join_keys(data: bytes, common: Int64s, rest: Int64s, start: Int64s) -> bytes:
    """Return the keys from their suffixes and the lengths of shared prefixes."""
    longest = int(common.max())
    if longest > _COLUMNWISE_NBYTES:
        return _join_one_by_one(data, common, rest)
    joined = np.empty(int(start[-1]), np.uint8)
    joined[ragged_indices(start[:-1] + common, rest)] = np.frombuffer(data, np.uint8)
    every = np.arange(len(common))
    for position in range(longest):
        # The latest key whose rest has this position, so that it is there already.
        source = np.maximum.accumulate(np.where(common <= position, every, 0))
        rows = np.flatnonzero(common > position)
        joined[start[rows] + position] = joined[start[source[rows]] + position]
    return joined.tobytes()


def _join_one_by_one(data: bytes, common: Int64s, rest: Int64s) -> bytes:
    keys = []
    key = b""
    position = 0
    for shared, nbytes in zip(common.tolist(), rest.tolist(), strict=True):
        key = key[:shared] + data[position : position + nbytes]
        position += nbytes
        keys.append(key)
    return b"".join(keys)


def _check_order(reader: Reader, keys: Keys, common: Int64s) -> None:
    """Raise CorruptChunkError unless each key is greater than the one before."""
    data = np.frombuffer(keys.data + b"\0", np.uint8).astype(np.int16)
    start, nbytes = keys.start, keys.nbytes
    first = common[1:]
    # What follows the common begin; the end of a key is less than any byte.
    before = np.where(first < nbytes[:-1], data[start[:-2] + np.minimum(first, nbytes[:-1])], -1)
    here = np.where(first < nbytes[1:], data[start[1:-1] + np.minimum(first, nbytes[1:])], -1)
    for i in np.flatnonzero(before >= here).tolist():
        if before[i] > here[i] or keys[i] >= keys[i + 1]:
            raise reader.error("Invalid key order")
