"""``gpustore ls``, ``du`` and ``cat``: what is stored under a URL, whatever kvstores it chains.

A URL that names an array's format (``x.zarr|zarr3:``) stands for the keys the array is stored in.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import gpustore
from gpustore.cli.failure import CommandError
from gpustore.cli.screen import Screen, format_nbytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

__all__ = ["cat", "du", "ls"]

_PART_NBYTES = 64 << 20
"""Longer values are printed in parts of so many bytes."""


def ls(arguments: argparse.Namespace) -> int:
    """Print the names one level below a URL, those of directories with a slash; or all keys."""
    names = dict.fromkeys(_keys(_directory(arguments.url)))
    if not arguments.recursive:
        names = dict.fromkeys(_child(name) for name in names)
    for name in sorted(names):
        print(name)
    return 0


def du(arguments: argparse.Namespace) -> int:
    """Show how many keys and bytes are stored below a URL, and in which of its directories."""
    store = _directory(arguments.url)
    keys = _keys(store)
    children: dict[str, tuple[int, int]] = {}
    for key, nbytes in zip(keys, _sizes(store, keys), strict=True):
        count, total = children.get(_child(key), (0, 0))
        children[_child(key)] = count + 1, total + nbytes
    total = sum(nbytes for _, nbytes in children.values())
    if arguments.json:
        below = {name: {"keys": n, "bytes": b} for name, (n, b) in sorted(children.items())}
        print(json.dumps({"keys": len(keys), "bytes": total, "children": below}, indent=2))
        return 0
    rows = [(name, n, b) for name, (n, b) in children.items()]
    rows.sort(key=lambda row: (-row[2], row[0]))
    table = [(name, str(n), format_nbytes(b)) for name, n, b in rows]
    table.append(("total", str(len(keys)), format_nbytes(total)))
    Screen().table(("name", "keys", "stored"), table)
    return 0


def cat(arguments: argparse.Namespace) -> int:
    """Write the value of a key to standard output; of a JSON pointer, the JSON value."""
    spec = gpustore.Spec(arguments.url)
    driver = spec.to_json()["driver"]
    if driver == "json":
        value = gpustore.open(spec, read=True).result().read().result()[()]
        print(json.dumps(value, indent=2, ensure_ascii=False))
        return 0
    if driver != "auto":
        raise CommandError(
            f"{arguments.url} is an array of {driver}: see `gpustore info`, or name one of its keys"
        )
    out = sys.stdout.buffer
    for part in _parts(_value(arguments.url)):
        out.write(part)
    out.flush()
    return 0


def _value(url: str) -> gpustore.KvStore:
    """The kvstore at a URL or path, also of an array there."""
    kvstore = gpustore.Spec(url).kvstore
    if kvstore is None:
        raise CommandError(f"{url} has no keys")
    return gpustore.KvStore.open(kvstore).result()


def _directory(url: str) -> gpustore.KvStore:
    """The same, with a path to which names can be appended."""
    store = _value(url)
    if not store.path or store.path.endswith("/"):
        return store
    if _is_value(store):
        raise CommandError(f"{url} is a value, not a directory: `gpustore cat` prints it")
    return store + "/"


def _is_value(store: gpustore.KvStore) -> bool:
    """Whether the path is that of a value, not of a directory."""
    try:
        return "" in store
    except gpustore.StoreIOError as error:
        if error.status == "FAILED_PRECONDITION":
            return False  # A directory.
        raise


def _keys(store: gpustore.KvStore) -> list[str]:
    """All keys of a store."""
    keys = [key.decode(errors="surrogateescape") for key in store.list().result()]
    if not keys:
        raise CommandError(f"there is nothing at {store.url}")
    return keys


def _child(key: str) -> str:
    """The part of a key up to the first slash."""
    name, slash, _ = key.partition("/")
    return name + slash


def _sizes(store: gpustore.KvStore, keys: Sequence[str]) -> Iterator[int]:
    """Bytes of each value; 0 of those deleted meanwhile."""
    try:
        located = store.locate_many(keys)
    except gpustore.UnsupportedError:
        for key in keys:
            yield len(store.read(key).result().value)
        return
    located.raise_first()
    for nbytes in located.nbytes:
        yield max(0, nbytes)


def _parts(store: gpustore.KvStore) -> Iterator[bytes]:
    """The value at a path, in parts that fit in memory."""
    nbytes = 0
    try:
        located = store.locate_many([""])
        located.raise_first()
        nbytes = located.nbytes[0]
    except gpustore.UnsupportedError:
        pass
    if nbytes <= _PART_NBYTES:
        yield store[""]
        return
    generation: Any = None
    for start in range(0, nbytes, _PART_NBYTES):
        part = store.read("", byte_range=slice(start, min(start + _PART_NBYTES, nbytes))).result()
        if part.state != "value" or generation not in (None, part.stamp.generation):
            raise CommandError(f"{store.url} was changed while it was read")
        generation = part.stamp.generation
        yield part.value
