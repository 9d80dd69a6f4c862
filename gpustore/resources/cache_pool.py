"""``cache_pool``: limit of the memory of caches.

JSON: ``{"total_bytes_limit": 100000000}``, in bytes; the default 0 keeps nothing. The value is a
:class:`CachePool`: all arrays opened with one pool share its limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from gpustore.runtime.cache import Cache
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CachePool:
    """Limit of memory that caches share; two pools are never equal.

    Attributes
    ----------
    total_bytes_limit : int
        Most bytes that the entries of its cache take.
    """

    total_bytes_limit: int


_caches: WeakKeyDictionary[CachePool, Cache] = WeakKeyDictionary()


def cache_of(pool: CachePool) -> Cache | None:
    """Return the cache of a pool, None if its limit is 0."""
    if not pool.total_bytes_limit:
        return None
    cache = _caches.get(pool)
    if cache is None:
        # `setdefault` is atomic: of several threads the first one's cache is kept.
        cache = _caches.setdefault(pool, Cache(pool.total_bytes_limit))
    return cache


class _CachePoolType(ResourceType[int, CachePool]):
    id = "cache_pool"

    def parse(self, json: JsonValue) -> int:
        members = Members(json, integral_floats=True)
        limit: int = members.take_int("total_bytes_limit", 0, 2**64 - 1, default=0)
        members.finish()
        return limit

    def default(self) -> int:
        return 0

    def to_json(self, config: int, *, include_defaults: bool) -> JsonValue:
        return {"total_bytes_limit": config} if config or include_defaults else {}

    def make(self, config: int) -> CachePool:
        return CachePool(config)


RESOURCE = _CachePoolType()
