"""``device_cache_pool``: limit of memory for chunks that a device reads again.

JSON: ``{"total_bytes_limit": 8000000000}``, in bytes for each device; the default 0 keeps nothing.
The value is a :class:`DeviceCachePool`: all arrays opened with one pool share its limit.

===========  ===================================================================================
member       value
===========  ===================================================================================
``content``  ``"decoded"`` (the default): chunks are kept decoded, so that a read only copies their
             elements; ``"encoded"``: chunks that the device decodes are kept as they are stored,
             and each read decodes them
``memory``   ``"device"`` (the default): they lie in the memory of the device; ``"pinned"``: in
             pinned memory of the host, from which each read uploads them
===========  ===================================================================================
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

from gpustore.errors import MetadataError
from gpustore.runtime.cache import ArrayId
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members, text

TABLE_NBYTES: Final = 4096
"""Bytes that a cache needs beside the first chunk, for its table."""

_WORDS: Final = {"content": ("decoded", "encoded"), "memory": ("device", "pinned")}
"""Values of a member; the default first."""

Config = tuple[int, str, str]
"""Limit in bytes, ``content`` and ``memory``."""


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
        Most bytes of a device's cache: chunks, and in host memory the tables of their places and
        the headers of encoded ones.
    content : str
        ``"decoded"`` or ``"encoded"``.
    memory : str
        ``"device"`` or ``"pinned"``.
    caches : dict of Device to DeviceCache
        Cache of each device; two with different allocators are two devices.
    """

    total_bytes_limit: int
    content: str = "decoded"
    memory: str = "device"
    caches: dict[Any, DeviceCache] = field(default_factory=dict)

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


class _DeviceCachePoolType(ResourceType[Config, DeviceCachePool]):
    id = "device_cache_pool"

    def parse(self, json: JsonValue) -> Config:
        members = Members(json, integral_floats=True)
        limit: int = members.take_int("total_bytes_limit", 0, 2**64 - 1, default=0)
        content, memory = (
            members.take_with(name, partial(_word, name), words[0])
            for name, words in _WORDS.items()
        )
        members.finish()
        return limit, content, memory

    def default(self) -> Config:
        return 0, "decoded", "device"

    def to_json(self, config: Config, *, include_defaults: bool) -> JsonValue:
        json: dict[str, JsonValue] = dict(zip(("total_bytes_limit", *_WORDS), config))
        if include_defaults:
            return json
        defaults = zip(json, self.default())
        return {name: json[name] for name, default in defaults if json[name] != default}

    def make(self, config: Config) -> DeviceCachePool:
        return DeviceCachePool(*config)


def _word(name: str, json: JsonValue) -> str:
    words = _WORDS[name]
    if not isinstance(json, str) or json not in words:
        raise MetadataError(
            f"Expected one of {', '.join(map(text, words))}, but received: {text(json)}"
        )
    return json


RESOURCE = _DeviceCachePoolType()
