"""Nodes: the arrays and groups of a hierarchy, as their metadata documents describe them.

A :class:`Node` is parsed JSON. Thousands of them are made when a group is listed, so their members
are checked when they are asked for. A document that cannot be read gives a node with an
:attr:`~Node.error`, so that other nodes are listed all the same.

Source: Zarr v2 specification, "Hierarchies"; Zarr v3 core specification, "Metadata".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

import numpy as np

from gpustore.data_types.dtype import DTYPES
from gpustore.errors import GpustoreError, MetadataError, prefixing
from gpustore.metadata.component import is_opaque
from gpustore.metadata.data_type import V3DataType, parse_v2_dtype, parse_v3_data_type
from gpustore.metadata.document import parse_shape
from gpustore.metadata.zarr2 import Zarr2Metadata
from gpustore.metadata.zarr3 import Zarr3Metadata
from gpustore.runtime.limits import DEFAULT_LIMITS, Limits
from gpustore.strict_json.parsing import (
    JsonValue,
    dump,
    expect_object,
    expect_str,
    in_member,
    parse,
    quote,
    text,
)

NodeType: TypeAlias = Literal["array", "group"]

NODE_DOCUMENTS: Mapping[int, tuple[str, ...]] = {
    2: (".zarray", ".zgroup", ".zattrs"),
    3: ("zarr.json",),
}
"""Names of the metadata documents of a node, by version of the format."""

_LONG_NBYTES = 1 << 20

_EMPTY: Mapping[str, JsonValue] = MappingProxyType({})


class Node:
    """Array or group in a hierarchy; got from :meth:`gpustore.Group.members`.

    Attributes
    ----------
    path : str
        Logical path from the root of the hierarchy.
    zarr_format : {2, 3}
        Version of the format.
    node_type : {"array", "group"} or None
        Kind of the node, None if its document cannot be read.
    document : mapping of str to JsonValue
        ``zarr.json``, ``.zarray`` or ``.zgroup`` as stored. Not to be changed.
    error : GpustoreError or None
        Error of reading the document, None if it is readable.
    where : str
        Name of the document, or of the one that consolidates it, for messages.
    """

    __slots__ = (
        "_attributes",
        "_is_inside",
        "_limits",
        "document",
        "error",
        "node_type",
        "path",
        "where",
        "zarr_format",
    )  # fmt: skip

    def __init__(
        self,
        path: str,
        zarr_format: int,
        node_type: NodeType | None,
        document: Mapping[str, JsonValue] = _EMPTY,
        attributes: JsonValue = None,
        *,
        where: str = "",
        error: GpustoreError | None = None,
        limits: Limits = DEFAULT_LIMITS,
        is_inside: bool = False,
    ) -> None:
        self.path = path
        self.zarr_format = zarr_format
        self.node_type: NodeType | None = node_type
        self.document = document
        self.error = error
        self.where = where
        self._is_inside = is_inside
        self._attributes = attributes
        self._limits = limits

    @property
    def name(self) -> str:
        """Last segment of the path, ``""`` for the root."""
        return self.path.rpartition("/")[2]

    @property
    def is_array(self) -> bool:
        """Whether the node is an array."""
        return self.node_type == "array"

    @property
    def is_group(self) -> bool:
        """Whether the node is a group."""
        return self.node_type == "group"

    @property
    def attributes(self) -> Mapping[str, JsonValue]:
        """User attributes of the array or group; not to be changed.

        :attr:`gpustore.Group.attrs` changes the attributes of a group.

        Raises
        ------
        GpustoreError
            If they are not a JSON object, or the document cannot be read (``error``).
        """
        self._check()
        if self._attributes is None:
            return _EMPTY
        with prefixing(self._reading), in_member("attributes"):
            return expect_object(self._attributes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of an array, in elements.

        Raises
        ------
        MetadataError
            If the document has no valid shape, for instance since the node is a group.
        """
        return self._extents(self.document.get("shape"), "shape", 0)

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """Extents of a stored chunk (with sharding: of a shard) of an array, in elements.

        Raises
        ------
        MetadataError
            If the document has no valid chunk shape.
        """
        if self.zarr_format == 2:
            return self._extents(self.document.get("chunks"), "chunks", 1)
        try:
            chunks = self.document["chunk_grid"]["configuration"]["chunk_shape"]
        except (KeyError, TypeError):
            chunks = None
        return self._extents(chunks, "chunk_grid", 1)

    @property
    def dtype(self) -> V3DataType:
        """Data type of an array's elements; for records and raw bytes a ``numpy.dtype``.

        Raises
        ------
        MetadataError, UnsupportedError
            If the document has no data type that gpustore knows.
        """
        if self.error is not None:
            raise self.error
        member, parse_dtype = _DTYPE[self.zarr_format]
        value = self.document.get(member)
        try:
            if isinstance(value, str):
                return _named_dtype(self.zarr_format, value)
            return parse_dtype(value)
        except GpustoreError as error:
            raise self._located(error, member) from error.__cause__

    @property
    def metadata(self) -> Zarr2Metadata | Zarr3Metadata:
        """All metadata of an array, checked.

        Raises
        ------
        MetadataError, UnsupportedError, LimitError
            If a member of the document is not as expected.
        """
        self._check()
        kind = Zarr2Metadata if self.zarr_format == 2 else Zarr3Metadata
        return kind.decode(self.encoded(), where=self.described, limits=self._limits)

    def encoded(self) -> bytes:
        """Return the document as JSON bytes."""
        return dump(dict(self.document), non_finite=True)

    def _check(self) -> None:
        if self.error is not None:
            raise self.error

    @property
    def described(self) -> str:
        """Name of the document for messages; for a consolidated one with the path in it."""
        inside = f"{quote(self.path)} in " if self._is_inside else ""
        return inside + self.where

    def _reading(self) -> str:
        return f"Error reading {self.described}"

    def _located(self, error: GpustoreError, member: str) -> GpustoreError:
        with prefixing(self._reading), in_member(member):
            raise error

    def _extents(self, value: JsonValue, member: str, minimum: int) -> tuple[int, ...]:
        # Not within the contexts of `_located`: there may be 10 000 nodes.
        if self.error is not None:
            raise self.error
        try:
            return parse_shape(value, minimum, max_rank=self._limits.rank)
        except GpustoreError as error:
            raise self._located(error, member) from error.__cause__

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<Node {quote(self.path)} unreadable: {self.error.kind}>"
        if self.is_group:
            return f"<Node {quote(self.path)} group>"
        return f"<Node {quote(self.path)} array {describe(self)}>"


def describe(node: Node) -> str:
    """Return a text with shape and data type of an array, or with the error in them."""
    try:
        dtype = node.dtype
        shape = node.shape
    except GpustoreError as error:
        return f"({error.kind}: {error.text})"
    return f"{shape} {dtype if isinstance(dtype, np.dtype) else dtype.name}"


def _v2_dtype(value: JsonValue) -> V3DataType:
    stored = parse_v2_dtype(value)
    return stored if is_opaque(stored) else DTYPES[stored.name]


_DTYPE: Mapping[int, tuple[str, Callable[[JsonValue], V3DataType]]] = {
    2: ("dtype", _v2_dtype),
    3: ("data_type", parse_v3_data_type),
}


@lru_cache(maxsize=256)
def _named_dtype(zarr_format: int, name: str) -> V3DataType:
    return _DTYPE[zarr_format][1](name)


def parse_document(data: Any, *, name: str, where: str, limits: Limits) -> dict[str, JsonValue]:
    """Parse one metadata document of a hierarchy; NaN in it, as zarr-python writes it, is kept.

    Raises
    ------
    MetadataError
        If the document is not a JSON object; the message names `where`.
    """
    with prefixing(f"Error reading {where}", status="FAILED_PRECONDITION"):
        value = parse(
            data,
            where=name,
            max_nbytes=limits.hierarchy_nbytes,
            max_depth=limits.metadata_depth,
            non_finite=True,
            long_nbytes=_LONG_NBYTES,
        )
        return expect_object(value)


def parse_node(
    path: str,
    zarr_format: int,
    documents: Mapping[str, JsonValue],
    *,
    where: str,
    limits: Limits,
    is_inside: bool = False,
) -> Node:
    """Return the node that parsed documents describe; errors go into ``error``.

    Parameters
    ----------
    path : str
        Normalised logical path.
    zarr_format : {2, 3}
        Version of the format.
    documents : mapping of str to JsonValue
        Documents by name; at least one of those that make a node.
    where : str
        Name of the document, for messages.
    limits : Limits
        Limits of the metadata.
    is_inside : bool
        Whether `where` is consolidated metadata, which holds documents of other nodes, too.
    """
    node = Node(path, zarr_format, None, where=where, limits=limits, is_inside=is_inside)
    try:
        if zarr_format == 3:
            document = expect_object(documents["zarr.json"])
            said = document.get("node_type")
            if said not in ("array", "group"):
                with in_member("node_type"):
                    expect_str(said, choices=("array", "group"))
            is_array = said == "array"
            attributes = document.get("attributes")
        else:
            is_array = ".zarray" in documents
            document = expect_object(documents[".zarray" if is_array else ".zgroup"])
            attributes = documents.get(".zattrs")
        found = document.get("zarr_format")
        if found != zarr_format or isinstance(found, bool):
            raise MetadataError(
                f'"zarr_format": expected {zarr_format}, but received: {text(found)}'
            )
    except GpustoreError as error:
        node.error = error.prefixed(node._reading(), key=path)
        return node
    node.node_type = "array" if is_array else "group"
    node.document = document
    node._attributes = attributes
    return node


def group_document(zarr_format: int, attributes: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the document of a new group: ``.zgroup``, or ``zarr.json`` with its attributes."""
    if zarr_format == 2:
        return {"zarr_format": 2}
    return {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
