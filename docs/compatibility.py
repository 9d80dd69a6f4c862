"""Writes docs/compatibility.md: the features of Zarr in each library, missing parts of TensorStore.

    python docs/compatibility.py

tries each feature with gpustore and with the other libraries that are installed; the column of a
library that is not installed stays. Tests fail while the page is out of date.
"""

import contextlib
import inspect
import json
import re
import sys
import tempfile
from collections.abc import Mapping
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tensorstore

import gpustore
from gpustore import registry

sys.path.insert(0, str(Path(__file__).parents[1]))  # The features are those of the tests.
from docs.differences import DIFFERENCES, outcome
from tests.interop.libraries import FEATURES, PEERS, try_device, try_host, try_peer

PAGE = Path(__file__).with_suffix(".md")

HEAD = """\
# Compatibility

This page shows which features of Zarr work in gpustore, TensorStore, zarr-python and zarrs. Each
cell is the outcome of a test: the script `docs/compatibility.py`, which writes this page, makes
small arrays with NumPy and numcodecs, reads them with each library and compares the elements; each
library then writes them, and the script compares the stored chunks (after decompression). A refusal
quotes the library's error, shortened.

* **gpustore** is gpustore on the CPU. "As it must" marks arrays that the specification forbids to
  read.
* **device** is the place where gpustore decodes the chunks of a read into GPU memory, here of an
  emulated GPU: `device`, or the reason why the host decodes and the elements are copied.
  `host_fallbacks` in the read's `statistics` counts such chunks; `explain()` estimates them
  unless the stored bytes decide. `gpu.md` says who encodes writes.
* **zarrs** is the codec pipeline of zarr-python. zarr-python opens the arrays for it, and so
  refuses some that zarrs supports. The script gives zarrs the codecs whose names zarr-python lacks.
"""

ABSENT = """\
# Missing parts of TensorStore

The lists compare gpustore with TensorStore {version}. A listed driver or option in a spec raises a
typed error that names it; a listed Python name does not exist. Everything else is meant to behave
as in TensorStore.
"""

DIFFERENT = """\
# Differences from TensorStore on purpose

The outcomes are those of small programs, `docs/differences.py`, run with both packages. The guide
[coming-from-tensorstore.md](guide/coming-from-tensorstore.md) says what is meant by them.

| behaviour | TensorStore {version} | gpustore | reason |
| --- | --- | --- | --- |
"""

DEVICES = """\
## Devices

Present: cpu; cuda (tested on an emulated device, never run on a GPU).

Plain images of the drivers `jpeg` and `tiff` (not LZW), and chunks of one channel of Neuroglancer
precomputed volumes in JPEG, are decoded on a GPU by nvImageCodec where it is installed (extras
`image13` and `image12`). The elements of JPEG may be rounded in another way than on the host, which
has TensorStore's; `gpu_decode_choice: "host"` gives these. All other images are decoded by the host
and then copied; `host_fallbacks` of the statistics counts them. [A page](gpu.md#images) lists them.
"""

TITLES = {"tensorstore": "TensorStore", "zarr": "zarr-python", "zarrs": "zarrs"}

EXTENSIONS = """\
## Forms of Zarr metadata

gpustore reads every form that occurs and writes the form that most readers take.

| member | read | written |
| --- | --- | --- |
| codecs, chunk key encoding, data type by name alone (`"zstd"`) | \
yes; `zstd` and `gzip` without a level | as objects |
| `"must_understand": true` | anywhere in an extension | left out |
| unknown codec or storage transformer with `"must_understand": false` | \
passed over, as if it were not listed | such arrays are \
not written (`UnsupportedError`), because a reader that knows the codec could read other elements; \
resizing keeps it |
| `"must_understand": false` of a data type, chunk grid or chunk key encoding | \
refused, as the specification says | never |
| unknown member of an array with `"must_understand": false` | passed over | kept |
| chunk grid `rectilinear` | yes; TensorStore and zarr-python 3.1 do not | \
runs of two and more as `[size, count]`; does not grow \
beyond its edges |
| missing `compressor` or `filters` (Zarr v2) | null | always there |
| chunks of 0 elements along a dimension of extent 0 | as 1 | 1 |
"""

# Name as users know it -> file name in the folder of the package; others are known by that.
DRIVERS = {
    "array": "array",
    "auto": "auto",
    "cast": "cast",
    "downsample": "downsample",
    **{name: name for name in ("avif", "bmp", "jpeg", "png", "tiff", "webp")},
    "json": "json",
    "n5": "n5",
    "neuroglancer_precomputed": "neuroglancer_precomputed",
    "stack": "stack",
    "zarr (Zarr v2)": "zarr2",
    "zarr3 (Zarr v3)": "zarr3",
}
KVSTORES = {
    "file": "file",
    "gcs": "gcs",
    "gcs_grpc": "gcs_grpc",
    "http and https": "http",
    "kvstack": "kvstack",
    "memory": "memory",
    "neuroglancer_uint64_sharded": "neuroglancer_uint64_sharded",
    "ocdbt": "ocdbt",
    "s3": "s3",
    "tsgrpc_kvstore": "tsgrpc_kvstore",
    "zarr3_sharding_indexed": "zarr3_sharding_indexed",
    "zip": "zip",
}

OPTIONS: dict[str, tuple[Any, ...]] = {
    "data_copy_concurrency": ({"limit": "shared"}, {"limit": 2}),
    "file_io_concurrency": ({"limit": "shared"}, {"limit": 2}),
    "file_io_locking": (
        {"mode": "os"},
        {"mode": "lockfile"},
        {"mode": "none"},
        {"mode": "non_atomic"},
    ),
    "file_io_mode": ({"mode": "default"}, {"mode": "memmap"}, {"mode": "direct"}),
    "file_io_retries": ({"max_retries": 3},),
    "file_io_sync": (True, False),
    "cache_pool": ({"total_bytes_limit": 1000},),
}
"""Context resources of local files, with the values to try."""

KVSTORE_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "experimental_gcs_rate_limiter": ({"write_rate": 5}, "gcs"),
    "experimental_s3_rate_limiter": ({"read_rate": 5}, "s3"),
    "ocdbt_coordinator": ({"address": "localhost:8000"}, "ocdbt"),
}
"""Context resources of other kvstores, with a value to try and the driver."""

TABLES = (
    ("Drivers", "drivers", DRIVERS),
    ("Kvstores", "kvstores", KVSTORES),
)


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")} - {"annotations"}


def absent_members(theirs: Any, ours: Any, prefix: str = "") -> dict[str, list[str]]:
    """Return, by class or module in `theirs`, the names that the one in `ours` lacks."""
    found = {}
    for name in sorted(public(theirs) & public(ours)):
        one, other = getattr(theirs, name), getattr(ours, name)
        classes = all(map(inspect.isclass, (one, other))) or all(
            map(inspect.ismodule, (one, other))
        )
        if classes and not (inspect.isclass(other) and issubclass(other, Enum)):
            missing = sorted(public(one) - public(other))
            if missing:
                found[prefix + name] = missing
            found |= absent_members(one, other, f"{prefix}{name}.")
    return found


def differences() -> str:
    """Return the table of what differs on purpose."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for number, one in enumerate(DIFFERENCES):
            cells = [
                outcome(one.program, api, Path(folder) / f"{number}{api.__name__}")
                for api in (tensorstore, gpustore)
            ]
            if cells[0] == cells[1]:
                raise AssertionError(f"{one.behaviour} does not differ: {cells[0]}")
            row = [one.behaviour, *(f"`{cell}`" for cell in cells), one.reason]
            rows.append(" | ".join(cell.replace("|", r"\|") for cell in row))
    return "".join(f"| {row} |\n" for row in rows)


def refused_options() -> list[str]:
    """Return values of context resources that TensorStore takes and gpustore refuses."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        spec = {"driver": "zarr3", "kvstore": f"file://{folder}/"}
        for name, values in OPTIONS.items():
            for value in values:
                context = {name: value}
                try:
                    gpustore.open(
                        spec,
                        create=True,
                        open=True,
                        dtype="uint8",
                        shape=[1],
                        context=gpustore.Context(context),
                    ).result()
                except gpustore.UnsupportedError:
                    tensorstore.Context(context)[name]  # It is one of TensorStore's values.
                    found.append(json.dumps(context))
    for name, (value, driver) in KVSTORE_OPTIONS.items():
        place = {"base": "memory://"} if driver == "ocdbt" else {"bucket": "abc", name: name}
        kvstore = {"driver": driver, **place, "context": {name: value}}
        tensorstore.KvStore.Spec(kvstore)
        with contextlib.suppress(gpustore.UnsupportedError):
            gpustore.KvStore.open(kvstore).result()
            continue
        found.append(json.dumps({name: value}))
    return found


def quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


Row = tuple[str, str]
"""Section and name."""


def merged(cells: Mapping[str, str]) -> str:
    """Join the cells of several cases: the most frequent outcome first, one reason for each."""
    cases: dict[str, list[str]] = {}
    for case, cell in cells.items():
        cases.setdefault(cell.partition(":")[0], []).append(case)
    usual, *others = sorted(cases.values(), key=len, reverse=True)
    rest = (f"{', '.join(names)}: {cells[names[0]]}" for names in others)
    return "; ".join([cells[usual[0]], *rest])


def column(by_id: Mapping[str, str]) -> dict[Row, str]:
    """Return the cells of one library, by row."""
    cases: dict[Row, dict[str, str]] = {}
    for feature in FEATURES:
        cases.setdefault((feature.section, feature.name), {})[feature.case] = by_id[feature.id]
    return {row: merged(cells) for row, cells in cases.items()}


def own_columns() -> list[dict[Row, str]]:
    """Return gpustore's columns: on the host and on the emulated device."""
    names = [feature.id for feature in FEATURES]
    host = [try_host(feature) for feature in FEATURES]
    return [column(dict(zip(names, cells))) for cells in (host, try_device(FEATURES))]


def kept(text: str) -> dict[str, tuple[str, dict[Row, str]]]:
    """Return version and column of each other library from the text of a page."""
    found = {}
    for index, name in enumerate(PEERS):
        title = re.search(rf"{TITLES[name]} ([0-9.a-z]+) \|", text)
        cells = {}
        for section in text.split("\n## ")[1:]:
            for line in section.splitlines():
                parts = [part.replace("\\|", "|") for part in line[2:-2].split(" | ")]
                if len(parts) == len(PEERS) + 3 and parts[0] not in ("feature", "---"):
                    cells[section.splitlines()[0], parts[0]] = parts[3 + index]
        found[name] = (title[1] if title else "", cells)
    return found


def tried(name: str, text: str) -> tuple[str, dict[Row, str]]:
    """Try an installed library; return its version and column, or those of the page."""
    try:
        return version(name), column(try_peer(name))
    except PackageNotFoundError:
        return kept(text)[name]


def tables(peers: Mapping[str, tuple[str, Mapping[Row, str]]]) -> str:
    """Return the tables of features, one a section."""
    columns = [*own_columns(), *(cells for _, cells in peers.values())]
    titles = [
        "feature",
        "gpustore",
        "device",
        *(f"{TITLES[name]} {peers[name][0]}" for name in peers),
    ]
    parts, section = [], None
    for row in columns[0]:
        if row[0] != section:
            section = row[0]
            rule = " | ".join(["---"] * len(titles))
            parts.append(f"\n## {section}\n\n| {' | '.join(titles)} |\n| {rule} |")
        cells = [row[1], *(cells.get(row, "not tried") for cells in columns)]
        escaped = " | ".join(cell.replace("|", r"\|") for cell in cells)
        parts.append(f"| {escaped} |")
    return "\n".join(parts) + "\n"


def page(peers: Mapping[str, tuple[str, Mapping[Row, str]]]) -> str:
    """Return the text of docs/compatibility.md."""
    parts = [
        HEAD + tables(peers),
        EXTENSIONS,
        DIFFERENT.format(version=version("tensorstore")) + differences(),
        ABSENT.format(version=version("tensorstore")),
    ]
    for title, folder, names in TABLES:
        registered = registry.ids(folder)
        there = [name for name, file in names.items() if file in registered]
        there += [name for name in registered if name not in names.values()]
        absent = [name for name in names if name not in there]
        parts.append(f"## {title}\n\nAbsent: {'; '.join(absent) or 'none'}.\n")
        parts.append(f"Present: {'; '.join(there)}.\n")
    parts.append(DEVICES)
    parts.append(f"## Context resources\n\nRefused values: {quoted(refused_options())}.\n")
    functions = sorted(public(tensorstore) - public(gpustore))
    parts.append(f"## Python names\n\nNames absent from the module: {quoted(functions)}.\n")
    lines = [
        f"| `{name}` | {quoted(missing)} |"
        for name, missing in absent_members(tensorstore, gpustore).items()
    ]
    if lines:
        parts.append("\n".join(["| class | absent members |", "| --- | --- |", *lines]) + "\n")
    else:
        parts.append("Names absent from its classes: none.\n")
    return "\n".join(parts)


if __name__ == "__main__":
    TEXT = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page({name: tried(name, TEXT) for name in PEERS}), encoding="utf-8")
