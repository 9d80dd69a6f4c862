"""``device_cache_pool``: limit of a device's memory for chunks that are read again.

JSON: ``{"total_bytes_limit": 8000000000}``, in bytes for each device; the default 0 keeps nothing.
The value is a :class:`DeviceCachePool`: all arrays opened with one pool share its limit.

===========  ===================================================================================
member       value
===========  ===================================================================================
``content``  ``"decoded"``: chunks are kept decoded, so that a read only copies their elements
``memory``   ``"device"``: they lie in the memory of the device
===========  ===================================================================================

These are the only values so far; ``"encoded"`` and ``"pinned"`` raise UnsupportedError.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from gpustore.errors import MetadataError, UnsupportedError
from gpustore.runtime.cache import ArrayId
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members, text

TABLE_NBYTES: Final = 4096
"""Bytes that a cache needs beside the first chunk, for its table."""

_WORDS: Final = {"content": ("decoded", "encoded"), "memory": ("device", "pinned")}
"""Values of a member: the supported one, and one that is planned."""


class DeviceCache(Protocol):
    """Cache of one device; backends make them."""

    def forget(self, array: ArrayId, keys: Iterable[Sequence[int]]) -> None:
        """Drop the chunks of keys with these grid indices, which were or may have been changed."""

    def forget_range(self, store: Hashable, prefix: str) -> None:
        """Drop all chunks of a store whose keys start with `prefix`, or may do so."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class DeviceCachePool:
    """Limit of memory that the caches of a device share; two pools are never equal.

    Attributes
    ----------
    total_bytes_limit : int
        Most bytes of a device's cache: chunks, and the tables in host memory of their places.
    caches : dict of str to DeviceCache
        Cache of each device, by its name.
    """

    total_bytes_limit: int
    caches: dict[str, DeviceCache] = field(default_factory=dict)

    def forget(self, array: ArrayId, keys: Sequence[Sequence[int]]) -> None:
        """Drop the chunks of keys with these grid indices from all caches."""
        for cache in tuple(self.caches.values()):
            cache.forget(array, keys)

    def forget_range(self, store: Hashable, prefix: str) -> None:
        """Drop the chunks of a store whose keys start with `prefix` from all caches."""
        for cache in tuple(self.caches.values()):
            cache.forget_range(store, prefix)


@dataclass(frozen=True, slots=True)
class Residence:
    """Use of a pool by one array.

    Attributes
    ----------
    pool : DeviceCachePool
    array : ArrayId
    inner : tuple of int
        Most innermost chunks that share a key, along each dimension that keys have.
    bound : float
        Time in seconds since the epoch. Entries known to be the stored ones at this time or later
        are used as they are, older ones are checked; infinite if each use checks.
    cache : object or None
        Cache of the array's device; None if the array is in host memory, or one chunk does not fit.
    """

    pool: DeviceCachePool
    array: ArrayId
    inner: tuple[int, ...]
    bound: float
    cache: Any


class _DeviceCachePoolType(ResourceType[int, DeviceCachePool]):
    id = "device_cache_pool"

    def parse(self, json: JsonValue) -> int:
        members = Members(json, integral_floats=True)
        limit: int = members.take_int("total_bytes_limit", 0, 2**64 - 1, default=0)
        for name, words in _WORDS.items():
            value = members.take_with(name, lambda value: value, words[0])
            if value not in words:
                raise MetadataError(
                    f"{name}: Expected one of {', '.join(map(text, words))}, but received: "
                    f"{text(value)}"
                )
            if value != words[0]:
                raise UnsupportedError(
                    f"device_cache_pool: {name} {text(value)} is not supported, only "
                    f"{text(words[0])}"
                )
        members.finish()
        return limit

    def default(self) -> int:
        return 0

    def to_json(self, config: int, *, include_defaults: bool) -> JsonValue:
        if include_defaults:
            return {"total_bytes_limit": config, "content": "decoded", "memory": "device"}
        return {"total_bytes_limit": config} if config else {}

    def make(self, config: int) -> DeviceCachePool:
        return DeviceCachePool(config)


RESOURCE = _DeviceCachePoolType()
