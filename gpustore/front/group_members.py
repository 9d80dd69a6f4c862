"""Members of groups: :class:`GroupMembers`, what a group shows without being changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self, TypeVar

from gpustore.drivers.base import OpenMode
from gpustore.errors import GpustoreError, MetadataError, NotFoundError
from gpustore.front.group_access import GroupAccess
from gpustore.front.group_array import MemberArray
from gpustore.front.shown_group import ShownGroup
from gpustore.front.store import TensorStore
from gpustore.hierarchy.attributes import Attributes
from gpustore.hierarchy.nodes import Hierarchy
from gpustore.hierarchy.tree import Tree, tree_text
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.logical_path import join, logical_path
from gpustore.metadata.node import Node
from gpustore.runtime.future import Future, failed
from gpustore.strict_json.near_names import near_names

T = TypeVar("T")


class GroupMembers(ShownGroup):
    """Place of a group, and its members by path."""

    __slots__ = ("__weakref__", "_access", "_attrs", "_base", "_hierarchy", "_path")

    _hierarchy: Hierarchy
    _access: GroupAccess
    _path: str
    _attrs: Attributes
    _base: KvStore.Spec

    @classmethod
    def _of(
        cls, hierarchy: Hierarchy, access: GroupAccess, node: Node, base: KvStore.Spec | None = None
    ) -> Self:
        group = cls.__new__(cls)
        group._hierarchy = hierarchy
        group._access = access
        group._path = node.path
        group._attrs = hierarchy.attributes(node, access.executor, writable=access.writable)
        group._base = base or KvStore(hierarchy.store, hierarchy.root).spec(retain_context=True)
        return group

    # ---- what it is

    @property
    def zarr_format(self) -> int:
        """Version of the Zarr format, 2 or 3."""
        return self._hierarchy.zarr_format

    @property
    def path(self) -> str:
        """Normalised path from the root of the hierarchy; empty for the root."""
        return self._path

    @property
    def name(self) -> str:
        """Path from the root of the hierarchy, with a leading slash."""
        return f"/{self._path}"

    @property
    def basename(self) -> str:
        """Last segment of the path."""
        return self._path.rpartition("/")[2]

    @property
    def attrs(self) -> Attributes:
        """User attributes, a mutable mapping; see :class:`Attributes`."""
        return self._attrs

    @property
    def kvstore(self) -> KvStore:
        """Kvstore with the path of the group."""
        return KvStore(self._hierarchy.store, self._hierarchy.prefix(self._path))

    @property
    def url(self) -> str:
        """URL that opens the group again, with the root of the hierarchy."""
        url = self._base.without_context().url
        return f"{url}|{self._driver_id}:{self._path}"

    @property
    def readable(self) -> bool:
        """Whether the arrays of the group can be read."""
        return self._access.readable

    @property
    def writable(self) -> bool:
        """Whether the group and its arrays can be changed."""
        return self._access.writable

    @property
    def is_consolidated(self) -> bool:
        """Whether the group knows its members from consolidated metadata."""
        return self._hierarchy.consolidated is not None

    @property
    def _driver_id(self) -> str:
        return f"zarr{self.zarr_format}"

    # ---- looking

    def open(self, path: str | Node) -> Future[TensorStore | Self]:
        """Open a member at any depth.

        Parameters
        ----------
        path : str or Node
            A node that the group has described is opened without reading its metadata again.

        Returns
        -------
        Future of TensorStore or Group

        Raises
        ------
        InvalidKeyError
            At once, if the path contains ``.`` or ``..``.
        NotFoundError
            Through the Future, if there is no member; it is also a KeyError.
        MetadataError, UnsupportedError, StoreIOError
            Through the Future.
        """
        if isinstance(path, Node):
            described = path
            return self._reading(lambda: self._opened(described))
        whole = self._whole(path)
        return self._reading(lambda: self._opened(self._node(whole)))

    def _node(self, whole: str) -> Node:
        """Read the member at a path from the root; raises NotFoundError."""
        node = self._hierarchy.read(whole)
        if node is None:
            raise self._not_found(whole)
        return node

    def _opened(self, node: Node) -> TensorStore | Self:
        """Open a member that has been read."""
        if node.error is not None:
            raise node.error
        if node.is_group:
            return self._of(self._hierarchy, self._access, node, self._base)
        array = MemberArray(self._hierarchy, self._access, self._base, node.path)
        return array.opened(array.spec(OpenMode(), {}), node)

    def nodes(self, paths: Iterable[str]) -> Future[list[Node | None]]:
        """Describe members by path, at any depth, read together; nothing is listed or opened.

        Parameters
        ----------
        paths : iterable of str
            Paths relative to the group.

        Returns
        -------
        Future of list
            :class:`Node` of each path, None where there is none. A member that cannot be read is a
            node with an ``error``.

        Raises
        ------
        InvalidKeyError
            At once, if a path contains ``.`` or ``..``.
        """
        wholes = [self._whole(path) for path in paths]
        return self._reading(lambda: self._hierarchy.read_many(wholes))

    def members(self, max_depth: int | None = 0) -> Future[dict[str, Node]]:
        """Describe the members of the group without opening them.

        Parameters
        ----------
        max_depth : int or None
            Number of levels of groups below the group to include; None for all.

        Returns
        -------
        Future of dict
            :class:`Node` by path relative to the group, level by level, sorted by name. A member
            that cannot be read is a node with an ``error``.
        """
        return self._reading(lambda: dict(self._walk(max_depth)))

    def arrays(self) -> Future[dict[str, Node]]:
        """Describe the arrays directly in the group without opening them.

        Returns
        -------
        Future of dict
            :class:`Node` by name, sorted.
        """
        return self._reading(lambda: {n: node for n, node in self._walk(0) if node.is_array})

    def groups(self) -> Future[dict[str, Node]]:
        """Describe the groups directly in the group without opening them.

        Returns
        -------
        Future of dict
            :class:`Node` by name, sorted.
        """
        return self._reading(lambda: {n: node for n, node in self._walk(0) if node.is_group})

    def walk(self, max_depth: int | None = None) -> Iterator[tuple[str, Node]]:
        """Yield path and description of the members, level by level, sorted by name. Blocks.

        Parameters
        ----------
        max_depth : int or None
            Number of levels of groups below the group to include; None for all.
        """
        return self._walk(max_depth)

    def _walk(self, max_depth: int | None) -> Iterator[tuple[str, Node]]:
        skip = len(self._path) + 1 if self._path else 0
        for node in self._hierarchy.walk(self._path, max_depth):
            yield node.path[skip:], node

    def keys(self) -> list[str]:
        """Return the names of the members, sorted, unreadable ones included."""
        return list(self.members().result())

    def values(self) -> Iterator[TensorStore | Self]:
        """Open the members one after the other, sorted by name; raises the errors of :meth:`open`.

        Listing them has read their metadata, so that opening them reads nothing more.
        """
        return (member for _, member in self.items())

    def items(self) -> Iterator[tuple[str, TensorStore | Self]]:
        """Yield names and opened members; see :meth:`values`."""
        for name, node in self.members().result().items():
            yield name, self._opened(node)

    def tree(self, max_depth: int | None = None) -> Tree:
        """Draw the hierarchy below the group as text, with shapes and data types of arrays.

        Parameters
        ----------
        max_depth : int or None
            Number of levels of groups below the group to include; None for all.
        """
        return Tree(tree_text(self.name, self._walk(max_depth)))

    def __getitem__(self, path: str) -> Any:
        """Open the member at a path, a :class:`TensorStore` or Group; waits, see :meth:`open`."""
        return self.open(path).result()

    def __contains__(self, path: object) -> bool:
        if not isinstance(path, str):
            return False
        whole = self._whole(path)
        return self._reading(lambda: self._hierarchy.read(whole)).result() is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    # ---- machinery

    def _whole(self, path: str) -> str:
        return join(self._path, logical_path(path))

    def _not_found(self, whole: str) -> NotFoundError:
        above, _, name = whole.rpartition("/")
        try:
            beside = [node.path.rpartition("/")[2] for node in self._hierarchy.children(above)]
        except GpustoreError:
            beside = []
        return NotFoundError(
            f"No array or group: {self._hierarchy.where(whole)} does not exist"
            f"{near_names(name, beside)}",
            key=whole,
        )

    def _reading(self, run: Callable[[], T]) -> Future[T]:
        if not self.readable:
            return failed(MetadataError("Source does not support reading."))
        if self._hierarchy.store.is_local:
            return Future.deferred(run, self._access.executor)
        return self._access.executor.submit(run)
