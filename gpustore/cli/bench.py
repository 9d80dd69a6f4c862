"""``gpustore bench``: speed of random crops of an array, and what makes them slow.

1. Read crops at random positions one after the other, for a few seconds.
2. Read as many crops in groups by ``read_many``, which decodes each chunk of a group once.
3. Print crops per second, bytes and decodes, and advice.

The same crops are read in both ways, so that files are in the page cache for the second.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

import gpustore
from gpustore.cli.failure import CommandError
from gpustore.cli.options import add_json_option, add_place_options, extents, integer
from gpustore.cli.places import open_node, reading_context
from gpustore.cli.screen import Screen
from gpustore.display.extents import chunk_extents
from gpustore.display.text import format_nbytes, format_shape

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    import numpy.typing as npt


_MANY = 4.0
"""Decoded bytes for each byte returned from which smaller chunks are advised."""


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    command.description = (
        "Reads crops at random positions, one by one and in groups by read_many, and "
        "prints crops per second, bytes fetched, and how often chunks are decoded. Files that were "
        "read before come from the page cache."
    )
    command.add_argument("url", metavar="URL_OR_PATH", help="URL or path of the array")
    command.add_argument(
        "--patch",
        type=extents,
        metavar="N,N,...",
        help="extents of a crop (default: 64 along the last three dimensions, 1 along others)",
    )
    command.add_argument(
        "--group",
        type=integer(1, 100_000),
        default=32,
        metavar="N",
        help="crops in one call of read_many (default: %(default)s)",
    )
    command.add_argument(
        "--seconds",
        type=integer(0, 3600),
        default=3,
        metavar="N",
        help="time for single crops (default: %(default)s)",
    )
    command.add_argument(
        "--seed", type=integer(0, 2**63 - 1), default=0, metavar="N", help="seed of the positions"
    )
    command.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:N or auto")
    add_json_option(command)
    add_place_options(command)
    command.set_defaults(run=run)


@dataclass(frozen=True, slots=True)
class Measured:
    """Work of one way to read the crops.

    Attributes
    ----------
    crops : int
    seconds : float
    bytes_returned, bytes_fetched, bytes_decoded : int
        Bytes of the crops, encoded bytes from the kvstore, decoded bytes.
    chunks : int
        Chunks that were decoded or found missing, each as often as that happened.
    missing : int
        Those that are not stored.
    """

    crops: int
    seconds: float
    bytes_returned: int
    bytes_fetched: int
    bytes_decoded: int
    chunks: int
    missing: int

    @property
    def crops_per_second(self) -> float:
        """Crops per second."""
        return self.crops / max(self.seconds, 1e-9)

    @property
    def decoded_per_byte(self) -> float:
        """Decoded bytes for each byte returned."""
        return self.bytes_decoded / max(1, self.bytes_returned)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    device = {} if arguments.device is None else {"device": arguments.device}
    store = open_node(arguments.url, arguments, reading_context(arguments), read=True, **device)
    if isinstance(store, gpustore.Group):
        raise CommandError(f"{arguments.url} is a group: `gpustore tree` lists its arrays")
    shape = _patch(arguments.patch, store)
    positions = _Positions(store, shape, arguments.seed)
    store[tuple(slice(n, n + 1) for n in store.domain.origin)].read().result()  # Warms up.
    single = _measure(
        store, shape, lambda: [_single(store, positions.draw(1), shape)], arguments.seconds
    )
    positions.rewind()
    left = single.crops

    def group() -> list[Any]:
        nonlocal left
        count = min(arguments.group, left)
        left -= count
        return [store.read_many(positions.draw(count), shape)] if count else []

    grouped = _measure(store, shape, group, None)
    positions.rewind()
    touched = store.explain_many(positions.draw(single.crops), shape).chunks
    advice = advise(store, shape, single, grouped, touched, arguments.group)
    if arguments.json:
        found = {
            "patch": shape,
            "device": store.device,
            "group": arguments.group,
            "different_chunks": touched,
            "single": asdict(single),
            "grouped": asdict(grouped),
            "advice": advice,
        }
        print(json.dumps(found, indent=2))
        return 0
    screen = Screen()
    screen.line(
        f"{arguments.url}: {single.crops:,} crops of {format_shape(shape)} {store.dtype.name}, "
        f"read to {store.device}",
        style="bold",
    )
    rows = [
        _row("one by one", single, touched),
        _row(f"{arguments.group} by read_many", grouped, touched),
    ]
    columns = (
        "",
        "crops/s",
        "MB/s",
        "time\ns",
        "fetched",
        "decoded\nper byte",
        "decodes of\na chunk",
    )
    screen.table(columns, rows)
    for sentence in advice:
        screen.entry(("- ", "dim"), "", [sentence])
    return 0


def _row(name: str, measured: Measured, touched: int) -> tuple[str, ...]:
    rate = measured.bytes_returned / max(measured.seconds, 1e-9) / 1e6
    return (
        name,
        f"{measured.crops_per_second:.4g}",
        f"{rate:.4g}",
        f"{measured.seconds:.2f}",
        format_nbytes(measured.bytes_fetched),
        f"{measured.decoded_per_byte:.3g}",
        f"{measured.chunks / max(1, touched):.3g}",
    )


def _patch(wanted: list[int] | None, store: gpustore.TensorStore) -> list[int]:
    """Return the extents of a crop.

    Raises
    ------
    CommandError
        They do not fit in the array.
    """
    if not store.rank or not all(store.shape):
        raise CommandError("the array has no elements to crop, or no dimensions")
    if wanted is None:
        leading = max(0, store.rank - 3)
        return [1] * leading + [min(64, int(n)) for n in store.shape[leading:]]
    if len(wanted) != store.rank:
        raise CommandError(
            f"--patch has {len(wanted)} extents, but the array has {store.rank} dimensions: "
            f"{format_shape(store.shape)}"
        )
    if any(n > extent for n, extent in zip(wanted, store.shape, strict=True)):
        raise CommandError(
            f"crops of {format_shape(wanted)} do not fit in {format_shape(store.shape)}"
        )
    return wanted


class _Positions:
    """Random positions of crops inside an array, the same again after :meth:`rewind`."""

    def __init__(self, store: gpustore.TensorStore, shape: Sequence[int], seed: int) -> None:
        self._seed = seed
        self._low = np.array(store.domain.origin, np.int64)
        self._high = self._low + np.array(store.shape, np.int64) - shape + 1
        self.rewind()

    def rewind(self) -> None:
        self._rng = np.random.default_rng(self._seed)

    def draw(self, count: int) -> npt.NDArray[np.int64]:
        """Return the next positions, shape (count, rank)."""
        return self._rng.integers(self._low, self._high, (count, len(self._low)))


def _single(store: gpustore.TensorStore, start: npt.NDArray[np.int64], shape: Sequence[int]) -> Any:
    box = tuple(slice(a, a + n) for a, n in zip(start[0].tolist(), shape, strict=True))
    return store[box].read()


def _measure(
    store: gpustore.TensorStore,
    shape: Sequence[int],
    begin: Callable[[], list[Any]],
    seconds: int | None,
) -> Measured:
    """Read until the time is over, or `begin` has no more reads."""
    nbytes = crops = 0
    before = _counts()
    start = time.perf_counter()
    size = math.prod(shape)
    while True:
        futures = begin()
        for future in futures:
            elements = future.result()
            nbytes += elements.nbytes
            crops += elements.size // size
        if not futures or (seconds is not None and time.perf_counter() - start >= seconds):
            break
    taken = time.perf_counter() - start
    done = {name: count - before[name] for name, count in _counts().items()}
    return Measured(
        crops,
        taken,
        nbytes,
        done["bytes_fetched"],
        done["bytes_decoded"],
        done["chunks_planned"],
        done["chunks_missing"],
    )


def _counts() -> dict[str, int]:
    names = "bytes_fetched", "bytes_decoded", "chunks_planned", "chunks_missing"
    return {name: gpustore.statistics[name] for name in names}


def advise(
    store: gpustore.TensorStore,
    shape: Sequence[int],
    single: Measured,
    grouped: Measured,
    touched: int,
    group: int,
) -> list[str]:
    """Return advice in whole sentences.

    Parameters
    ----------
    store : TensorStore
    shape : sequence of int
        Extents of a crop.
    single, grouped : Measured
    touched : int
        Number of different chunks that the crops touch.
    group : int
        Crops in one call.
    """
    sentences = []
    chunk = chunk_extents(store, "read_chunk")
    faster = grouped.crops_per_second / max(single.crops_per_second, 1e-9)
    if single.crops < 20:
        sentences.append(f"Crops read: {single.crops}, too few for a speed; --seconds reads more.")
    elif faster >= 1.2:
        sentences.append(
            f"{group} crops in one call of read_many were {faster:.1f} times as fast as one by one."
        )
    if grouped.decoded_per_byte >= _MANY:
        smaller = [max(1, min(c, n // 2 or 1)) for c, n in zip(chunk, shape, strict=True)]
        advice = f"`gpustore copy --chunks {','.join(map(str, smaller))}` makes smaller ones."
        sentences.append(
            f"Each byte of a crop takes {grouped.decoded_per_byte:.1f} decoded bytes: chunks "
            f"of {format_shape(chunk)} are large for crops of {format_shape(shape)}; "
            f"{advice if smaller != list(chunk) else 'larger groups decode less.'}"
        )
    decodes = single.chunks / max(1, touched)
    if decodes >= 2:
        sentences.append(
            f"One by one a chunk was decoded {decodes:.1f} times on average, in groups "
            f"{grouped.chunks / max(1, touched):.1f} times; larger groups decode it less often."
        )
    if single.missing:
        share = single.missing / max(1, single.chunks)
        sentences.append(f"{share:.0%} of the chunks are not stored and cost next to nothing.")
    core = gpustore.native_core()
    if not core.in_use and store.device == "cpu":
        sentences.append(f"The native core is not in use, which makes this slower: {core.reason}.")
    return sentences


COMMANDS = {"bench": add_options}
