"""Access to a group and its members: context, device, permissions, place of the hierarchy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from gpustore.drivers.base import OpenMode, OpenRequest, open_kvstore
from gpustore.hierarchy.nodes import Hierarchy
from gpustore.kvstores.base import KvStoreDriver
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.spec import as_directory
from gpustore.resources.cache_pool import cache_of
from gpustore.runtime.context import Context
from gpustore.runtime.executor import Executor


@dataclass(frozen=True, slots=True)
class GroupAccess:
    """Access with which a group was opened, applied to its members.

    Attributes
    ----------
    context : Context
    executor : Executor
        Threads for the I/O.
    readable, writable : bool
    use_consolidated : bool or None
    device : str or None
        Device of the arrays in the group.
    """

    context: Context
    executor: Executor
    readable: bool
    writable: bool
    use_consolidated: bool | None
    device: str | None

    @classmethod
    def of(
        cls,
        context: Context,
        store: KvStoreDriver,
        read: bool | None,
        write: bool | None,
        *,
        use_consolidated: bool | None = None,
        device: str | None = None,
    ) -> Self:
        """Make the required access, restricted to that of the store."""
        request = OpenRequest(OpenMode(), context, read, write, None)
        executor: Executor = context.resource("data_copy_concurrency").value
        writable = request.writable and store.can_write
        return cls(context, executor, request.readable, writable, use_consolidated, device)


def hierarchy_at(kvstore: KvStore.Spec, zarr_format: int, context: Context) -> Hierarchy:
    """Return the hierarchy with its root at the path of a kvstore. No I/O."""
    store = open_kvstore(kvstore, context)
    cache = cache_of(context.resource("cache_pool").value)
    limits = context.resource("limits").value
    root = as_directory(store.path)
    device_pool = context.resource("device_cache_pool").value
    return Hierarchy(store.driver, root, zarr_format, limits, cache, device_pool)
