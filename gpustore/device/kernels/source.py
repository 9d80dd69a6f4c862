"""Source text of the device kernels: where it lies, what it is compiled with, what it contains.

1. :func:`folder` finds the ``.cu`` files: inside the package in a wheel, beside
   ``pyproject.toml`` in a checkout. Found through ``__file__``, because an editable install leaves
   a stale second copy where :mod:`importlib.resources` would look.
2. :func:`flatten` joins a family with the one header into a single string. CuPy's cache of
   compiled kernels knows the text it is given but not the contents of included files, so a header
   that is included by name would give yesterday's kernel.
3. Static asserts made from the NumPy dtypes of the descriptors end each source, so that the two
   descriptions of one layout cannot drift apart.

``kernels/README.md`` has the rules for the kernels themselves.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpustore.device.kernels.descriptor import layouts

HEADER = "gs_common.cuh"

OPTIONS = ("--std=c++17",)
"""Given to the compiler, besides what CuPy adds."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]*)[">][^\n]*$', re.MULTILINE)


def folder() -> Path:
    """The folder with the kernel files.

    Raises
    ------
    FileNotFoundError
        The installation has no kernels at all.
    """
    package = Path(__file__).resolve().parents[2]
    packed = package / "backends/kernels"
    checkout = package.parent / "kernels"
    for candidate in (packed, checkout):
        if (candidate / HEADER).is_file():
            return candidate
    raise FileNotFoundError(f"kernel sources are neither in {packed} nor in {checkout}")


def flatten(family: str) -> str:
    """The text of a kernel family, complete in itself, read anew at each call.

    Parameters
    ----------
    family : str
        A key of :data:`gpustore.device.kernels.instance.INSTANCES`.

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
