"""Nodes of the B+tree of an OCDBT database, as columns.

A leaf has keys and, for each, the value itself or its location. An interior node has, for each
child, its smallest key and its location. Keys are stored without the prefix that they share with
the key before. In a child they are stored without the first `prefix_nbytes` bytes of the key of its
entry, with which all keys in the child begin.

========  ===========================================================================
part      content
========  ===========================================================================
begin     height (byte; 0 for a leaf), table of data files, number of entries
keys      columns: common length (from the second on), length of the rest, in an interior
          node `prefix_nbytes`; then the rests
leaf      columns: length of value, kind (byte; 0 inline, 1 in a data file), and for values
          in data files file and offset; then the inline values
interior  columns: file, offset, length, number of keys, bytes of nodes, bytes of values in
          data files
========  ===========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from gpustore.errors import GpustoreError
from gpustore.kvstores.ocdbt.columns import UINT64_MAX, encode_varint, encode_varints, ragged
from gpustore.kvstores.ocdbt.config import MAX_INLINE_NBYTES
from gpustore.kvstores.ocdbt.envelope import BTREE_NODE, open_body, seal
from gpustore.kvstores.ocdbt.keys import Keys, read_keys
from gpustore.kvstores.ocdbt.location import (
    MAX_OFFSET,
    DataFile,
    FileTable,
    Location,
    files_nbytes,
    read_file_indices,
    read_files,
    read_locations,
)

if TYPE_CHECKING:
    from gpustore.kvstores.ocdbt.columns import Int64s, Reader, UInt64s
    from gpustore.runtime.buffer import Buffer


MAX_ENTRIES: Final = 1 << 20


class Totals(NamedTuple):
    """Sums over a subtree; TensorStore calls them statistics.

    Attributes
    ----------
    num_keys : int
    tree_nbytes : int
        Length of the encoded nodes.
    indirect_nbytes : int
        Length of the values in data files.
    """

    num_keys: int
    tree_nbytes: int
    indirect_nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A leaf of n entries.

    Attributes
    ----------
    files : tuple of DataFile
    keys : Keys, length n
    nbytes : array of int64, shape (n,)
        Lengths of the values in bytes.
    file : array of int64, shape (n,)
        Index into `files`, -1 for an inline value.
    offset : array of int64, shape (n,)
        First byte of the value in its data file or in `inline`.
    inline : bytes
    """

    files: tuple[DataFile, ...]
    keys: Keys
    nbytes: Int64s
    file: Int64s
    offset: Int64s
    inline: bytes

    height = 0

    def value(self, row: int) -> bytes | Location:
        """Return an inline value, or the location of a value."""
        file, offset, nbytes = int(self.file[row]), int(self.offset[row]), int(self.nbytes[row])
        if file < 0:
            return self.inline[offset : offset + nbytes]
        return Location(self.files[file], offset, nbytes)

    @property
    def memory_nbytes(self) -> int:
        """Memory of the columns in bytes, including that of the keys as objects."""
        entries = self.keys.memory_nbytes + 24 * len(self.keys)
        return entries + len(self.inline) + files_nbytes(self.files)

    def compact(self) -> Leaf:
        """Return the leaf without data files and inline bytes that no entry refers to."""
        inline = self.file < 0
        others = np.flatnonzero(~inline)
        table = _used_files(self.files, self.file[others])
        file = np.full(len(self.file), -1, np.int64)
        file[others] = _indices(self.files, self.file[others], table)
        nbytes = self.nbytes[inline]
        values = ragged(self.inline, self.offset[inline], nbytes)
        offset = self.offset.copy()
        offset[inline] = np.cumsum(nbytes) - nbytes
        return Leaf(tuple(table.index), self.keys, self.nbytes, file, offset, values)

    def encode(self, level: int | None) -> bytes:
        """Return the bytes of the node, which is compact, compressed with this level."""
        inline = self.file < 0
        others = np.flatnonzero(~inline)
        body = b"".join(
            (
                b"\0",
                FileTable(self.files).encoded,
                encode_varint(len(self.keys)),
                self.keys.encode(),
                encode_varints(self.nbytes),
                (~inline).astype(np.uint8).tobytes(),
                encode_varints(self.file[others]),
                encode_varints(self.offset[others]),
                self.inline,
            )
        )
        return seal(BTREE_NODE, body, level)

    def totals(self, encoded_nbytes: int) -> Totals:
        """Return the sums of the node with this encoded length."""
        indirect = _total(self.nbytes[self.file >= 0])
        return Totals(len(self.keys), encoded_nbytes, indirect)


@dataclass(frozen=True, slots=True, eq=False)
class Interior:
    """An interior node of n entries.

    Attributes
    ----------
    height : int
        Height of the node, at least 1.
    files : tuple of DataFile
    keys : Keys, length n
        Smallest key of each child.
    prefix_nbytes : array of int64, shape (n,)
        Length of the prefix of that key which the child's keys leave out.
    file : array of int64, shape (n,)
        Index into `files`.
    offset, nbytes : array of uint64, shape (n,)
    num_keys, tree_nbytes, indirect_nbytes : array of uint64, shape (n,)
        :class:`Totals` of the children.
    """

    height: int
    files: tuple[DataFile, ...]
    keys: Keys
    prefix_nbytes: Int64s
    file: Int64s
    offset: UInt64s
    nbytes: UInt64s
    num_keys: UInt64s
    tree_nbytes: UInt64s
    indirect_nbytes: UInt64s

    def child(self, row: int) -> Location:
        """Return the location of a child."""
        file = self.files[int(self.file[row])]
        return Location(file, int(self.offset[row]), int(self.nbytes[row]))

    def child_totals(self, row: int) -> Totals:
        """Return the sums of a child."""
        return Totals(
            int(self.num_keys[row]), int(self.tree_nbytes[row]), int(self.indirect_nbytes[row])
        )

    @property
    def memory_nbytes(self) -> int:
        """Memory of the columns in bytes, including that of the keys as objects."""
        return self.keys.memory_nbytes + 72 * len(self.keys) + files_nbytes(self.files)

    def encode(self, level: int | None) -> bytes:
        """Return the bytes of the node, compressed with this level."""
        table = _used_files(self.files, self.file)
        columns = (
            _indices(self.files, self.file, table),
            *(self.offset, self.nbytes),
            *(self.num_keys, self.tree_nbytes, self.indirect_nbytes),
        )
        body = b"".join(
            (
                bytes((self.height,)),
                table.encoded,
                encode_varint(len(self.keys)),
                self.keys.encode(encode_varints(self.prefix_nbytes)),
                *map(encode_varints, columns),
            )
        )
        return seal(BTREE_NODE, body, level)

    def totals(self, encoded_nbytes: int) -> Totals:
        """Return the sums of the node with this encoded length."""
        return Totals(
            _total(self.num_keys),
            _total(self.tree_nbytes, encoded_nbytes),
            _total(self.indirect_nbytes),
        )


def _total(column: Int64s | UInt64s, more: int = 0) -> int:
    """Return a sum, capped so that wrong numbers of a file still make one that can be stored."""
    total: int = sum(column.tolist(), more)
    return min(total, UINT64_MAX)


def _used_files(files: tuple[DataFile, ...], file: Int64s) -> FileTable:
    return FileTable(files[i] for i in np.unique(file).tolist())


def _indices(files: tuple[DataFile, ...], file: Int64s, table: FileTable) -> Int64s:
    """Return indices into the table to be written."""
    index = np.array([table.index.get(one, 0) for one in files], np.int64)
    return index[file]


def read_node(data: Buffer, transitive: bytes, *, max_nbytes: int) -> Leaf | Interior:
    """Decode and check a node.

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
        reader = open_body(data, BTREE_NODE, max_nbytes=max_nbytes)
        height = reader.byte()
        files = read_files(reader, transitive, max_nbytes=max_nbytes)
        count = reader.varint(2**32 - 1)
        if not count:
            raise reader.error("Empty b-tree node")
        if count > MAX_ENTRIES:
            raise reader.error(
                f"B-tree node has arity {count}, which exceeds limit of {MAX_ENTRIES}"
            )
        keys, prefix = read_keys(reader, count, with_prefix=height > 0, max_nbytes=max_nbytes)
        node = (
            _read_interior(reader, height, files, keys, prefix)
            if height
            else _read_leaf(reader, files, keys)
        )
        reader.finish()
    except GpustoreError as error:
        raise error.prefixed("Error decoding b-tree node") from error.__cause__
    return node


def _read_leaf(reader: Reader, files: tuple[DataFile, ...], keys: Keys) -> Leaf:
    count = len(keys)
    nbytes = reader.varints(count, MAX_OFFSET)
    kind = reader.fixed(count, "u1")
    if int(kind.max()) > 1:
        raise reader.error(f"Invalid value kind: {int(kind.max())}")
    others = np.flatnonzero(kind)
    inline = kind == 0
    file = np.full(count, -1, np.int64)
    file[others] = read_file_indices(reader, files, len(others))
    offset = np.empty(count, np.int64)
    offset[others] = reader.varints(len(others), MAX_OFFSET)
    wrong = others[offset[others] > MAX_OFFSET - nbytes[others]]
    if len(wrong):
        i = int(wrong[0])
        raise reader.error(
            f"Invalid offset/length pair in {{offset={offset[i]}, length={nbytes[i]}}}"
        )
    inline_nbytes = nbytes[inline]
    longest = int(inline_nbytes.max(initial=0))
    if longest > MAX_INLINE_NBYTES:
        raise reader.error(
            f"Invalid inline value length {longest}, exceeds maximum of {MAX_INLINE_NBYTES}"
        )
    total = int(inline_nbytes.sum())
    offset[inline] = np.cumsum(inline_nbytes) - inline_nbytes
    return Leaf(files, keys, nbytes, file, offset, reader.take(total))


def _read_interior(
    reader: Reader, height: int, files: tuple[DataFile, ...], keys: Keys, prefix: Int64s
) -> Interior:
    count = len(keys)
    file, offset, nbytes = read_locations(reader, files, count)
    totals = [reader.varints64(count) for _ in range(3)]
    return Interior(height, files, keys, prefix, file, offset, nbytes, *totals)
