"""Copies of values from one kvstore to another, in batches that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpustore.kvstores.base import KvStoreDriver
from gpustore.kvstores.columns import ReadRequest, WriteRequest

_NBYTES: Final = 32 << 20
_KEYS: Final = 10_000
"""Largest number of bytes, and of keys, that are copied together."""


def copy_values(
    source: tuple[KvStoreDriver, str],
    target: tuple[KvStoreDriver, str],
    keys: Sequence[str],
    staleness_bound: float | None,
) -> None:
    """Copy the values of some keys; those that are missing by then are left out.

    Parameters
    ----------
    source, target : tuple of KvStoreDriver and str
        Opened drivers, each with the prefix of its keys.
    keys : sequence of str
        Keys without the prefixes.
    staleness_bound : float or None
        Seconds since the epoch: a cached value that was current at this time is accepted.

    Raises
    ------
    GpustoreError
        The first error of a key.
    """
    (reader, path), (writer, target_path) = source, target
    renamed = [(path + key, target_path + key) for key in keys]
    if writer.copy_from(reader, renamed, staleness_bound):
        return
    for batch in _batches(reader, path, keys):
        columns = reader.read_many(
            ReadRequest([path + key for key in batch], staleness_bound=staleness_bound)
        )
        columns.raise_first()
        there = [i for i, value in enumerate(columns.value) if value is not None]
        values = [columns.value[i] for i in there]
        writer.write_many(
            WriteRequest([target_path + batch[i] for i in there], values)
        ).raise_first()


def _batches(driver: KvStoreDriver, path: str, keys: Sequence[str]) -> Iterator[list[str]]:
    """Yield the keys in order, as many together as fit in memory."""
    for first in range(0, len(keys), _KEYS):
        batch: list[str] = []
        total = 0
        some = keys[first : first + _KEYS]
        sizes = driver.nbytes_many([path + key for key in some])
        for key, nbytes in zip(some, sizes, strict=True):
            if batch and total + nbytes > _NBYTES:
                yield batch
                batch, total = [], 0
            batch.append(key)
            total += nbytes
        yield batch
