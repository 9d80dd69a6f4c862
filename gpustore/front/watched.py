"""Stores that notice chunks which change between reads, for the loader."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

from gpustore.drivers.base import Driver
from gpustore.drivers.chunked import ChunkedDriver
from gpustore.front.store import TensorStore
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.seen_generations import MOST_KEYS, SeenGenerations, WatchedKvStore


def watched(store: TensorStore) -> TensorStore:
    """Return a store whose reads fail with ConflictError if a chunk has changed since its first.

    Arrays that are not opened from chunks, in a transaction, or of very many chunks, are not
    watched, and are returned as they are.
    """
    driver = _watched(store._driver)
    return store if driver is store._driver else TensorStore._of(driver, store._transform)


def _watched(driver: Driver) -> Driver:
    if isinstance(driver, ChunkedDriver):
        if driver.kvstore.transaction is not None or math.prod(driver.array.key_counts) > MOST_KEYS:
            return driver
        found = copy.copy(driver)
        vars(found).pop("reader", None)
        found.array = _watched_array(driver.array)
        return found
    base = getattr(driver, "base", None)
    if base is None or (other := _watched(base)) is base:
        return driver
    return replace(driver, base=other)  # type: ignore[type-var]  # Views are dataclasses.


def _watched_array(array: ChunkedArray) -> ChunkedArray:
    seen = SeenGenerations(array.key_counts, array.format(), array.store.describe)
    return replace(array, store=WatchedKvStore(array.store, seen), seen=seen)
