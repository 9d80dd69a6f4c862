"""Groups: :class:`Group`, a place in a hierarchy of arrays.

Methods with I/O return Futures; operators (``group["a/b"]``, ``in``, ``len``, ``del``) wait.
``docs/design/004-hierarchy.md`` has the rules. Names follow zarr-python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gpustore.drivers.base import OpenMode
from gpustore.errors import (
    MetadataError,
    MismatchError,
    NotFoundError,
    UnsupportedError,
    prefixing,
)
from gpustore.front.group_access import GroupAccess, hierarchy_at
from gpustore.front.group_array import MemberArray
from gpustore.front.group_members import GroupMembers
from gpustore.front.store import TensorStore
from gpustore.hierarchy.attributes import json_attributes
from gpustore.hierarchy.nodes import Hierarchy, exists_error
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.logical_path import ancestors, check_node_names
from gpustore.metadata.node import Node
from gpustore.runtime.context import Context
from gpustore.runtime.future import Future, failed
from gpustore.strict_json.parsing import JsonValue

T = TypeVar("T")


class Group(GroupMembers):
    r"""Group of arrays and groups, made by :func:`gpustore.open_group`.

    Paths are relative to the group and normalised as the Zarr v2 specification demands: ``"a/b"``,
    ``"/a//b/"`` and ``"a\b"`` are the same, ``.`` and ``..`` are errors.

    Examples
    --------
    >>> import gpustore
    >>> root = gpustore.open_group("memory://a|zarr3:", create=True).result()
    >>> store = root.create_array("ct/raw", dtype="uint16", shape=[4, 6]).result()
    >>> store.attrs["unit"] = "HU"
    >>> root["ct"].keys()
    ['raw']
    >>> print(root.tree())
    /
    └── ct
        └── raw (4, 6) uint16
    """

    __slots__ = ()

    def __init__(self) -> None:
        raise TypeError("use gpustore.open_group(...).result() to get a Group")

    def resolve(self) -> Future[Group]:
        """Read the group again, with its consolidated metadata if it was opened with them.

        Returns
        -------
        Future of Group

        Raises
        ------
        NotFoundError
            Through the Future, if the group no longer exists.
        """
        return self._reading(lambda: self._reopened(self._access.use_consolidated))

    def _reopened(self, use_consolidated: bool | None) -> Group:
        mine = self._hierarchy
        hierarchy = Hierarchy(
            *(mine.store, mine.root, mine.zarr_format, mine.limits, mine.cache, mine.device_pool)
        )
        return open_node(hierarchy, self._access, self._path, use_consolidated=use_consolidated)

    # ---- making

    def create_group(
        self, path: str, *, attributes: Mapping[str, Any] | None = None
    ) -> Future[Group]:
        """Make a group and the groups above it.

        Parameters
        ----------
        path : str
            Path relative to the group.
        attributes : mapping, optional
            JSON values.

        Returns
        -------
        Future of Group

        Raises
        ------
        InvalidKeyError, MetadataError
            Immediately for an illegal path or attributes, or through the Future.
        AlreadyExistsError
            Through the Future.
        MismatchError
            Through the Future, if a node above it is an array.
        """
        return self._group(path, attributes, OpenMode(create=True))

    def require_group(
        self, path: str, *, attributes: Mapping[str, Any] | None = None
    ) -> Future[Group]:
        """Open a group, or make it and the groups above it.

        Parameters
        ----------
        path : str
            Path relative to the group.
        attributes : mapping, optional
            JSON values of a new group; an existing one keeps its own.

        Returns
        -------
        Future of Group

        Raises
        ------
        InvalidKeyError, MetadataError
            Immediately for an illegal path or attributes, or through the Future.
        MismatchError
            Through the Future, if the node or one above it is an array.
        """
        return self._group(path, attributes, OpenMode(open=True, create=True))

    def _group(
        self, path: str, attributes: Mapping[str, Any] | None, mode: OpenMode
    ) -> Future[Group]:
        whole = self._whole(path)
        check_node_names(whole, self.zarr_format)
        given = json_attributes(attributes or {})
        return self._writing(lambda: create_node(self._hierarchy, self._access, whole, given, mode))

    def create_array(
        self,
        path: str,
        *,
        dtype: Any = None,
        shape: Any = None,
        delete_existing: bool | None = None,
        attributes: Mapping[str, Any] | None = None,
        metadata: Any = None,
        rank: int | None = None,
        domain: Any = None,
        chunk_layout: Any = None,
        codec: Any = None,
        fill_value: Any = None,
        dimension_units: Any = None,
        schema: Any = None,
        chunks: Any = None,
        shards: Any = None,
        dims: Any = None,
        units: Any = None,
        data: Any = None,
    ) -> Future[TensorStore]:
        """Make an array and the groups above it.

        Parameters
        ----------
        path : str
            Path relative to the group.
        delete_existing : bool, optional
            Delete everything at the path first.
        attributes : mapping, optional
            JSON values. xarray's names of dimensions among them, ``_ARRAY_DIMENSIONS``, become
            those of Zarr v3; in Zarr v2 names of dimensions become this attribute.
        metadata : JSON object, optional
            Members of the array's metadata document, in the form of a spec's ``metadata``.
        dtype, shape, rank, domain, chunk_layout, codec, fill_value, dimension_units, schema
            Properties of the array; see :func:`gpustore.open`.
        chunks, shards, dims, units, data
            Properties and elements in short words; see :func:`gpustore.open`.

        Returns
        -------
        Future of TensorStore
            Ready when `data` are stored.

        Raises
        ------
        InvalidKeyError, MetadataError, TypeError
            Immediately, or through the Future.
        AlreadyExistsError
            Through the Future, if a node exists at the path.
        MismatchError
            Through the Future, if a node above it is an array.
        """
        mode = OpenMode(create=True, delete_existing=bool(delete_existing))
        constraints = {
            "dtype": dtype,
            "shape": shape,
            "rank": rank,
            "domain": domain,
            "chunk_layout": chunk_layout,
            "codec": codec,
            "fill_value": fill_value,
            "dimension_units": dimension_units,
            "schema": schema,
            "chunks": chunks,
            "shards": shards,
            "dims": dims,
            "units": units,
        }
        make = self._array(path).making(mode, attributes, metadata, constraints, data)
        return self._writing(make)

    def require_array(
        self,
        path: str,
        *,
        attributes: Mapping[str, Any] | None = None,
        metadata: Any = None,
        **constraints: Any,
    ) -> Future[TensorStore]:
        """Open an existing array, which must fulfil the constraints, or make it.

        Parameters
        ----------
        path : str
            Path relative to the group.
        attributes : mapping, optional
            Attributes of a new array; an existing one keeps its own.
        metadata, **constraints
            Properties of the array; see :meth:`create_array`.

        Returns
        -------
        Future of TensorStore

        Raises
        ------
        MismatchError
            Through the Future, if an existing array or group differs. Other errors are those of
            :meth:`create_array`.
        """
        mode = OpenMode(open=True, create=True)
        make = self._array(path).making(mode, attributes, metadata, constraints)
        return self._writing(make)

    # ---- deleting and consolidating

    def delete(self, path: str) -> Future[None]:
        """Delete a member and everything below it.

        Parameters
        ----------
        path : str
            Path relative to the group.

        Returns
        -------
        Future of None
            Ready when nothing of it is stored any more.

        Raises
        ------
        NotFoundError
            Through the Future, if there is no member.
        """
        whole = self._whole(path)
        if whole == self._path:
            raise MetadataError("a group cannot delete itself; delete it through the one above")
        return self._writing(lambda: self._hierarchy.delete(whole))

    def __delitem__(self, path: str) -> None:
        self.delete(path).result()

    def consolidate(self) -> Future[Group]:
        """Write the metadata of all members, at any depth, into one document.

        Opening the group then takes one request. A change through a Group removes the document. No
        other program may write during the call.

        Returns
        -------
        Future of Group
            The group, opened with consolidated metadata.

        Raises
        ------
        MetadataError, StoreIOError
            Through the Future, if a member cannot be read: nothing is written then.
        """

        def run() -> Group:
            self._hierarchy.invalidate(ancestors(self._path))
            self._hierarchy.consolidate(self._path)
            return self._reopened(use_consolidated=True)

        return self._writing(run)

    # ---- machinery

    def _array(self, path: str) -> MemberArray:
        return MemberArray(self._hierarchy, self._access, self._base, self._whole(path))

    def _writing(self, run: Callable[[], T]) -> Future[T]:
        if not self.writable:
            return failed(MetadataError("Destination does not support writing."))
        return self._access.executor.submit(run, drain=True)

    def _json(self) -> dict[str, JsonValue]:
        kvstore = KvStore(self._hierarchy.store, self._hierarchy.root)
        json: dict[str, JsonValue] = {
            "driver": self._driver_id,
            "kvstore": kvstore.spec(unbind_context=True).to_json(),
        }
        if self._path:
            json["path"] = self._path
        return json

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Group):
            return NotImplemented
        return self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    @property
    def _place(self) -> tuple[Any, ...]:
        hierarchy = self._hierarchy
        return hierarchy.store.identity, hierarchy.prefix(self._path), self.zarr_format

    def __reduce__(self) -> tuple[Any, ...]:
        if self._hierarchy.store.id == "memory":
            raise UnsupportedError("a group in memory cannot be pickled: its bytes would be lost")
        access = self._access
        state = (access.readable, access.writable, access.use_consolidated, access.device)
        return _reopen, (self._json(), *state)


def open_node(
    hierarchy: Hierarchy, access: GroupAccess, path: str, *, use_consolidated: bool | None
) -> Group:
    """Open an existing group. Blocks.

    Raises
    ------
    NotFoundError
        If there is no node.
    MismatchError
        If the node is an array.
    """
    with prefixing("Error opening group"):
        node = hierarchy.open(path, use_consolidated=use_consolidated)
        if node is None:
            raise NotFoundError(f"{hierarchy.where(path)} does not exist", key=path)
        return _opened(hierarchy, access, node)


def _opened(hierarchy: Hierarchy, access: GroupAccess, node: Node) -> Group:
    if node.error is not None:
        raise node.error
    if node.is_array:
        raise MismatchError(f"{node.where} is an array; open it with gpustore.open", key=node.path)
    return Group._of(hierarchy, access, node)


def create_node(
    hierarchy: Hierarchy,
    access: GroupAccess,
    path: str,
    attributes: Mapping[str, JsonValue],
    mode: OpenMode,
) -> Group:
    """Make a group, or open an existing one if `mode` allows it. Blocks.

    Raises
    ------
    AlreadyExistsError
        If a node exists and `mode` only creates.
    """
    with prefixing("Error creating group"):
        if mode.delete_existing:
            hierarchy.invalidate(ancestors(path))
            hierarchy.clear(path)
        if mode.open:
            node = hierarchy.read(path)
            if node is not None:
                return _opened(hierarchy, access, node)
        if not hierarchy.create_group(path, attributes) and not mode.open:
            raise exists_error(hierarchy, path)
    return open_node(hierarchy, access, path, use_consolidated=False)


def _reopen(
    json: dict[str, JsonValue],
    read: bool,
    write: bool,
    use_consolidated: bool | None,
    device: str | None,
) -> Group:
    context = Context()
    zarr_format = 2 if json["driver"] == "zarr2" else 3
    hierarchy = hierarchy_at(KvStore.Spec(json["kvstore"]), zarr_format, context)
    access = GroupAccess.of(
        context,
        hierarchy.store,
        read,
        write,
        use_consolidated=use_consolidated,
        device=device,
    )
    return open_node(hierarchy, access, json.get("path", ""), use_consolidated=use_consolidated)
