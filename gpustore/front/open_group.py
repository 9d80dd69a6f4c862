"""Opening of groups: :func:`open_group`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from gpustore.drivers._absence import names_like
from gpustore.drivers._detection import through_adapters
from gpustore.drivers.base import OpenMode, open_kvstore
from gpustore.errors import (
    MetadataError,
    MismatchError,
    NotFoundError,
    PathNotFoundError,
    prefixing,
)
from gpustore.front.group import Group, create_node, open_node
from gpustore.front.group_access import GroupAccess, hierarchy_at
from gpustore.front.spec import Spec
from gpustore.hierarchy.attributes import json_attributes
from gpustore.kvstores.columns import ReadRequest, ReadState
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.spec import as_directory
from gpustore.metadata.logical_path import check_node_names, join, logical_path
from gpustore.runtime.context import Context
from gpustore.runtime.future import Future
from gpustore.runtime.statistics import OpenOperation, operation
from gpustore.strict_json.parsing import Members, from_python

_FORMATS: Final = {"zarr": 2, "zarr2": 2, "zarr3": 3, "auto": None}
"""Driver -> format of its hierarchies; None for what is there."""

_DOCUMENTS: Final = {".zgroup": 2, ".zarray": 2, "zarr.json": 3}
"""Documents that show the format of a hierarchy."""


def open_group(
    spec: Any,
    *,
    path: str = "",
    zarr_format: int | None = None,
    read: bool | None = None,
    write: bool | None = None,
    open_mode: OpenMode | None = None,
    open: bool | None = None,
    create: bool | None = None,
    delete_existing: bool | None = None,
    attributes: Mapping[str, Any] | None = None,
    use_consolidated: bool | None = None,
    device: str | None = None,
    context: Context | Mapping[str, Any] | None = None,
) -> Future[Group]:
    """Open or create a group.

    Parameters
    ----------
    spec : str, os.PathLike, dict, Spec, KvStore or KvStore.Spec
        Place of the group: a path or URL in the notation of :func:`gpustore.open`
        (``"file:///data/x.zarr|zarr3:a/b"``), ``{"driver": "zarr3", "kvstore": ..., "path":
        "a/b"}`` or a kvstore. The part before ``|zarr3:`` is the root of the hierarchy.
    path : str
        Path below `spec`, normalised by the rules of the Zarr v2 specification.
    zarr_format : {2, 3}, optional
        Version of the format. The default is that of `spec`, or of the existing hierarchy, or 3 for
        a new one.
    read, write : bool, optional
        Required access to the group and its arrays; see :func:`gpustore.open`.
    open, create, delete_existing, open_mode
        Whether to open an existing group (the default), to create one, or both. Creating makes
        groups at all paths between the root and this one.
    attributes : mapping, optional
        Attributes of a new group; JSON values.
    use_consolidated : bool, optional
        True requires consolidated metadata, False ignores them. By default a group with
        consolidated metadata uses them, stale or not; see :meth:`Group.resolve`.
    device : str, optional
        Device of the arrays opened through the group; see :func:`gpustore.open`.
    context : Context or dict, optional
        Shared caches, thread pools and limits, or the JSON of such a context. By default each call
        makes its own.

    Returns
    -------
    Future of Group

    Raises
    ------
    MetadataError, InvalidKeyError, TypeError
        Immediately, if the arguments are invalid.
    NotFoundError, AlreadyExistsError, MismatchError, MetadataError, StoreIOError
        Through the Future.

    Examples
    --------
    >>> group = open_group("memory://a|zarr3:b", create=True, attributes={"x": 1}).result()
    >>> group.path, group.zarr_format, dict(group.attrs)
    ('b', 3, {'x': 1})
    """
    if isinstance(context, Mapping):
        context = Context(context)
    if context is not None and not isinstance(context, Context):
        raise TypeError(f"Invalid context: expected a Context, but received: {context!r:.200}")
    scope = context or Context()
    kvstore, found, below = _place(spec)
    if zarr_format not in (None, 2, 3) or isinstance(zarr_format, bool):
        raise MetadataError(f"zarr_format: expected 2 or 3, but received: {zarr_format!r:.200}")
    if zarr_format and found and zarr_format != found:
        raise MetadataError(f"zarr_format is {zarr_format}, but the spec says {found}")
    wanted = zarr_format or found
    whole = join(below, logical_path(path))
    mode = open_mode
    if mode is None:
        mode = OpenMode(bool(open), bool(create), bool(delete_existing))
    mode = mode.resolved()
    if mode.assumes:
        raise MetadataError("a group has no metadata that could be assumed")
    if mode.create:
        for candidate in (wanted,) if wanted else (2, 3):
            check_node_names(whole, candidate)
    given = json_attributes(attributes or {})
    base = open_kvstore(kvstore, scope)

    def access_to(store: KvStore) -> GroupAccess:
        return GroupAccess.of(
            scope, store.driver, read, write, use_consolidated=use_consolidated, device=device
        )

    access = access_to(base)
    if mode.create and not access.writable:
        raise MetadataError("Cannot specify an open mode of `create` without `write`")

    def run() -> Group:
        zarr_format, store, root, how = wanted, base, kvstore, access
        if zarr_format is None:
            with prefixing("Error opening group"):
                store, root, _ = through_adapters(base, kvstore, scope)
            how = access_to(store)
            # What is to be deleted says nothing, but what is at the root does.
            paths = dict.fromkeys([whole, ""])
            if mode.delete_existing:
                del paths[whole]
            detected = (_detected(store, path, mode) for path in paths)
            zarr_format = next(filter(None, detected), 3)
        hierarchy = hierarchy_at(root, zarr_format, scope)
        if mode.open:
            try:
                return open_node(hierarchy, how, whole, use_consolidated=use_consolidated)
            except NotFoundError as error:
                if not mode.create:
                    raise _not_there(
                        error, KvStore(store.driver, hierarchy.prefix(whole))
                    ) from None
        return create_node(hierarchy, how, whole, given, mode)

    if base.driver.is_local and not mode.create:
        return operation(lambda: Future.deferred(run, access.executor), OpenOperation)
    return operation(lambda: access.executor.submit(run, drain=True), OpenOperation)


def _place(spec: Any) -> tuple[KvStore.Spec, int | None, str]:
    """Root, format if it is said, and path from the root."""
    if isinstance(spec, KvStore):
        return spec.spec(retain_context=True), None, ""
    if isinstance(spec, KvStore.Spec):
        return spec, None, ""
    below = ""
    if not isinstance(spec, str | os.PathLike | Spec):
        members = Members(from_python(spec))
        if "path" in members and "kvstore" in members:
            # Of a Spec the path would become one with that of the kvstore.
            below = logical_path(members.take_str("path"))
            spec = {name: members.take(name) for name in members.names()}
    parsed = Spec(spec)
    driver = parsed._driver
    if driver.id not in _FORMATS:
        raise MetadataError(f'driver "{driver.id}" has no groups; known: {", ".join(_FORMATS)}')
    extra = parsed.to_json().keys() - {"driver", "kvstore", "context"}
    if extra:
        names = ", ".join(sorted(extra))
        raise MetadataError(f"a group is no array: the spec may not say {names}")
    kvstore = driver.kvstore
    if kvstore is None:
        raise MetadataError('"kvstore" must be specified')
    inner = getattr(driver, "node_path", "")
    if inner:
        kvstore = kvstore.copy()
        kvstore.path = kvstore.path[: -len(inner) - 1]
    return kvstore, _FORMATS[driver.id], join(inner, below)


def _not_there(error: NotFoundError, place: KvStore) -> PathNotFoundError:
    """Return the error of a missing group with names like that of its place."""
    return PathNotFoundError(f"{error.text}{names_like(place)}", key=error.key, status=error.status)


def _detected(store: KvStore, path: str, mode: OpenMode) -> int:
    """Return the format of what is at a path; 0 if there is nothing and it may be created.

    Raises
    ------
    NotFoundError
        If there is nothing otherwise.
    MismatchError
        If there is more than one.
    """
    prefix = as_directory(store.path)
    if path:
        prefix += path + "/"
    keys = [prefix + name for name in _DOCUMENTS]
    none = [0] * len(keys)
    with prefixing("Error opening group"):
        columns = store.driver.read_many(ReadRequest(keys, start=none, stop=none))
        is_there = ReadState.VALUE in columns.state
        for error in columns.error.values():
            if not is_there or not store.driver.may_be_missing(error):
                raise error
        states = zip(_DOCUMENTS.values(), columns.state)
        formats = {number for number, state in states if state is ReadState.VALUE}
        where = store.driver.describe(prefix)
        if len(formats) > 1:
            raise MismatchError(
                f"Multiple possible formats detected for {where}: name one, "
                f"with zarr_format= or in the URL",
                key=prefix,
            )
        if not formats and not mode.create:
            names = " or ".join(f'"{name}"' for name in _DOCUMENTS if name != ".zarray")
            raise _not_there(
                NotFoundError(
                    f"No group at {where}: looked for {names} in it and found neither", key=prefix
                ),
                KvStore(store.driver, prefix),
            )
    return formats.pop() if formats else 0
