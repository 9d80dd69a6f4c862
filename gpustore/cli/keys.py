"""``gpustore ls``, ``du`` and ``cat``: keys and values below a URL, through any chain of kvstores.

A URL that names an array's format (``x.zarr|zarr3:``) stands for the keys of the array.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

import gpustore
from gpustore.cli.failure import CommandError, print_not_counted, printable
from gpustore.cli.options import add_json_option, add_place_options
from gpustore.cli.places import reading_context, spec_of
from gpustore.display.text import format_nbytes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Collection, Iterator, Sequence


_PLACE = "URL or path: a folder, an archive (x.zip|zip:), an array"

_PART_NBYTES = 64 << 20
"""Largest value that is printed in one part, in bytes."""


def _ls_options(command: argparse.ArgumentParser) -> None:
    command.description = "Prints the names one level below a URL, directories with a slash."
    command.add_argument("url", metavar="URL_OR_PATH", help=_PLACE)
    command.add_argument("-r", "--recursive", action="store_true", help="print all keys")
    add_place_options(command)
    command.set_defaults(run=ls)


def _cat_options(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Writes a stored value to standard output, or the JSON value at a JSON "
        "pointer (x.json|json:/a/b)."
    )
    command.add_argument("url", metavar="URL_OR_PATH", help="URL or path of a key")
    add_place_options(command)
    command.set_defaults(run=cat)


def _du_options(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Prints the numbers of keys and bytes below a URL, in total and by directory."
    )
    command.add_argument("url", metavar="URL_OR_PATH", help=_PLACE)
    add_json_option(command)
    add_place_options(command)
    command.set_defaults(run=du)


def ls(arguments: argparse.Namespace) -> int:
    """Print the names one level below a URL, directories with a slash; or all keys."""
    store = _value(arguments)
    _require_list(store, arguments.url)
    directory = _directory(store)
    if directory is None:
        raise CommandError(
            f"{arguments.url} is a value, not a directory: `gpustore cat` prints it; if it is an "
            f'archive, "|zip:" behind it lists what is inside'
        )
    if arguments.recursive:
        names = [key.decode(errors="surrogateescape") for key in directory.list().result()]
    else:
        names = directory.list_names().result()
    _require(names, arguments.url)
    if sys.stdout.isatty():
        sys.stdout.writelines(f"{printable(name)}\n" for name in names)
    else:
        lines = (name.encode(errors="surrogateescape") + b"\n" for name in names)
        sys.stdout.flush()
        sys.stdout.buffer.writelines(lines)
    return 0


def du(arguments: argparse.Namespace) -> int:
    """Print the numbers of keys and bytes below a URL, in total and by directory.

    Unreadable values are reported and not counted; the exit code is then 1.
    """
    store = _value(arguments)
    directory = _directory(store)
    if directory is None:
        sizes = dict(zip([store.path.rpartition("/")[2]], store.nbytes_many([""])))
        errors: dict[str, gpustore.GpustoreError] = {}
    else:
        _require_list(store, arguments.url)
        sizes, errors = directory.list_nbytes().result()
        _require([*sizes, *errors], arguments.url)
    print_not_counted(errors)
    children: dict[str, tuple[int, int]] = {}
    for key, nbytes in sizes.items():
        name, slash, _ = key.partition("/")
        count, total = children.get(name + slash, (0, 0))
        children[name + slash] = count + 1, total + nbytes
    total = sum(nbytes for _, nbytes in children.values())
    if arguments.json:
        below = {name: {"keys": n, "bytes": b} for name, (n, b) in sorted(children.items())}
        print(json.dumps({"keys": len(sizes), "bytes": total, "children": below}, indent=2))
        return int(bool(errors))
    rows = [(name, n, b) for name, (n, b) in children.items()]
    rows.sort(key=lambda row: (-row[2], row[0]))
    table = [(printable(name), str(n), format_nbytes(b)) for name, n, b in rows]
    table.append(("total", str(len(sizes)), format_nbytes(total)))
    _print_table([("name", "keys", "stored"), *table])
    return int(bool(errors))


def cat(arguments: argparse.Namespace) -> int:
    """Write the value of a key, or the JSON value at a JSON pointer, to standard output."""
    spec = gpustore.Spec(spec_of(arguments.url, arguments))
    driver = spec.to_json()["driver"]
    if driver == "json":
        context = reading_context(arguments)
        value = gpustore.open(spec, read=True, context=context).result().read().result()[()]
        print(json.dumps(value, indent=2, ensure_ascii=False))
        return 0
    if driver != "auto":
        raise CommandError(
            f"{arguments.url} is an array of {driver}: see `gpustore info`, or name one of its keys"
        )
    out = sys.stdout.buffer
    try:
        for part in _parts(_value(arguments), arguments.url):
            out.write(part)
    except gpustore.InvalidKeyError as error:
        raise CommandError(
            f"{arguments.url} is no key of a value ({error}): `gpustore ls` lists what is in it"
        ) from error
    except gpustore.StoreIOError as error:
        if not _is_directory(error):
            raise
        raise CommandError(f"{error}: `gpustore ls` lists what is in it") from error
    out.flush()
    return 0


def _print_table(rows: Sequence[tuple[str, str, str]]) -> None:
    """Lines with columns, for people and for pipes; all columns but the first are numbers."""
    names, keys, sizes = (max(map(len, column)) for column in zip(*rows))
    for name, count, size in rows:
        print(f"{name:<{names}}  {count:>{keys}}  {size:>{sizes}}")


def _value(arguments: argparse.Namespace) -> gpustore.KvStore:
    """Return the kvstore at a URL or path, also of an array there."""
    kvstore = gpustore.Spec(spec_of(arguments.url, arguments)).kvstore
    if kvstore is None:
        raise CommandError(f"{arguments.url} has no keys")
    return gpustore.KvStore.open(kvstore, context=reading_context(arguments)).result()


def _require_list(store: gpustore.KvStore, url: str) -> None:
    if not store.driver.can_list:
        raise CommandError(
            f"{url} cannot be listed: {store.driver.id} servers do not tell what they have; "
            "`gpustore info` shows a group whose metadata are consolidated; if it is an archive, "
            '"|zip:" behind it lists what is inside'
        )


def _directory(store: gpustore.KvStore) -> gpustore.KvStore | None:
    """Return the kvstore with a path for appending names; None if it is that of a value."""
    if not store.path or store.path.endswith("/"):
        return store
    return None if _is_value(store) else store + "/"


def _is_value(store: gpustore.KvStore) -> bool:
    """Whether the path is that of a value, not of a directory."""
    try:
        return "" in store
    except gpustore.StoreIOError as error:
        if _is_directory(error):
            return False
        raise


def _is_directory(error: gpustore.StoreIOError) -> bool:
    """Whether a key has no value because it is that of a directory."""
    return error.status == "FAILED_PRECONDITION" and str(error).endswith(" but a directory")


def _require(names: Collection[str], url: str) -> None:
    if not names:
        raise CommandError(f"there is nothing at {url}")


def _parts(store: gpustore.KvStore, url: str) -> Iterator[bytes]:
    """Yield the value at a path, in parts that fit in memory."""
    nbytes = 0
    with contextlib.suppress(gpustore.UnsupportedError):
        located = store.locate_many([""])
        located.raise_first()
        nbytes = located.nbytes[0]
    if nbytes <= _PART_NBYTES:
        yield store[""]
        return
    generation: Any = None
    for start in range(0, nbytes, _PART_NBYTES):
        part = store.read("", byte_range=slice(start, min(start + _PART_NBYTES, nbytes))).result()
        if part.state != "value" or generation not in (None, part.stamp.generation):
            raise CommandError(f"{url} was changed while it was read")
        generation = part.stamp.generation
        yield part.value


COMMANDS = {"ls": _ls_options, "cat": _cat_options, "du": _du_options}
