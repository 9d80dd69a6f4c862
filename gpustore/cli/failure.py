"""The error a command raises to end with one line for the user."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot go on; the text tells the user why and what to do."""
