"""Keys of chunks, made of their grid positions (Zarr v3 ``chunk_key_encoding``).

========  =================  ====================  ==========
name      default separator  cell (1, 23)          rank 0
========  =================  ====================  ==========
default   ``/``              ``c/1/23``            ``c``
v2        ``.``              ``1.23``              ``0``
========  =================  ====================  ==========

Zarr v2 arrays use the ``v2`` encoding with the separator of their ``dimension_separator``.
Source: Zarr v3 core specification, "Chunk key encoding"; Zarr v2 specification, "Chunks".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpustore.strict_json.parsing import JsonValue

_DEFAULT_SEPARATOR = {"default": "/", "v2": "."}
# At most 19 digits: a cell is an int64, and int() of a long key would take quadratic time.
_INDEX = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ChunkKeyEncoding:
    """Mapping between grid cells and keys.

    Parameters
    ----------
    name : {"default", "v2"}
        Registered name of the encoding.
    separator : {"/", "."}, optional
        Text between the indices. Defaults to ``"/"`` for ``default`` and ``"."`` for ``v2``.

    Examples
    --------
    >>> ChunkKeyEncoding("default").key((1, 23))
    'c/1/23'
    >>> ChunkKeyEncoding("v2", "/").key((1, 23))
    '1/23'
    """

    name: str = "default"
    separator: str = ""

    def __post_init__(self) -> None:
        if self.name not in _DEFAULT_SEPARATOR:
            raise ValueError(f'Expected one of "default", "v2", but received: "{self.name}"')
        if self.separator == "":
            object.__setattr__(self, "separator", _DEFAULT_SEPARATOR[self.name])
        elif self.separator not in ("/", "."):
            raise ValueError(f'Expected one of ".", "/", but received: "{self.separator}"')

    @property
    def prefix(self) -> str:
        """Text before the indices joined by `separator`: ``"c/"``, ``"c."`` or ``""``."""
        return f"c{self.separator}" if self.name == "default" else ""

    @property
    def scalar_key(self) -> str:
        """Key of the only chunk of an array of rank 0."""
        return "c" if self.name == "default" else "0"

    def key(self, cell: Sequence[int]) -> str:
        """Return the key of the chunk at `cell`.

        Parameters
        ----------
        cell : sequence of int, length rank
            Grid position in chunks, each entry >= 0.
        """
        if not cell:
            return self.scalar_key
        return self.prefix + self.separator.join(map(str, cell))

    def cell(self, key: str, rank: int) -> tuple[int, ...] | None:
        """Return the grid position whose key is exactly `key`, or None if there is none.

        >>> ChunkKeyEncoding("default").cell("c/1/23", 2)
        (1, 23)
        >>> ChunkKeyEncoding("default").cell("c/01/23", 2) is None
        True
        """
        if rank == 0:
            return () if key == self.scalar_key else None
        if not key.startswith(self.prefix):
            return None
        indices = key[len(self.prefix) :].split(self.separator)
        if len(indices) != rank or not all(map(_INDEX.fullmatch, indices)):
            return None
        return tuple(map(int, indices))

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        """Return the metadata member; a default separator is omitted, as TensorStore does, unless
        `include_defaults`.
        """
        if not include_defaults and self.separator == _DEFAULT_SEPARATOR[self.name]:
            return {"name": self.name}
        return {"name": self.name, "configuration": {"separator": self.separator}}
