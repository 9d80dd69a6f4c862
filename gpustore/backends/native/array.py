"""Constants of an array whose chunks the native core can read, as the core takes them.

:func:`native_array` decides whether it can: chunks in files of their own or in shards, one
compressor at most and crc32c behind it, elements that differ from those in memory in their byte
order only. All other arrays are read in Python.
"""

from __future__ import annotations

import sys
from array import array as numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gpustore.backends.host.points import is_record
from gpustore.backends.native.decoders import addresses, decodes
from gpustore.backends.native.library import library
from gpustore.codec_chain.chain import CodecChain
from gpustore.sharding.shard import ShardLevel

CODECS: Final = ("raw", "blosc", "zstd", "lz4", "gzip", "zlib")
"""Codecs in the order of their numbers in ``kernels/host/job.h``."""

_MAX_LEVELS: Final = 4
_MAX_RANK: Final = 32

# Bytes that a byte order reverses together, by kind of data type; 0 for the whole element.
_WORDS: Final = {"i": 0, "u": 0, "f": 0, "c": 0, "m": 0, "M": 0, "U": 4}


@dataclass(frozen=True, slots=True)
class NativeArray:
    """Struct ``Array`` of ``kernels/host/job.h``, and the memory it refers to.

    Attributes
    ----------
    address : int
        Address of the struct.
    rank : int
        Number of dimensions of the array.
    itemsize : int
        Bytes of an element in memory.
    decodes : bool
        Whether the core decodes values that it does not place.
    """

    address: int
    rank: int
    itemsize: int
    _kept: tuple[Any, ...]
    decodes: bool = False


def native_array(
    chain: CodecChain,
    levels: Sequence[ShardLevel],
    *,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    fill_value: Any,
    fill_missing: bool,
    key_separator: str,
    key_ratio: Sequence[int],
    key_rank: int,
) -> NativeArray | None:
    """Return the constants of an array in host memory; None if Python must read it."""
    if library() is None or sys.byteorder != "little":
        return None
    layout = chain.layout
    codec = _codec(chain)
    word = _word(layout.dtype, dtype)
    rank = len(layout.shape)
    if codec is None or word is None or rank > _MAX_RANK or len(levels) > _MAX_LEVELS:
        return None
    shards = [_level(level, rank) for level in levels]
    if None in shards:
        return None
    kept = _Kept()
    keep, text = kept.numbers, kept.text
    fill = 0
    if not is_record(fill_value, layout) and fill_value.dtype == dtype:
        fill = text(fill_value.tobytes())
    table: list[int] = []
    for one in shards:
        assert one is not None
        table += [*one[0], *map(keep, one[1:])]
    name, has_checksum = codec
    header = b"".join(stage.native_header for stage in chain.stages)
    struct = [
        *(keep(list(addresses(name, "crc32c").values())), rank, key_rank, dtype.itemsize, word),
        *(layout.offset, layout.nbytes, chain.encoded_bound),
        *(CODECS.index(name), has_checksum, text(header), len(header)),
        chain.decodes_parts and name == "blosc",
        *(len(levels), keep(table), keep([int(ratio) for ratio in key_ratio[:key_rank]])),
        *(text(key_separator.encode()), fill, fill_missing, _is_bool(layout.dtype)),
        *(keep(shape), keep(layout.shape), keep(layout.strides)),
    ]
    return NativeArray(keep(struct), rank, dtype.itemsize, tuple(kept.columns))


def native_files(
    chain: CodecChain,
    levels: Sequence[ShardLevel],
    *,
    shape: Sequence[int],
    key_separator: str,
    key_ratio: Sequence[int],
    key_rank: int,
    decodes: bool = False,
) -> NativeArray | None:
    """Return the constants of an array whose values are fetched and not placed.

    Parameters
    ----------
    decodes : bool
        Whether the core decodes the values; otherwise they stay encoded.

    Returns
    -------
    NativeArray or None
        None without the native core, or for shards and codecs that it does not read.
    """
    layout, rank = chain.layout, len(shape)
    if library() is None or not 0 < rank <= _MAX_RANK or len(levels) > _MAX_LEVELS:
        return None
    shards = [_level(level, rank) for level in levels]
    if None in shards:
        return None
    codec = _codec(chain) if decodes else ("raw", False)
    if codec is None:
        return None
    name, has_checksum = codec
    header = b"".join(stage.native_header for stage in chain.stages) if decodes else b""
    kept = _Kept()
    table: list[int] = []
    for one in shards:
        assert one is not None
        table += [*one[0], *map(kept.numbers, one[1:])]
    functions = kept.numbers(list(addresses(name, "crc32c").values()))
    ratio = kept.numbers([int(one) for one in key_ratio[:key_rank]])
    separator = kept.text(key_separator.encode())
    struct = [
        *(functions, rank, key_rank, 1, 0, 0, layout.nbytes, chain.encoded_bound),
        *(CODECS.index(name), has_checksum, kept.text(header), len(header), 0),
        *(len(levels), kept.numbers(table), ratio, separator, 0, 0, _is_bool(layout.dtype)),
        *map(kept.numbers, (shape, layout.shape, layout.strides)),
    ]
    return NativeArray(kept.numbers(struct), rank, 1, tuple(kept.columns), decodes)


class _Kept:
    """Columns that a struct refers to by their addresses."""

    def __init__(self) -> None:
        self.columns: list[numbers[int]] = []

    def numbers(self, values: Sequence[int]) -> int:
        """Keep integers; return their address."""
        self.columns.append(numbers("q", values))
        return self.columns[-1].buffer_info()[0]

    def text(self, value: bytes) -> int:
        """Keep bytes and a NUL behind them; return their address."""
        self.columns.append(numbers("q"))
        self.columns[-1].frombytes(value + bytes(8 - len(value) % 8))
        return self.columns[-1].buffer_info()[0]


def _codec(chain: CodecChain) -> tuple[str, bool] | None:
    """Return the compressor of a chain, and whether crc32c follows it; None for other chains, and
    for elements that Python checks.
    """
    if chain.objects is not None or not (chain.all_legal or _is_bool(chain.layout.dtype)):
        return None
    names = [stage.native_codec or "" for stage in chain.stages]
    has_checksum = names[-1:] == ["crc32c"]
    names = names[: len(names) - has_checksum] or ["raw"]
    name = names[0]
    known = name in CODECS and decodes(name, "crc32c" if has_checksum else "raw")
    return (name, has_checksum) if len(names) == 1 and known else None


def _is_bool(stored: np.dtype[Any]) -> bool:
    return stored == np.bool_


def _word(stored: np.dtype[Any], dtype: np.dtype[Any]) -> int | None:
    """Return the bytes that are reversed together, 0 for none; None for another difference."""
    if stored.hasobject or stored.itemsize != dtype.itemsize or not dtype.itemsize:
        return None
    if stored == dtype:
        return 0
    if stored.newbyteorder("=") != dtype or dtype.names is not None or dtype.kind not in _WORDS:
        return None
    word = _WORDS[dtype.kind] or (dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize)
    return word if word in (2, 4, 8) else None


def _level(level: ShardLevel, rank: int) -> tuple[Sequence[int], ...] | None:
    """Return numbers and columns of a level of sharding; None for another form of the index."""
    index = level.index
    layout = index.chain.layout
    names = [stage.native_codec or "" for stage in index.chain.stages]
    is_plain = layout.dtype == np.dtype("<u8") and layout.strides == _c_strides(layout.shape)
    if not is_plain or names not in ([], ["crc32c"]) or not decodes(*names):
        return None
    if len(level.order) > rank:
        return None
    numbers_of = (index.count, int(index.at_end), len(names))
    return numbers_of, level.order, index.chunks_per_shard, level.divisor


def _c_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, nbytes = [], 8
    for size in reversed(shape):
        strides.append(nbytes)
        nbytes *= size
    return tuple(reversed(strides))
