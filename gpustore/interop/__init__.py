"""Guests: other libraries that arrays are read for and written from. They use public names only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gpustore


@contextmanager
def extra(library: str) -> Iterator[None]:
    """Say how to install a library that the block imports.

    Parameters
    ----------
    library : str
        Name of the library, which is that of the extra that installs it.

    Raises
    ------
    ModuleNotFoundError
        If the library is not installed; the message has the command that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != library:
            raise
        raise ModuleNotFoundError(
            f"{library} is not installed: python -m pip install 'gpustore[{library}]'", name=library
        ) from error


def checked(given: Any, name: str = "store") -> gpustore.TensorStore:
    """Return an argument that has to be a store.

    Raises
    ------
    TypeError
        If it is something else, such as a group; the message begins with `name`.
    """
    if isinstance(given, gpustore.TensorStore):
        return given
    raise TypeError(f"{name}: expected a gpustore.TensorStore, got {given!r:.200}")
