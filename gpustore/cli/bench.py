"""``gpustore bench``: speed of random patches of an array, and what makes them slow.

1. Read patches at random positions one after the other, for a few seconds.
2. Read as many patches in groups by ``read_many``, which decodes each chunk of a group once.
3. Iterate over a loader of random patches, for as long.
4. Print patches per second, bytes and decodes, the stage that limits, and advice.

The first two read the same patches, so that files are in the page cache for the second.
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
from gpustore.cli.loader_speed import LoaderSpeed, measure_loader
from gpustore.cli.options import (
    add_json_option,
    add_place_options,
    extent_or_extents,
    integer,
    nbytes,
)
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
        "Reads patches at random positions: one by one, in groups by read_many, and in batches of "
        "a loader. Prints patches per second, bytes fetched, how often chunks are decoded, what "
        "limits, and what would help. Files that were read before come from the page cache."
    )
    command.add_argument("url", metavar="URL_OR_PATH", help="URL or path of the array")
    command.add_argument(
        "--patch",
        type=extent_or_extents,
        metavar="N,N,...",
        help="extents of a patch, or one extent for all dimensions (default: 64 along the last "
        "three dimensions, 1 along others)",
    )
    command.add_argument(
        "--group",
        type=integer(1, 100_000),
        default=32,
        metavar="N",
        help="patches in one call of read_many (default: %(default)s)",
    )
    command.add_argument(
        "--seconds",
        type=integer(0, 3600),
        default=3,
        metavar="N",
        help="time for single patches, and for the loader (default: %(default)s)",
    )
    command.add_argument(
        "--window",
        type=nbytes,
        default="256 MiB",
        metavar="SIZE",
        help="decoded bytes of the loader's windows (default: %(default)s)",
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
    """Work of one way to read patches.

    Attributes
    ----------
    patches : int
    seconds : float
    bytes_returned, bytes_fetched, bytes_decoded : int
        Bytes of the patches, encoded bytes from the kvstore, decoded bytes.
    chunks : int
        Chunks that were decoded or found missing, each as often as that happened.
    missing : int
        Those that are not stored.
    """

    patches: int
    seconds: float
    bytes_returned: int
    bytes_fetched: int
    bytes_decoded: int
    chunks: int
    missing: int

    @property
    def patches_per_second(self) -> float:
        """Patches per second."""
        return self.patches / max(self.seconds, 1e-9)

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
    left = single.patches

    def group() -> list[Any]:
        nonlocal left
        count = min(arguments.group, left)
        left -= count
        return [store.read_many(positions.draw(count), shape)] if count else []

    grouped = _measure(store, shape, group, None)
    positions.rewind()
    touched = store.explain_many(positions.draw(single.patches), shape).chunks
    advice = advise(store, shape, single, grouped, touched, arguments.group)
    loader = None
    try:
        loader = measure_loader(store, shape, arguments.window, arguments.seconds, arguments.seed)
        advice += loader.advice
    except (gpustore.UnsupportedError, gpustore.LimitError) as error:
        advice.append(f"No loader: {error.text}.")
    if arguments.json:
        found = {
            "patch": shape,
            "device": store.device,
            "group": arguments.group,
            "different_chunks": touched,
            "single": asdict(single),
            "grouped": asdict(grouped),
            "window": arguments.window,
            "loader": None if loader is None else asdict(loader),
            "advice": advice,
        }
        print(json.dumps(found, indent=2))
        return 0
    screen = Screen()
    screen.line(
        f"{arguments.url}: random patches of {format_shape(shape)} {store.dtype.name}, "
        f"read to {store.device}",
        style="bold",
    )
    rows = [
        _row("one by one", single, touched),
        _row(f"{arguments.group} by read_many", grouped, touched),
        *([] if loader is None else [_loader_row(loader)]),
    ]
    columns = (
        "",
        "patches/s",
        "MB/s",
        "time\ns",
        "fetched",
        "decoded\nper byte",
        "decodes\na chunk",
    )
    screen.table(columns, rows)
    if loader is not None:
        stats = loader.stats
        screen.line(
            f"Loader: first batch after {loader.first_s:.3f} s; waited {stats['waited_s']:.2f} of "
            f"{loader.seconds:.2f} s; limited by {stats['limited_by']}"
        )
    for sentence in advice:
        screen.entry(("- ", "dim"), "", [sentence])
    return 0


def _row(name: str, measured: Measured, touched: int) -> tuple[str, ...]:
    rate = measured.bytes_returned / max(measured.seconds, 1e-9) / 1e6
    return (
        name,
        f"{measured.patches_per_second:.4g}",
        f"{rate:.3g}",
        f"{measured.seconds:.2f}",
        format_nbytes(measured.bytes_fetched),
        f"{measured.decoded_per_byte:.3g}",
        f"{measured.chunks / max(1, touched):.3g}",
    )


def _loader_row(measured: LoaderSpeed) -> tuple[str, ...]:
    stats = measured.stats
    seconds = max(measured.seconds, 1e-9)
    return (
        "loader",
        f"{measured.patches / seconds:.4g}",
        f"{measured.bytes_returned / seconds / 1e6:.3g}",
        f"{measured.seconds:.2f}",
        format_nbytes(stats["bytes_read"]),
        f"{stats['bytes_decoded'] / max(1, measured.bytes_returned):.3g}",
        f"{stats['decodes_per_chunk']:.3g}",
    )


def _patch(wanted: int | list[int] | None, store: gpustore.TensorStore) -> list[int]:
    """Return the extents of a patch.

    Raises
    ------
    CommandError
        They do not fit in the array.
    """
    if not store.rank or not all(store.shape):
        raise CommandError("the array has no elements, or no dimensions")
    if wanted is None:
        leading = max(0, store.rank - 3)
        return [1] * leading + [min(64, int(n)) for n in store.shape[leading:]]
    if isinstance(wanted, int):
        wanted = [wanted] * store.rank
    if len(wanted) != store.rank:
        raise CommandError(
            f"--patch has {len(wanted)} extents, but the array has {store.rank} dimensions: "
            f"{format_shape(store.shape)}"
        )
    if any(n > extent for n, extent in zip(wanted, store.shape, strict=True)):
        raise CommandError(
            f"patches of {format_shape(wanted)} do not fit in {format_shape(store.shape)}"
        )
    return wanted


class _Positions:
    """Random positions of patches inside an array, the same again after :meth:`rewind`."""

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
    nbytes = patches = 0
    before = _counts()
    start = time.perf_counter()
    size = math.prod(shape)
    while True:
        futures = begin()
        for future in futures:
            elements = future.result()
            nbytes += elements.nbytes
            patches += elements.size // size
        if not futures or (seconds is not None and time.perf_counter() - start >= seconds):
            break
    taken = time.perf_counter() - start
    done = {name: count - before[name] for name, count in _counts().items()}
    return Measured(
        patches,
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
        Extents of a patch.
    single, grouped : Measured
    touched : int
        Number of different chunks that the patches touch.
    group : int
        Patches in one call.
    """
    sentences = []
    chunk = chunk_extents(store, "read_chunk")
    faster = grouped.patches_per_second / max(single.patches_per_second, 1e-9)
    if single.patches < 20:
        sentences.append(
            f"Patches read: {single.patches}, too few for a speed; --seconds reads more."
        )
    elif faster >= 1.2:
        sentences.append(
            f"{group} patches in a call of read_many were {faster:.1f} times as fast as one by one."
        )
    if grouped.decoded_per_byte >= _MANY:
        smaller = [max(1, min(c, n // 2 or 1)) for c, n in zip(chunk, shape, strict=True)]
        advice = f"`gpustore copy --chunks {','.join(map(str, smaller))}` makes smaller ones."
        sentences.append(
            f"Each byte of a patch takes {grouped.decoded_per_byte:.1f} decoded bytes: chunks "
            f"of {format_shape(chunk)} are large for patches of {format_shape(shape)}; "
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
