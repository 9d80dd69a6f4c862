"""A hierarchy in a kvstore: reading, making and deleting nodes by logical path. All calls block.

Every change of a node first removes the consolidated metadata of all groups above it, so that no
reader sees stale metadata; :meth:`Hierarchy.consolidate` writes them again.

Source: Zarr v2 specification, "Hierarchies"; Zarr v3 core specification, "Storage".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gpustore.errors import (
    AlreadyExistsError,
    ConflictError,
    GpustoreError,
    InvalidKeyError,
    LimitError,
    MismatchError,
    NotFoundError,
    UnsupportedError,
)
from gpustore.hierarchy.attributes import Attributes
from gpustore.kvstores.base import KvStoreDriver, prefix_end
from gpustore.kvstores.columns import ABSENT, ReadRequest, ReadState, WriteRequest
from gpustore.kvstores.json_file import JsonFile
from gpustore.metadata.consolidated import (
    V2_KEY,
    V3_MEMBER,
    ConsolidatedMetadata,
    consolidated_document,
)
from gpustore.metadata.logical_path import ancestors, check_node_names, join
from gpustore.metadata.node import (
    NODE_DOCUMENTS,
    Node,
    group_document,
    parse_document,
    parse_node,
)
from gpustore.resources.device_cache_pool import DeviceCachePool
from gpustore.runtime.cache import Cache
from gpustore.runtime.executor import Executor
from gpustore.runtime.limits import Limits
from gpustore.strict_json.parsing import JsonValue

_BATCH = 512
"""Nodes read in one request; their documents are in memory together."""

_ATTEMPTS = 100

_ATTRIBUTES = ".zattrs"


class Hierarchy:
    """The nodes below one path of a kvstore, in one format.

    Parameters
    ----------
    store : KvStoreDriver
    root : str
        Key prefix of the root: empty, or ending with a slash.
    zarr_format : {2, 3}
    limits : Limits
    cache : Cache or None
        Cache of the metadata of arrays; changes through the hierarchy remove their entries.
    device_pool : DeviceCachePool or None
        Caches of the chunks of arrays; deletions through the hierarchy remove their entries.
    """

    def __init__(
        self,
        store: KvStoreDriver,
        root: str,
        zarr_format: int,
        limits: Limits,
        cache: Cache | None = None,
        device_pool: DeviceCachePool | None = None,
    ) -> None:
        self.store = store
        self.root = root
        self.zarr_format = zarr_format
        self.limits = limits
        self.cache = cache
        self.device_pool = device_pool
        self.consolidated: ConsolidatedMetadata | None = None
        self._consolidated_at = ""

    def prefix(self, path: str) -> str:
        """Return the key prefix of a node: ending with a slash, or empty."""
        return f"{self.root}{path}/" if path else self.root

    def path_of(self, prefix: str) -> str:
        """Return the path of the node with this key prefix."""
        return prefix[len(self.root) :].rstrip("/")

    def where(self, path: str) -> str:
        """Return the name of a node's document for messages; the node need not exist."""
        return self.store.describe(self.prefix(path) + _group_name(self.zarr_format))

    def file(self, path: str, name: str) -> JsonFile:
        """Return one document of a node, unread."""
        return JsonFile(self.store, self.prefix(path) + name, self.limits, self.cache)

    # ------------------------------------------------------------------ reading

    def open(self, path: str, *, use_consolidated: bool | None) -> Node | None:
        """Read a node in one request, with its consolidated metadata if wanted.

        Parameters
        ----------
        path : str
            Normalised.
        use_consolidated : bool or None
            True demands them, False ignores them, None takes what is there.

        Raises
        ------
        MismatchError
            If they are demanded and there are none.
        MetadataError
            If they are wrong.
        """
        wanted = use_consolidated is not False
        names = [*NODE_DOCUMENTS[self.zarr_format]]
        if wanted and self.zarr_format == 2:
            names.append(V2_KEY)
        documents, errors = self._documents([path], names)
        node = self._node(path, documents[0], errors[0])
        self.consolidated = None
        if not wanted or node is None or node.error is not None:
            return node
        name = V2_KEY if self.zarr_format == 2 else NODE_DOCUMENTS[3][0]
        where = self.store.describe(self.prefix(path) + name)
        if V2_KEY in errors[0]:
            raise errors[0][V2_KEY]
        stored = documents[0].get(V2_KEY) if self.zarr_format == 2 else node.document.get(V3_MEMBER)
        if stored is not None:
            try:
                self.consolidated = ConsolidatedMetadata(
                    self.zarr_format, stored, where=where, limits=self.limits
                )
            except GpustoreError as error:
                error = error.prefixed(
                    f"Error reading {where}: Error parsing consolidated metadata", key=where
                )
                raise error.suffixed("; open with use_consolidated=False to ignore it") from None
            self._consolidated_at = path
        elif use_consolidated:
            raise MismatchError(
                f"No consolidated metadata in {where}, but use_consolidated=True; "
                f"Group.consolidate() writes them",
                key=self.prefix(path),
            )
        return node

    def read(self, path: str) -> Node | None:
        """Return the node at a normalised path, or None if there is none."""
        return self.read_many([path])[0]

    def read_many(self, paths: Sequence[str]) -> list[Node | None]:
        """Return the nodes at normalised paths, None where there is none."""
        found: dict[str, Node | None] = {}
        unknown = []
        for path in paths:
            known = self._known(path)
            if known is not None and known[1]:
                node = known[0].node(known[1])
                found[path] = None if node is None else self._placed(node, path)
            else:
                unknown.append(path)
        found |= {node.path: node for node in self._read(unknown)}
        return [found.get(path) for path in paths]

    def children(self, path: str) -> list[Node]:
        """Return the nodes directly below a normalised path, sorted by name."""
        return [node for nodes in self._levels([path], 0) for node in nodes]

    def walk(self, path: str, max_depth: int | None) -> Iterator[Node]:
        """Yield all nodes below a normalised path, level by level; children have depth 0."""
        for nodes in self._levels([path], max_depth):
            yield from nodes

    def _levels(self, paths: list[str], max_depth: int | None) -> Iterator[Iterator[Node]]:
        depth = 0
        while paths and (max_depth is None or depth <= max_depth):
            groups: list[str] = []
            yield self._level(paths, groups)
            paths = groups
            depth += 1

    def _level(self, paths: list[str], groups: list[str]) -> Iterator[Node]:
        """Children of all `paths`; puts the paths of the groups among them into `groups`."""
        for path in paths:
            known = self._known(path)
            found: Iterator[Node]
            if known is not None:
                source, below = known
                found = (
                    self._placed(node, join(path, node.name)) for node in source.children(below)
                )
            else:
                names = self._directories(path)
                found = self._read([join(path, name) for name in names])
            for node in found:
                if node.is_group:
                    groups.append(node.path)
                yield node

    def _directories(self, path: str) -> list[str]:
        """Names below a path that nodes can have; an empty one would be the path itself again."""
        try:
            names = self.store.list_directories(self.prefix(path))
            return [name for name in names if name not in ("", ".", "..") and "\\" not in name]
        except UnsupportedError as error:
            raise error.suffixed(
                "; what is in a group there is known from consolidated metadata, "
                "which Group.consolidate() writes where it was made"
            ) from None

    def _known(self, path: str) -> tuple[ConsolidatedMetadata, str] | None:
        """Consolidated metadata that cover what is below a path, and the path in them."""
        at, source = self._consolidated_at, self.consolidated
        if source is None or not (not at or path == at or path.startswith(f"{at}/")):
            return None
        return source, path[len(at) :].lstrip("/")

    @staticmethod
    def _placed(node: Node, path: str) -> Node:
        node.path = path
        return node

    def _read(self, paths: Sequence[str]) -> Iterator[Node]:
        """Yield the nodes at normalised paths; those where there is none are left out."""
        names = NODE_DOCUMENTS[self.zarr_format]
        for first in range(0, len(paths), _BATCH):
            part = paths[first : first + _BATCH]
            # One document may be as long as consolidated metadata, many only as metadata.
            one = len(part) == 1
            most = self.limits.hierarchy_nbytes if one else self.limits.metadata_nbytes
            for path, *found in zip(part, *self._documents(part, names, most)):
                node = self._node(path, *found)
                if node is not None and isinstance(node.error, LimitError) and not one:
                    node = self.read(path)
                if node is not None:
                    yield node

    def _documents(
        self, paths: Sequence[str], names: Sequence[str], max_nbytes: int | None = None
    ) -> tuple[list[dict[str, JsonValue]], list[dict[str, GpustoreError]]]:
        """Return the parsed documents of some nodes by name, and what went wrong with others."""
        prefixes = [self.prefix(path) for path in paths]
        keys = [prefix + name for prefix in prefixes for name in names]
        most = max_nbytes or self.limits.hierarchy_nbytes
        columns = self.store.read_many(ReadRequest(keys, max_nbytes=most))
        documents: list[dict[str, JsonValue]] = []
        errors: list[dict[str, GpustoreError]] = []
        for i in range(0, len(keys), len(names)):
            parsed: dict[str, JsonValue] = {}
            failed: dict[str, GpustoreError] = {}
            for j, name in enumerate(names, i):
                data = columns.value[j]
                if j in columns.error:
                    # A name that is no legal key cannot be the name of a node.
                    if not isinstance(columns.error[j], InvalidKeyError):
                        failed[name] = columns.error[j]
                elif data is not None:
                    try:
                        where = self.store.describe(keys[j])
                        parsed[name] = parse_document(
                            data, name=name, where=where, limits=self.limits
                        )
                    except GpustoreError as error:
                        error.key = keys[j]
                        failed[name] = error
            if parsed:
                failed = {
                    name: error
                    for name, error in failed.items()
                    if not self.store.may_be_missing(error)
                }
            documents.append(parsed)
            errors.append(failed)
        return documents, errors

    def _node(
        self, path: str, documents: Mapping[str, JsonValue], errors: Mapping[str, GpustoreError]
    ) -> Node | None:
        names = NODE_DOCUMENTS[self.zarr_format]
        own = next((name for name in names if name in documents or name in errors), None)
        if own is None or own == _ATTRIBUTES:
            return None
        where = self.store.describe(self.prefix(path) + own)
        for name in names:
            if name in errors:
                error = errors[name]
                return Node(path, self.zarr_format, None, error=error, where=where)
        return parse_node(path, self.zarr_format, documents, where=where, limits=self.limits)

    # ------------------------------------------------------------------ making and deleting

    def create_groups(self, paths: Sequence[str]) -> None:
        """Make groups at normalised paths, the root first, where no node exists.

        Raises
        ------
        MismatchError
            If there is an array, or another format.
        MetadataError
            If a document there cannot be read.
        """
        if not paths:
            return
        for _ in range(_ATTEMPTS):
            self._check_format(paths)
            documents, errors = self._documents(paths, NODE_DOCUMENTS[self.zarr_format])
            missing = []
            for path, *found in zip(paths, documents, errors):
                node = self._node(path, *found)
                if node is None:
                    missing.append(path)
                elif node.error is not None:
                    raise node.error
                elif node.is_array:
                    raise MismatchError(
                        f"{node.where} is an array, and so cannot have members", key=path
                    )
            if not missing or all([self._write_group(path, {}) for path in missing]):
                return
        raise ConflictError(f"{self.where(paths[-1])} was created and deleted {_ATTEMPTS} times")

    def create_group(self, path: str, attributes: Mapping[str, JsonValue]) -> bool:
        """Make a group and the groups above it; return False if a node exists."""
        check_node_names(path, self.zarr_format)
        above = ancestors(path)
        self._check_format([path])
        self.invalidate(above)
        self.create_groups(above)
        if self.read(path) is not None or not self._write_group(path, attributes):
            return False
        if attributes and self.zarr_format == 2:
            self.file(path, _ATTRIBUTES).change(lambda stored: {**(stored or {}), **attributes})
        return True

    def _write_group(self, path: str, attributes: Mapping[str, JsonValue]) -> bool:
        """Store the document of a group if there is none."""
        name = _group_name(self.zarr_format)
        document = group_document(self.zarr_format, attributes)
        return self.file(path, name).write(document, ABSENT)

    def _check_format(self, paths: Sequence[str]) -> None:
        """Raise MismatchError if there is a node of the other format."""
        other = 5 - self.zarr_format
        names = [name for name in NODE_DOCUMENTS[other] if name != _ATTRIBUTES]
        keys = [self.prefix(path) + name for path in paths for name in names]
        none = [0] * len(keys)
        columns = self.store.read_many(ReadRequest(keys, start=none, stop=none))
        columns.raise_first()
        for key, state in zip(keys, columns.state):
            if state is ReadState.VALUE:
                raise MismatchError(
                    f"{self.store.describe(key)} is Zarr v{other}, and so cannot have members "
                    f"of Zarr v{self.zarr_format}",
                    key=key,
                )

    def delete(self, path: str) -> None:
        """Delete a node and everything below it.

        Raises
        ------
        NotFoundError
            If there is none.
        """
        self.invalidate(ancestors(path))
        if self.read(path) is None:
            raise NotFoundError(f"{self.where(path)} does not exist", key=path)
        self.clear(path)

    def clear(self, path: str) -> None:
        """Delete all keys below a path."""
        prefix = self.prefix(path)
        try:
            self.store.delete_range(prefix, prefix_end(prefix))
        finally:
            if self.cache is not None:
                self.cache.forget_range(self.store.identity, prefix)
            if self.device_pool is not None:
                self.device_pool.forget_range(self.store.identity, prefix)

    # ------------------------------------------------------------------ attributes

    def attributes(self, node: Node, executor: Executor, *, writable: bool) -> Attributes:
        """Return the attributes of a group as of its reading."""
        path = node.path
        v2 = self.zarr_format == 2
        # Those of a v3 group stand in its own document, beside its consolidated metadata.
        covering = [*ancestors(path), path] if v2 else ancestors(path)

        return Attributes(
            self.file(path, _ATTRIBUTES if v2 else "zarr.json"),
            None if v2 else "attributes",
            executor,
            values=node.attributes,
            writable=writable,
            before=lambda: self.invalidate(covering),
        )

    # ------------------------------------------------------------------ consolidated metadata

    def invalidate(self, paths: Sequence[str]) -> None:
        """Remove the consolidated metadata of the groups at normalised paths."""
        self.consolidated = None
        if self.zarr_format == 3:
            for path in paths:
                self.file(path, "zarr.json").change(_without_consolidated)
            return
        keys = [self.prefix(path) + V2_KEY for path in paths]
        none = [0] * len(keys)
        columns = self.store.read_many(ReadRequest(keys, start=none, stop=none))
        there = [key for key, state in zip(keys, columns.state) if state is not ReadState.MISSING]
        if there:
            self.store.write_many(WriteRequest(there, [None] * len(there))).raise_first()

    def consolidate(self, path: str) -> None:
        """Write the metadata of all nodes below a group into one document.

        Raises
        ------
        NotFoundError
            If there is no group.
        MetadataError, StoreIOError
            If a node cannot be read: nothing is written.
        """
        self.consolidated = None
        root = self.read(path)
        if root is not None and root.error is not None:
            raise root.error
        if root is None or not root.is_group:
            raise NotFoundError(f"{self.where(path)} does not exist or is no group", key=path)
        nodes: list[tuple[str, Node]] = []
        for node in self.walk(path, None):
            if node.error is not None:
                raise node.error
            nodes.append((node.path[len(path) :].lstrip("/"), node))
        document = consolidated_document(self.zarr_format, nodes, root)
        name, changed = V2_KEY, _replaced_by(document)
        if self.zarr_format == 3:
            name, changed = "zarr.json", _with_member(document)
        self.file(path, name).change(changed)


_Change = Callable[[dict[str, JsonValue] | None], dict[str, JsonValue] | None]


def _group_name(zarr_format: int) -> str:
    return ".zgroup" if zarr_format == 2 else "zarr.json"


def _without_consolidated(stored: dict[str, JsonValue] | None) -> dict[str, JsonValue] | None:
    if stored is None or V3_MEMBER not in stored:
        return stored
    return {name: value for name, value in stored.items() if name != V3_MEMBER}


def _replaced_by(document: dict[str, JsonValue]) -> _Change:
    return lambda stored: document


def _with_member(document: dict[str, JsonValue]) -> _Change:
    return lambda stored: {**(stored or {}), V3_MEMBER: document}


def exists_error(hierarchy: Hierarchy, path: str) -> AlreadyExistsError:
    """Return the error for a path with an existing node."""
    return AlreadyExistsError(f"Error writing {hierarchy.where(path)}", key=hierarchy.prefix(path))
