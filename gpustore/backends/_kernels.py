"""Source text of the device kernels: where it lies, what it is compiled with, what it contains.

1. :func:`folder` finds the ``.cu`` files: inside the package in a wheel, beside
   ``pyproject.toml`` in a checkout. Found through ``__file__``, because an editable install leaves
   a stale second copy where :mod:`importlib.resources` would look.
2. :func:`source` joins a family with the one header into a single string. CuPy's cache of
   compiled kernels knows the text it is given but not the contents of included files, so a header
   that is included by name would give yesterday's kernel.
3. Static asserts made from the NumPy dtypes of the descriptors end each source, so that the two
   descriptions of one layout cannot drift apart.

``kernels/README.md`` has the rules for the kernels themselves.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpustore.backends._descriptor import layouts
from gpustore.errors import LimitError

__all__ = [
    "CASTS",
    "CAST_TARGETS",
    "INSTANCES",
    "OPTIONS",
    "THREADS_PER_BLOCK",
    "folder",
    "rank_for",
    "source",
]

HEADER = "gs_common.cuh"

THREADS_PER_BLOCK = 256
"""Of every launch."""

OPTIONS = ("--std=c++17",)
"""Given to the compiler, besides what CuPy adds."""

WIDTHS = {1: "gs::u8", 2: "gs::u16", 4: "gs::u32", 8: "gs::u64", 16: "gs::u128"}
"""Types that items are copied as, by bytes."""

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
"""Types that can be cast from, by the text of their NumPy dtype; to: :data:`CAST_TARGETS`."""

CAST_TARGETS = ("gs::f16", "gs::bf16", "gs::f32")

RANKS = (1, 2, 3, 4, 8, 32)
_TILED_RANKS = (2, 3, 4, 8, 32)
_INDEXED_RANKS = (2, 4, 32)
_CAST_RANKS = (2, 4, 32)


def _expressions(kernel: str, ranks: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"gs::{kernel}<{width}, {rank}>" for width in WIDTHS.values() for rank in ranks)


INSTANCES: dict[str, tuple[str, ...]] = {
    "copy": (
        *_expressions("copy_strided", RANKS),
        *_expressions("copy_tiled", _TILED_RANKS),
        *_expressions("copy_indexed", _INDEXED_RANKS),
    ),
    "cast": tuple(
        f"gs::cast_strided<{source}, {target}, {neighbours}, {rank}>"
        for source in sorted(set(CASTS.values()))
        for target in CAST_TARGETS
        if source != target
        for neighbours in (1, 4)
        for rank in _CAST_RANKS
    ),
    "fill": _expressions("fill_strided", RANKS),
    "stream": ("gs::copy_stream",),
    "shuffle": (
        *(f"gs::unshuffle<{typesize}>" for typesize in (2, 4, 8, 16)),
        "gs::unshuffle_any",
        *(f"gs::bit_unshuffle<{typesize}>" for typesize in (1, 2, 4, 8, 16)),
        "gs::bit_unshuffle_any",
    ),
    "crc32c": ("gs::crc32c", "gs::crc32"),
    "adler32": ("gs::adler32",),
    "lz": ("gs::decode_blosclz", "gs::decode_lz4"),
}
"""Every kernel instance that exists, as C++ name expressions, by family (``<family>.cu``)."""

_OF_KERNEL = {
    "copy_tiled": _TILED_RANKS,
    "copy_indexed": _INDEXED_RANKS,
    "cast_strided": _CAST_RANKS,
}

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]*)[">][^\n]*$', re.MULTILINE)


def rank_for(kernel: str, rank: int) -> int:
    """The smallest rank that a kernel is compiled for and that `rank` dimensions fit in.

    Raises
    ------
    LimitError
        If there are more than any kernel has.

    >>> rank_for("copy_strided", 5)
    8
    """
    for found in _OF_KERNEL.get(kernel, RANKS):
        if found >= rank:
            return found
    raise LimitError(f"A copy of {rank} dimensions, kernels have at most {RANKS[-1]}")


def folder() -> Path:
    """The folder with the kernel files.

    Raises
    ------
    FileNotFoundError
        The installation has no kernels at all.
    """
    here = Path(__file__).resolve().parent
    packed = here / "kernels"
    checkout = here.parents[1] / "kernels"
    for candidate in (packed, checkout):
        if (candidate / HEADER).is_file():
            return candidate
    raise FileNotFoundError(f"kernel sources are neither in {packed} nor in {checkout}")


def source(family: str) -> str:
    """The text of a kernel family, complete in itself, read anew at each call.

    Parameters
    ----------
    family : str
        A key of :data:`INSTANCES`.

    Raises
    ------
    ValueError
        The family includes something else than the one header.
    """
    path = folder() / f"{family}.cu"
    header = (folder() / HEADER).read_text(encoding="utf-8").replace("#pragma once", "")
    text = path.read_text(encoding="utf-8")
    included = _INCLUDE.findall(text) + _INCLUDE.findall(header)
    if included != [HEADER]:
        raise ValueError(f"{path}: expected exactly one include, of {HEADER}, got {included}")
    include = next(_INCLUDE.finditer(text))
    line = text.count("\n", 0, include.end()) + 2
    return "\n".join(
        [
            f'#line 1 "{path.name}"\n{text[: include.start()]}',
            f'#line 1 "{HEADER}"\n{header}',
            f'#line {line} "{path.name}"{text[include.end() :]}',
            f'#line 1 "layout"\n{_layout_asserts(header + text)}',
        ]
    )


def _layout_asserts(text: str) -> str:
    """C++ statements that fail to compile if a descriptor differs from its NumPy dtype."""
    lines: list[str] = []
    for name, layout in layouts().items():
        if not re.search(rf"\bstruct {re.escape(name.partition('<')[0])}\b", text):
            continue  # Another family's.
        name = f"gs::{name}"
        lines.append(f'static_assert(sizeof({name}) == {layout.itemsize}, "size of {name}");')
        for field, (part, offset, *_) in (layout.fields or {}).items():
            lines.append(
                f"static_assert(__builtin_offsetof({name}, {field}) == {offset} && "
                f'sizeof((({name}*)0)->{field}) == {part.itemsize}, "{name}.{field}");'
            )
    return "\n".join(lines) + "\n"
