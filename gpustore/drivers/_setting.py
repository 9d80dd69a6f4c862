"""Properties that openings in one context share: resources, and what they come to."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from copy import copy
from typing import Any

from gpustore.backends.selection import select_backend
from gpustore.drivers.base import METADATA_POOL, DriverSpec
from gpustore.drivers.options import bound_resources, refers_to_resources
from gpustore.resources.cache_pool import cache_of
from gpustore.resources.device_cache_pool import DeviceCachePool
from gpustore.runtime.cache import Cache
from gpustore.runtime.context import Context
from gpustore.runtime.executor import Executor
from gpustore.runtime.limits import Limits
from gpustore.strict_json.parsing import JsonValue


class _Pool:
    """Pool of metadata of a transaction."""


class Setting:
    """Context resources of a chunked driver and their values, which :meth:`bind` makes.

    Parameters
    ----------
    resources : mapping of str to Context.Resource
        Result of :func:`~gpustore.drivers.options.bound_resources`.

    Attributes
    ----------
    resources
        Parameter.
    is_bound : bool
        Whether the values have been made.
    limits : Limits
    executor : Executor
    backend : Backend
    cache, metadata_cache : Cache or None
        Caches of chunks and of metadata; None without room.
    metadata_pool : object
        What arrays share that know of each other's changes of metadata.
    device_pool : DeviceCachePool
    decode_rule, trust
        Values of ``gpu_decode_choice`` and ``gpu_decode_trust``.
    """

    __slots__ = (
        *("backend", "cache", "decode_rule", "device_pool", "executor", "is_bound", "limits"),
        *("metadata_cache", "metadata_pool", "resources", "trust"),
    )

    limits: Limits
    executor: Executor
    backend: Any
    cache: Cache | None
    metadata_cache: Cache | None
    metadata_pool: object
    device_pool: DeviceCachePool
    decode_rule: Any
    trust: Any

    def __init__(self, resources: Mapping[str, Context.Resource]) -> None:
        self.resources = resources
        self.is_bound = False

    def uncached(self) -> Setting:
        """Return the setting without caches, for arrays in a transaction."""
        setting = copy(self)
        setting.cache = setting.metadata_cache = None
        setting.metadata_pool = _Pool()
        setting.device_pool = DeviceCachePool(0)
        return setting

    def forget_range(self, store: Hashable, prefix: str) -> None:
        """Drop the keys of a store that start with `prefix` from all caches."""
        for cache in (self.cache, self.metadata_cache):
            if cache is not None:
                cache.forget_range(store, prefix)
        self.device_pool.forget_range(store, prefix)

    def bind(self) -> None:
        """Make the values; raises GpustoreError if a resource cannot be made."""
        resources = self.resources
        self.limits = resources["limits"].value
        self.executor = resources["data_copy_concurrency"].value
        allocator = resources["device_allocator"].value
        self.backend = select_backend(resources["device"].value, allocator)
        self.cache = cache_of(resources["cache_pool"].value)
        pool = self.metadata_pool = resources.get(METADATA_POOL) or resources["cache_pool"]
        self.metadata_cache = cache_of(pool.value)
        self.device_pool = resources["device_cache_pool"].value
        self.decode_rule = resources["gpu_decode_choice"].value
        self.trust = resources["gpu_decode_trust"].value
        self.is_bound = True


def setting_of(context: Context, options: Mapping[str, JsonValue]) -> Setting:
    """Return the setting of a driver, of which `options` may refer to other resources than the
    default.

    Raises
    ------
    MetadataError
        If the context does not define a resource.
    """
    if refers_to_resources(options):
        return Setting(bound_resources(context, options))
    return context.once(_default)


def _default(context: Context) -> Setting:
    return Setting(bound_resources(context, {}))


def backend_of(spec: DriverSpec, context: Context) -> Any:
    """Return the backend of the arrays that a spec reads once it is opened.

    None for a spec that names no device: its arrays are in host memory.
    """
    while spec.base is not None:
        spec = spec.base
    options = getattr(spec, "options", None)
    if options is None:
        layers = [backend_of(layer.driver, context) for layer in getattr(spec, "layers", ())]
        return next((backend for backend in layers if backend is not None), None)
    given = dict(options)
    allocator = context.resource("device_allocator", given.get("device_allocator")).value
    return select_backend(context.resource("device", given.get("device")).value, allocator)
