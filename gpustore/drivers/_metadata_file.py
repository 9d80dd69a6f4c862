"""The file that holds the metadata of an array: read, remembered, replaced.

A cache keeps parsed metadata and the described arrays of recent documents, because programs open
the same arrays repeatedly and checking takes time.
"""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from gpustore.drivers.format import ArrayDescription, Format
from gpustore.errors import GpustoreError, naming_key
from gpustore.kvstores.base import KvStoreDriver
from gpustore.kvstores.columns import ReadRequest, WriteRequest
from gpustore.metadata.document import parse_shape
from gpustore.metadata.node import Node
from gpustore.runtime.cache import Cache, Entry, Space
from gpustore.runtime.limits import Limits
from gpustore.strict_json.parsing import parse

Decode: TypeAlias = Callable[..., Any]
"""The function ``decode`` of a :class:`~gpustore.drivers.format.Format`."""

_REMEMBERED_NBYTES = 16 << 10
"""Longest document whose parsed form is cached, in bytes."""


@lru_cache(maxsize=64)
def _remembered(decode: Decode, data: bytes, limits: Limits) -> Any:
    """Return the metadata in `data`."""
    value = parse(
        data,
        where="",
        max_nbytes=limits.metadata_nbytes,
        max_depth=limits.metadata_depth,
        non_finite=True,
    )
    shape = value.pop("shape", None) if isinstance(value, dict) else None
    # A zarr-python chunk may have size 0 along a dimension of extent 0, and only there.
    if not isinstance(shape, list) or 0 in shape:
        return decode(data, where="", limits=limits)
    first = _first(decode, _Family(repr(value), data), limits)
    shape = parse_shape(shape, 0, rank=first.rank, max_rank=limits.rank)
    return first if shape == first.shape else first.with_shape(shape)


class _Family:
    """Documents that differ in shape alone: equal if the other members are.

    Arrays of one data set are often such a family, and opening one that was never seen then takes
    half the time.
    """

    __slots__ = ("_rest", "data")

    def __init__(self, rest: str, data: bytes) -> None:
        self._rest = rest
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Family) and self._rest == other._rest

    def __hash__(self) -> int:
        return hash(self._rest)


@lru_cache(maxsize=64)
def _first(decode: Decode, family: _Family, limits: Limits) -> Any:
    """Return the metadata in the first document of `family`."""
    return decode(family.data, where="", limits=limits)


class _Same:
    """One metadata object, which is not kept alive: it may be large, and slow to compare."""

    __slots__ = ("_hash", "_ref")

    def __init__(self, metadata: Any) -> None:
        self._ref = weakref.ref(metadata)
        self._hash = id(metadata)

    def __call__(self) -> Any:
        return self._ref()

    def __eq__(self, other: object) -> bool:
        metadata = self._ref()
        return isinstance(other, _Same) and metadata is not None and metadata is other()

    def __hash__(self) -> int:
        return self._hash


def described(format_: Any, metadata: Any, limits: Limits) -> ArrayDescription:
    """Return the array that `metadata` describe, from a cache of recent ones."""
    if metadata.original is not None:
        return described(format_, metadata.original, limits).with_shape(metadata.shape)
    return _described(format_, _Same(metadata), limits)


@lru_cache(maxsize=64)
def _described(format_: Any, metadata: _Same, limits: Limits) -> ArrayDescription:
    description: ArrayDescription = format_.describe(metadata(), limits=limits)
    return description


@dataclass(frozen=True, slots=True)
class MetadataFile:
    """The stored metadata document of an array, and its format."""

    format: Format
    store: KvStoreDriver
    key: str
    limits: Limits
    constraints: Any
    cache: Cache | None

    @property
    def name(self) -> str:
        """Name of the document for messages."""
        return self.store.describe(self.key)

    def load(self, bound: float = math.inf) -> tuple[Any, bytes]:
        """Return the metadata (None if there are none) and their generation.

        Parameters
        ----------
        bound : float
            Time in seconds since the epoch; metadata cached at this time or later are accepted.

        Raises
        ------
        MetadataError, UnsupportedError, LimitError, StoreIOError
            The error names the file.
        """
        if self.cache is None:
            data, generation = self._read()
        else:
            now = time.time()
            space = Space(self.store.identity, "metadata")
            [(entry, stamp)] = self.cache.find(space, [self.key], [None])
            if entry is not None and entry.read_at >= bound:
                data, generation = entry.value, entry.generation
            else:
                data, generation = self._read()
                if data is not None:
                    entry = Entry(data, len(data), generation, now)
                    self.cache.put(space, self.key, None, entry, stamp)
        if data is None:
            return None, generation
        return self._metadata(data), generation

    def of_node(self, node: Node) -> Any:
        """Return the metadata of a node that a hierarchy has read; raises the errors of
        :meth:`load`.
        """
        return self._metadata(node.encoded(), node.described)

    def of_value(self, data: bytes) -> Any:
        """Return the metadata in a document that was read before; raises the errors of
        :meth:`load`.
        """
        return self._metadata(data)

    def _metadata(self, data: bytes, where: str | None = None) -> Any:
        """Return the metadata in a document; `where` names it for messages unless its key does."""
        with self.blamed():
            return self.format.completed(self.constraints, self._decoded(data, where))

    def _read(self) -> tuple[bytes | None, bytes]:
        columns = self.store.read_many(
            ReadRequest([self.key], max_nbytes=self.limits.metadata_nbytes)
        )
        columns.raise_first()
        data = columns.value[0]
        return None if data is None else bytes(data), columns.generation[0]

    def _decoded(self, data: bytes, where: str | None) -> Any:
        if len(data) <= _REMEMBERED_NBYTES:
            # Decoding once more raises the error, with the name of this file.
            with contextlib.suppress(GpustoreError):
                return _remembered(self.format.decode, data, self.limits)
        return self.format.decode(data, where=where or self.name, limits=self.limits)

    def blamed(self) -> naming_key:
        """Return a context manager that attaches the key to errors about the contents of the
        document.
        """
        return naming_key(self.key)

    def save(self, metadata: Any, generation: bytes) -> bool:
        """Replace the metadata if their generation is still `generation`; return whether it was."""
        try:
            columns = self.store.write_many(
                WriteRequest([self.key], [metadata.encode()], [generation])
            )
        finally:
            if self.cache is not None:
                self.cache.forget(Space(self.store.identity, "metadata"), [self.key])
        columns.raise_first()
        return bool(columns.generation[0])
