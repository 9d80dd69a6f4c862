"""Source text of the device kernels: its folder, its compiler options, its assembly.

1. :func:`folder` finds the ``.cu`` files: inside the package in a wheel, beside
   ``pyproject.toml`` in a checkout. It uses ``__file__``, because an editable install leaves a
   stale second copy where :mod:`importlib.resources` would look.
2. :func:`flatten` joins a family with its headers into a single string. CuPy's cache of compiled
   kernels depends on the text it is given but not on the contents of included files, so a changed
   header that is included by name would give an outdated kernel.
3. Static asserts made from the NumPy dtypes of the descriptors end each source, so that the two
   descriptions of one layout cannot drift apart.

``kernels/README.md`` has the rules for the kernels themselves.
"""

from __future__ import annotations

import re
from pathlib import Path

from gpustore.device.kernels.descriptor import layouts

HEADERS = "gs_common.cuh", "gs_float.cuh"
"""Headers in their order; every family includes the first one."""

OPTIONS = ("--std=c++17",)
"""Options of the compiler, besides those that CuPy adds."""

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*["<]([^">]*)[">][^\n]*$', re.MULTILINE)


def folder() -> Path:
    """Return the folder with the kernel files.

    Raises
    ------
    FileNotFoundError
        If the installation has no kernel files.
    """
    package = Path(__file__).resolve().parents[2]
    packed = package / "backends/kernels"
    checkout = package.parent / "kernels"
    for candidate in (packed, checkout):
        if (candidate / HEADERS[0]).is_file():
            return candidate
    raise FileNotFoundError(f"kernel sources are neither in {packed} nor in {checkout}")


def flatten(family: str) -> str:
    """Return the text of a kernel family with its headers, read anew at each call.

    Parameters
    ----------
    family : str
        A key of :data:`gpustore.device.kernels.instance.INSTANCES`.

    Raises
    ------
    ValueError
        If the family includes other files than the headers.
    """
    path = folder() / f"{family}.cu"
    text = path.read_text(encoding="utf-8")
    found = list(_INCLUDE.finditer(text))
    included = [one[1] for one in found]
    if included not in (list(HEADERS), list(HEADERS[:1])):
        raise ValueError(f"{path}: expected to include {' and '.join(HEADERS)}, got {included}")
    headers = []
    for name in included:
        header = (folder() / name).read_text(encoding="utf-8").replace("#pragma once", "")
        if _INCLUDE.search(header):
            raise ValueError(f"{folder() / name}: a header includes nothing")
        headers.append(f'#line 1 "{name}"\n{header}')
    end = found[-1].end()
    line = text.count("\n", 0, end) + 2
    before = text[: found[0].start()]
    return "\n".join(
        [
            f'#line 1 "{path.name}"\n{before}',
            *headers,
            f'#line {line} "{path.name}"{text[end:]}',
            f'#line 1 "layout"\n{_layout_asserts("".join([*headers, text]))}',
        ]
    )


def _layout_asserts(text: str) -> str:
    """Return C++ statements that fail to compile if a descriptor differs from its NumPy dtype."""
    lines: list[str] = []
    for name, layout in layouts().items():
        if not re.search(rf"\bstruct {re.escape(name.partition('<')[0])}\b", text):
            continue  # A descriptor of another family.
        name = f"gs::{name}"
        lines.append(f'static_assert(sizeof({name}) == {layout.itemsize}, "size of {name}");')
        for field, (part, offset, *_) in (layout.fields or {}).items():
            lines.append(
                f"static_assert(__builtin_offsetof({name}, {field}) == {offset} && "
                f'sizeof((({name}*)0)->{field}) == {part.itemsize}, "{name}.{field}");'
            )
    return "\n".join(lines) + "\n"
