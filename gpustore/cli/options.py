"""Options that commands share, and types of their arguments."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gpustore.display.nbytes import nbytes_of

if TYPE_CHECKING:
    from collections.abc import Callable


def add_place_options(command: argparse.ArgumentParser) -> None:
    """Add the options that :mod:`gpustore.cli.places` understands."""
    command.add_argument(
        "--anon", action="store_true", help="sign no requests: for public buckets (s3://, gs://)"
    )
    command.add_argument(
        "--endpoint", metavar="URL", help="server of the s3:// URLs (default: Amazon's)"
    )


def add_json_option(command: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    command.add_argument("--json", action="store_true", help="print JSON, for programs")


def add_progress_options(command: argparse.ArgumentParser) -> None:
    """Add ``--progress`` and ``--quiet``, which exclude each other."""
    either = command.add_mutually_exclusive_group()
    either.add_argument(
        "--progress",
        action="store_true",
        help="report progress also where standard error is no terminal",
    )
    either.add_argument("--quiet", action="store_true", help="print nothing but errors")


def extents(text: str) -> list[int]:
    """Argument type: extents along each dimension, at least 1."""
    try:
        found = [int(word) for word in text.split(",")]
    except ValueError:
        found = [0]
    if any(not 0 < extent < 2**62 for extent in found):
        raise argparse.ArgumentTypeError(
            f"expected whole numbers from 1 with commas between, got {text!r}"
        )
    return found


def extent_or_extents(text: str) -> int | list[int]:
    """Argument type: an extent for all dimensions, or extents along each, at least 1."""
    found = extents(text)
    return found[0] if len(found) == 1 else found


def integer(smallest: int, largest: int) -> Callable[[str], int]:
    """Argument type: a whole number in a range."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = smallest - 1
        if not smallest <= number <= largest:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from {smallest} to {largest}, got {text!r}"
            )
        return number

    return parse


def nbytes(text: str) -> int:
    """Argument type: a size in bytes, such as ``256MiB``."""
    try:
        return nbytes_of(text, "size")
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def index_expression(text: str) -> tuple[int | slice, ...]:
    """Argument type: indices as in NumPy, without ``...``.

    >>> index_expression("3,:,::2")
    (3, slice(None, None, None), slice(None, None, 2))
    """
    return tuple(_index(word, text) for word in text.split(","))


def _index(word: str, text: str) -> int | slice:
    try:
        parts = [int(part) if part.strip() else None for part in word.split(":")]
    except ValueError:
        parts = []
    if len(parts) == 1 and parts[0] is not None:
        return parts[0]
    if not 2 <= len(parts) <= 3 or parts[2:] == [0]:
        raise argparse.ArgumentTypeError(
            f"expected numbers and slices with commas between, as 3,:,10:90:2, got {text!r}"
        )
    return slice(*parts)


def value_range(text: str) -> tuple[float, float]:
    """Argument type: two numbers, the lower one first."""
    try:
        low, high = (float(word) for word in text.split(","))
    except ValueError:
        low = high = 0.0
    if not low < high:
        raise argparse.ArgumentTypeError(
            f"expected two numbers with a comma between, the lower one first, got {text!r}"
        )
    return low, high
