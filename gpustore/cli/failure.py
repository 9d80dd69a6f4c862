"""The error of a command that ends with one line for the user."""

from __future__ import annotations


class CommandError(Exception):
    """A command cannot continue; the text gives the reason and the remedy."""
