"""Random numbers that are a function of a key and an index.

They are the same on any machine and with any version of NumPy. Source: Steele, Lea, Flood, "Fast
splittable pseudorandom number generators" (2014), SplitMix64.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_GAMMA: Final = 0x9E3779B97F4A7C15
_MASK: Final = (1 << 64) - 1

Words = NDArray[np.uint64]


def key_of(*parts: int) -> int:
    """Return a key of 64 bits for whole numbers of 64 bits, each of which changes it.

    >>> key_of(7, 0) != key_of(7, 1) != key_of(7)
    True
    """
    key = 0
    for part in parts:
        key = int(_mixed(np.array([(key ^ part) + _GAMMA & _MASK], np.uint64))[0])
    return key


def words(key: int, index: Any) -> Words:
    """Return 64 random bits for each index, an array of integers that are not negative."""
    with np.errstate(over="ignore"):
        state = np.uint64(key) + (np.asarray(index).astype(np.uint64) + 1) * np.uint64(_GAMMA)
    return _mixed(state)


def fractions(key: int, index: Any) -> NDArray[np.float64]:
    """Return a random number from 0 up to, and without, 1 for each index."""
    return (words(key, index) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(key: int, index: Any, limit: Any) -> NDArray[np.int64]:
    """Return a random whole number from 0 to `limit` - 1 for each index."""
    found = (fractions(key, index) * limit).astype(np.int64)
    most: NDArray[np.int64] = np.minimum(found, np.asarray(limit, np.int64) - 1)
    return most


def permutation(key: int, count: int) -> NDArray[np.int64]:
    """Return the numbers 0 to `count` - 1 in random order."""
    return np.argsort(words(key, np.arange(count)), kind="stable")


def _mixed(state: Words) -> Words:
    with np.errstate(over="ignore"):
        state = state ^ (state >> np.uint64(30))
        state *= np.uint64(0xBF58476D1CE4E5B9)
        state ^= state >> np.uint64(27)
        state *= np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state
