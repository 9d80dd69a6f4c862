"""Translation of filters between Zarr v2 and Zarr v3 in :func:`gpustore.copy`.

Zarr v2 has filters between the elements and the compressor. Zarr v3 has them as codecs with the
same options, ``numcodecs.<id>``: those that change elements before its array -> bytes codec, the
others behind. Zarr v2 has the byte order in the data type of a filter, Zarr v3 in its codec
``bytes``; translations are little endian.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpustore.schema.codec_words import COMPRESSORS, NOT_BYTES, NUMCODECS, compressor_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_OF_ELEMENTS = (
    "astype",
    "bitround",
    "categorize",
    "delta",
    "fixedscaleoffset",
    "packbits",
    "quantize",
)
_TYPES = {"astype": ("decode_dtype", "encode_dtype")}
"""Options that name the types of decoded and encoded elements; of others:"""
_TYPE, _STORED = "dtype", "astype"
_UNTYPED = ("bitround", "packbits", "categorize")


@dataclass(slots=True)
class Parts:
    """Codecs of a Zarr v3 chunk, divided into filters and compressors of Zarr v2.

    Attributes
    ----------
    filters : list of dict
    compressors : list of dict
        Remaining codecs, as Zarr v3 JSON.
    lost : list of str
        Names of codecs that Zarr v2 cannot express.
    """

    filters: list[dict[str, Any]] = field(default_factory=list)
    compressors: list[dict[str, Any]] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


def codecs_of_filters(
    filters: Sequence[Mapping[str, Any]],
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Translate filters to codecs of Zarr v3 before and behind the array -> bytes codec.

    Raises
    ------
    ValueError
        If a filter changes elements behind one that makes bytes, which Zarr v3 cannot express.
    """
    before: list[dict[str, Any]] = []
    behind: list[dict[str, Any]] = []
    for one in filters:
        options = {name: _little(name, value) for name, value in one.items() if name != "id"}
        codec = {"name": NUMCODECS + one["id"], "configuration": options}
        if one["id"] not in _OF_ELEMENTS:
            behind.append(codec)
        elif behind:
            raise ValueError(f"{one['id']} stands behind {behind[-1]['name']}")
        else:
            before.append(codec)
    return before, behind


def parts_of_codecs(codecs: Sequence[Mapping[str, Any]], dtype: np.dtype[Any]) -> Parts:
    """Divide codecs of Zarr v3 into filters and the compressors behind them.

    Parameters
    ----------
    codecs : sequence of dict
        Codecs of a chunk, not of a shard.
    dtype : numpy.dtype
        Data type of the chunk's elements.
    """
    parts = Parts()
    stored = dtype.newbyteorder("<").str
    for codec in codecs:
        name, options = codec["name"], dict(codec.get("configuration", {}))
        id = name.removeprefix(NUMCODECS)
        if id in COMPRESSORS:
            parts.compressors.append(dict(codec))
        elif name == "bitround" or (name != id and id in _OF_ELEMENTS):
            decoded, encoded = _TYPES.get(id, (_TYPE, _STORED))
            options = {option: _little(option, value) for option, value in options.items()}
            if id not in _UNTYPED:
                options.setdefault(decoded, stored)  # In Zarr v3 it is that of the array.
                stored = options.get(encoded, stored)
            parts.filters.append({"id": id, **options})
        elif name != id:
            if parts.compressors:  # A filter follows, so the stages above are not the last ones.
                parts.filters += [compressor_of([one])[0] or {} for one in parts.compressors]
                parts.compressors.clear()
            parts.filters.append({"id": id, **options})
        elif name not in NOT_BYTES:
            parts.lost.append(name)
    return parts


def _little(option: str, value: Any) -> Any:
    """Return an option, little endian if it names a data type."""
    if not isinstance(value, str) or not (option.endswith(_TYPE) or option == _STORED):
        return value
    return np.dtype(value).newbyteorder("<").str
