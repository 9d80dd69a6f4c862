"""Instances of kernels that may be launched; others are not compiled.

Instances are C++ name expressions. The types and ranks of templates are defined here too.
"""

from __future__ import annotations

from gpustore.errors import LimitError

THREADS_PER_BLOCK = 256
"""Number of threads in each block of every launch."""

WIDTHS = {1: "gs::u8", 2: "gs::u16", 4: "gs::u32", 8: "gs::u64", 16: "gs::u128"}
"""C++ types as which items are copied, by size in bytes."""

CASTS = {
    "|b1": "gs::u8",
    "|i1": "gs::i8",
    "|u1": "gs::u8",
    "<i2": "gs::i16",
    "<u2": "gs::u16",
    "<i4": "gs::i32",
    "<u4": "gs::u32",
    "<i8": "gs::i64",
    "<u8": "gs::u64",
    "<f2": "gs::f16",
    "bfloat16": "gs::bf16",
    "<f4": "gs::f32",
    "<f8": "gs::f64",
}
"""C++ types of sources of casts, by the text of their NumPy dtype; see :data:`CAST_TARGETS`."""

CAST_TARGETS = ("gs::f16", "gs::bf16", "gs::f32")

RANKS = (1, 2, 3, 4, 8, 32)
_TILED_RANKS = (2, 3, 4, 8, 32)
_INDEXED_RANKS = (4, 32)
_CAST_RANKS = (2, 4, 32)
_CAST_TILED_RANKS = (3, 32)
_FILL_RANKS = (1, 2, 4, 32)
_PATCH_RANKS = (4, 8, 32)


def _expressions(kernel: str, ranks: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"gs::{kernel}<{width}, {rank}>" for width in WIDTHS.values() for rank in ranks)


_CAST_PAIRS = tuple(
    f"{source}, {target}"
    for source in sorted(set(CASTS.values()))
    for target in CAST_TARGETS
    if source != target
)

INSTANCES: dict[str, tuple[str, ...]] = {
    "copy": (
        *_expressions("copy_strided", RANKS),
        *_expressions("copy_tiled", _TILED_RANKS),
        *_expressions("copy_indexed", _INDEXED_RANKS),
        *(f"gs::write_runs<{rank}>" for rank in RANKS),
    ),
    "cast": (
        *(
            f"gs::cast_strided<{pair}, {neighbours}, {rank}>"
            for pair in _CAST_PAIRS
            for neighbours in (1, 4)
            for rank in _CAST_RANKS
        ),
        *(f"gs::cast_tiled<{pair}, {rank}>" for pair in _CAST_PAIRS for rank in _CAST_TILED_RANKS),
        *(f"gs::cut_patches<{rank}>" for rank in _PATCH_RANKS),
    ),
    "fill": _expressions("fill_strided", _FILL_RANKS),
    "stream": ("gs::copy_stream",),
    "select": ("gs::first_entries", "gs::select_entries"),
    "shuffle": (
        *(f"gs::unshuffle<{typesize}>" for typesize in (2, 4, 8, 16)),
        "gs::unshuffle_any",
        *(f"gs::bit_unshuffle<{typesize}>" for typesize in (1, 2, 4, 8, 16)),
        "gs::bit_unshuffle_any",
        *(f"gs::shuffle<{typesize}>" for typesize in (2, 4, 8)),
        "gs::shuffle_any",
        *(f"gs::bit_shuffle<{typesize}>" for typesize in (1, 2, 4)),
        "gs::bit_shuffle_any",
    ),
    "crc32c": ("gs::crc32c", "gs::crc32"),
    "adler32": ("gs::adler32",),
    "element": ("gs::check_bits", "gs::clear_bits", "gs::check_records", "gs::clear_records"),
    "pattern": ("gs::compare_pattern",),
    "guard": ("gs::fill_guards", "gs::check_guards"),
    "replace_damaged": ("gs::replace_damaged",),
    "lz": ("gs::decode_blosclz", "gs::decode_lz4"),
    "downsample": ("gs::reduce_blocks", "gs::smooth_blocks"),
    "value": ("gs::convert_values", "gs::sum_values", "gs::unpack_bits"),
}
"""All kernel instances, as C++ name expressions, by family (``<family>.cu``)."""

_OF_KERNEL = {
    "copy_tiled": _TILED_RANKS,
    "copy_indexed": _INDEXED_RANKS,
    "cast_strided": _CAST_RANKS,
    "cast_tiled": _CAST_TILED_RANKS,
    "fill_strided": _FILL_RANKS,
    "cut_patches": _PATCH_RANKS,
}


def rank_for(kernel: str, rank: int) -> int:
    """Return the smallest rank, at least `rank`, that a kernel is compiled for.

    Raises
    ------
    LimitError
        If no kernel has so many dimensions.

    >>> rank_for("copy_strided", 5)
    8
    """
    for found in _OF_KERNEL.get(kernel, RANKS):
        if found >= rank:
            return found
    raise LimitError(f"A copy of {rank} dimensions, kernels have at most {RANKS[-1]}")
