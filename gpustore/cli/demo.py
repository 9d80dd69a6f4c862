"""``gpustore demo``: the main job, on data made for it, in half a minute.

1. Simulate the volume of a microscope.
2. Write it in each format of :data:`FORMATS`, slab by slab.
3. Read it back whole and by random crops, and compare every value.
4. Save a picture of a slice; print the measurements, the files, and the next command.
"""

from __future__ import annotations

import shlex
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import gpustore
from gpustore.cli.failure import CommandError
from gpustore.cli.options import integer
from gpustore.cli.picture import contrast_of, numbers_of, require_pillow, save_png, stretch
from gpustore.cli.screen import Screen
from gpustore.cli.volume import make_volume, volume_shape
from gpustore.display.text import format_nbytes
from gpustore.runtime.cores import cores

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    import numpy.typing as npt


CHUNK = (32, 128, 128)
CROP = (32, 96, 96)
NCROPS = 100
PICTURE = "gpustore-demo.png"
_LARGEST_MB = 100_000


@dataclass(frozen=True, slots=True)
class Format:
    """A way to store the volume.

    Attributes
    ----------
    title : str
        Name in the table.
    folder : str
        Name of the array inside the demo's folder.
    driver : str
        Driver of the spec.
    codec : dict
        JSON of the codec spec.
    """

    title: str
    folder: str
    driver: str
    codec: dict[str, Any]


FORMATS = (
    Format(
        "Zarr v2, Blosc LZ4",
        "gpustore-demo-blosc.zarr",
        "zarr",
        {
            "driver": "zarr",
            "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 2},
        },
    ),
    Format(
        "Zarr v3, zstd + crc32c",
        "gpustore-demo-zstd.zarr",
        "zarr3",
        {
            "driver": "zarr3",
            "codecs": [{"name": "zstd", "configuration": {"level": 1}}, {"name": "crc32c"}],
        },
    ),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one format; times in seconds, sizes in bytes."""

    stored_nbytes: int
    write_s: float
    read_s: float
    crops_s: float
    crops_nbytes: int


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    command.description = (
        "Simulates the volume of a microscope, writes it as Zarr v2 and v3, reads it "
        "back whole and by crops, checks every value, and saves a picture of a slice."
    )
    command.add_argument(
        "folder",
        nargs="?",
        metavar="FOLDER",
        help="folder for the files (default: a new temporary one)",
    )
    command.add_argument(
        "--size",
        type=integer(1, _LARGEST_MB),
        default=200,
        metavar="MB",
        help="decoded size in megabytes (default: %(default)s)",
    )
    command.add_argument(
        "--seed",
        type=integer(0, 2**63 - 1),
        default=0,
        metavar="N",
        help="seed of the volume (default: %(default)s)",
    )
    command.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code.

    Raises
    ------
    CommandError
        The folder cannot be used, or a value that was read differs from the written one.
    """
    screen = Screen()
    require_pillow()
    folder = _prepare_folder(arguments.folder, arguments.size * 1_000_000)
    shape = volume_shape(arguments.size * 1_000_000)
    nbytes = int(np.prod(shape)) * 2
    screen.line(
        f"gpustore {gpustore.__version__}: a uint16 volume of {' x '.join(map(str, shape))}, "
        f"{format_nbytes(nbytes)}, in chunks of {' x '.join(map(str, CHUNK))}",
        style="bold",
    )
    with screen.step("make the volume", nbytes) as advance:
        volume = make_volume(shape, arguments.seed, advance=advance)
    measured = [_measure(screen, folder, format_, volume, arguments.seed) for format_ in FORMATS]
    plane = numbers_of(volume[shape[0] // 2])
    save_png(folder / PICTURE, stretch(plane, *contrast_of(plane)))
    _report(screen, folder, volume, measured)
    return 0


def _prepare_folder(name: str | None, nbytes: int) -> Path:
    """Return the folder to work in; nothing that lies there is overwritten."""
    if name is None:
        folder = Path(tempfile.mkdtemp(prefix="gpustore-demo-"))
    else:
        folder = Path(name)
        if folder.exists() and not folder.is_dir():
            raise CommandError(f"{folder} is a file: name a folder")
        folder.mkdir(parents=True, exist_ok=True)
        for output in (*(format_.folder for format_ in FORMATS), PICTURE):
            if (folder / output).exists():
                raise CommandError(
                    f"{folder / output} exists already: remove it or name another folder"
                )
    free = shutil.disk_usage(folder).free
    if free < len(FORMATS) * nbytes:
        raise CommandError(
            f"{folder} has {format_nbytes(free)} free and may need "
            f"{format_nbytes(len(FORMATS) * nbytes)}: name another folder or a smaller --size"
        )
    return folder


def _measure(
    screen: Screen, folder: Path, format_: Format, volume: npt.NDArray[np.uint16], seed: int
) -> Measured:
    """Write, read and crop in one format."""
    path = folder / format_.folder
    store = gpustore.open(
        {
            "driver": format_.driver,
            "kvstore": {"driver": "file", "path": str(path)},
        },
        create=True,
        dtype="uint16",
        shape=volume.shape,
        chunk_layout=gpustore.ChunkLayout(chunk_shape=CHUNK),
        codec=gpustore.CodecSpec(format_.codec),
    ).result()
    begin = time.perf_counter()
    with screen.step(f"write {format_.title}", volume.nbytes) as advance:
        for z in range(0, len(volume), CHUNK[0]):
            slab = volume[z : z + CHUNK[0]]
            store[z : z + len(slab)].write(slab).result()
            advance(slab.nbytes)
    write_s = time.perf_counter() - begin

    begin = time.perf_counter()
    with screen.step("  read it whole", volume.nbytes):
        whole = store.read().result()
    read_s = time.perf_counter() - begin
    if not np.array_equal(whole, volume):
        raise CommandError(f"{path}: what was read is not what was written")
    del whole

    places = _crops(volume.shape, seed)
    crops_nbytes = sum(volume[place].nbytes for place in places)
    crops_s = 0.0
    with screen.step(f"  read {NCROPS} random crops", crops_nbytes) as advance:
        for place in places:
            begin = time.perf_counter()
            crop = store[place].read().result()
            crops_s += time.perf_counter() - begin
            if not np.array_equal(crop, volume[place]):
                raise CommandError(
                    f"{folder / format_.folder}: a crop at {place} is not what was written"
                )
            advance(crop.nbytes)
    stored = sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
    return Measured(stored, write_s, read_s, crops_s, crops_nbytes)


def _crops(shape: Sequence[int], seed: int) -> list[tuple[slice, ...]]:
    """Random boxes inside `shape`, seldom aligned with chunks."""
    rng = np.random.default_rng(seed)
    extents = [min(c, n) for c, n in zip(CROP, shape, strict=True)]
    starts = rng.integers(0, [n - c + 1 for n, c in zip(shape, extents, strict=True)], (NCROPS, 3))
    return [
        tuple(slice(int(a), int(a) + c) for a, c in zip(start, extents, strict=True))
        for start in starts
    ]


def _report(
    screen: Screen, folder: Path, volume: npt.NDArray[np.uint16], measured: Sequence[Measured]
) -> None:
    """Return the table, what lies where, and the next command."""
    rows = [
        (
            format_.title,
            format_nbytes(m.stored_nbytes),
            f"{volume.nbytes / m.stored_nbytes:.2f}",
            f"{volume.nbytes / m.write_s / 1e9:.2f}",
            f"{volume.nbytes / m.read_s / 1e9:.2f}",
            f"{m.crops_nbytes / m.crops_s / 1e9:.2f}",
        )
        for format_, m in zip(FORMATS, measured, strict=True)
    ]
    screen.line()
    screen.table(("format", "stored", "ratio", "write\nGB/s", "read\nGB/s", "crops\nGB/s"), rows)
    screen.line(
        f"GB/s of decoded data on {cores()} CPU cores, files in the page cache; "
        f"crops of up to {' x '.join(map(str, CROP))}."
    )
    core = gpustore.native_core()
    if not core.in_use:
        screen.line(f"Without the native core: {core.reason}.")
    screen.line(f"All {volume.size:,} values and {NCROPS} crops came back equal, in every format.")
    screen.line()
    left = [(f.folder, f.title) for f in FORMATS]
    left.append((PICTURE, f"slice {len(volume) // 2}, contrast stretched"))
    screen.facts(f"Left in {folder}", left)
    screen.line()
    screen.line(
        f"Next: gpustore info {shlex.quote(str(folder / FORMATS[-1].folder))}", style="bold"
    )


COMMANDS = {"demo": add_options}
