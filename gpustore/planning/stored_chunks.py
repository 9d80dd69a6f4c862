"""Answer to the question which chunks of a domain are stored: :class:`StoredChunks`."""

from __future__ import annotations

from typing import NamedTuple


class StoredChunks(NamedTuple):
    """Whether the chunks of a domain are stored.

    Attributes
    ----------
    none, every : bool
        Whether none, and whether each of them is; both without any chunk.
    """

    none: bool
    every: bool
