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

import numpy as np

__all__ = [
    "DIM",
    "INSTANCES",
    "ITEMS_PER_TILE",
    "THREADS_PER_BLOCK",
    "division",
    "folder",
    "run_dtype",
    "source",
]

HEADER = "gs_common.cuh"
THREADS_PER_BLOCK = 256
ITEMS_PER_TILE = 4 * THREADS_PER_BLOCK

_WIDTHS = ("u8", "u16", "u32", "u64", "u128")
_RANKS = (1, 2, 4, 8, 32)

INSTANCES: dict[str, tuple[str, ...]] = {
    "fill": tuple(f"gs::fill_strided<gs::{width}, {rank}>" for width in _WIDTHS for rank in _RANKS),
}
"""Every kernel instance that exists, as C++ name expressions, by family."""

DIM = np.dtype(
    [
        ("extent", np.uint32),
        ("magic", np.uint32),
        ("shift", np.uint32),
        ("reserved", np.uint32),
        ("src_stride", np.int64),
        ("dst_stride", np.int64),
    ]
)
"""Layout of ``gs::Dim``; strides in bytes."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]*)[">][^\n]*$', re.MULTILINE)


def run_dtype(rank: int) -> np.dtype[np.void]:
    """Layout of ``gs::Run<rank>``, one strided run of items.

    >>> run_dtype(2).itemsize
    96
    """
    return np.dtype(
        [
            ("src", np.uint64),
            ("dst", np.uint64),
            ("items", np.uint32),
            ("first_tile", np.uint32),
            ("reserved", np.uint32, (2,)),
            ("dim", DIM, (rank,)),
        ]
    )


def division(extent: int) -> tuple[int, int]:
    """Magic number and shift that divide by `extent` in the kernels.

    Returns ``(magic, shift)`` such that ``(a * magic >> 32) >> shift == a // extent`` for all
    ``0 <= a < 2**31``. For an extent of 1, which the kernels do not divide by, ``(0, 0)``.

    Parameters
    ----------
    extent : int
        Between 1 and 2**31 - 1.

    Source: Granlund and Montgomery, Division by invariant integers using multiplication, 1994,
    theorem 4.2 with N = 31.

    >>> magic, shift = division(7)
    >>> (1_000_000 * magic >> 32) >> shift == 1_000_000 // 7
    True
    """
    if extent == 1:
        return 0, 0
    shift = (extent - 1).bit_length() - 1
    magic = -(-(1 << (32 + shift)) // extent)
    return magic, shift


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
            f'#line 1 "layout"\n{_layout_asserts()}',
        ]
    )


def _layout_asserts() -> str:
    """C++ statements that fail to compile if a descriptor differs from its NumPy dtype."""
    lines: list[str] = []
    for name, layout in (("gs::Dim", DIM), ("gs::Run<3>", run_dtype(3))):
        lines.append(f'static_assert(sizeof({name}) == {layout.itemsize}, "size of {name}");')
        for field in layout.names or ():
            part, offset = layout.fields[field][:2] if layout.fields else (layout, 0)
            lines.append(
                f"static_assert(__builtin_offsetof({name}, {field}) == {offset} && "
                f'sizeof((({name}*)0)->{field}) == {part.itemsize}, "{name}.{field}");'
            )
    return "\n".join(lines) + "\n"
