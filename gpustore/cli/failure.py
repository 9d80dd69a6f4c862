"""The error of a command that ends with one line for the user, and texts a terminal may show."""

from __future__ import annotations


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
