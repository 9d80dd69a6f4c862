"""The error of a command that ends with one line for the user, and texts a terminal may show."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    import gpustore


class CommandError(Exception):
    """A command cannot continue; the text gives the reason and the remedy."""


def printable(text: str, *, lines: bool = False) -> str:
    r"""Return a text as a terminal may show it: files of others may hold control codes.

    >>> printable("a\x1b[31mb\nc"), printable("a\nb", lines=True)
    ('a?[31mb?c', 'a\nb')
    """
    if text.isprintable():
        return text
    kept = "\N{NO-BREAK SPACE}" + "\n" * lines
    return "".join(char if char.isprintable() or char in kept else "?" for char in text)


def print_not_counted(errors: Mapping[str, gpustore.GpustoreError]) -> None:
    """Print the first error of values whose sizes cannot be found to standard error, if any."""
    for error in list(errors.values())[:1]:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        print(f"gpustore: not counted: {printable(str(error))}{more}", file=sys.stderr)
