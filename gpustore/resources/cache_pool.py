"""``cache_pool``: how much memory caches may use.

JSON: ``{"total_bytes_limit": 100000000}``; the default 0 keeps nothing. The value,
:class:`CachePool`, stands for one budget: caches that belong to one pool share it.
"""

from __future__ import annotations

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from gpustore.runtime.cache import Cache
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CachePool:
    """One budget for caches; two pools are never equal.

    Attributes
    ----------
    total_bytes_limit : int
        Most memory, in bytes, that its caches keep when nobody uses it.
    """

    total_bytes_limit: int


_caches: WeakKeyDictionary[CachePool, Cache] = WeakKeyDictionary()


def cache_of(pool: CachePool) -> Cache | None:
    """The cache of a pool; None if it is to keep nothing."""
    if not pool.total_bytes_limit:
        return None
    cache = _caches.get(pool)
    if cache is None:
        # `setdefault` is one step: whoever comes first makes it.
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
