"""``gpustore tree``: groups and arrays below a URL, with shapes, data types and sizes.

The metadata of the members are read, which is one request where they are consolidated. Stored sizes
need a list of all keys, and are shown with ``--stored`` only.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import gpustore
from gpustore.cli.failure import CommandError, print_not_counted
from gpustore.cli.ome import find_image, line_of, scale_text
from gpustore.cli.options import add_json_option, add_place_options, integer
from gpustore.cli.places import open_node, reading_context
from gpustore.cli.screen import Screen
from gpustore.display.elements import Elements
from gpustore.display.text import format_nbytes, format_shape

if TYPE_CHECKING:
    import argparse

    from gpustore.ome.multiscale import Multiscale


def add_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the command to its parser."""
    command.description = (
        "Draws the groups and arrays below a URL: shape, data type, shape of a chunk, "
        "decoded size; of images in OME-Zarr also axes, and the scale of each level."
    )
    command.add_argument("url", metavar="URL_OR_PATH", help="URL or path of a group or an array")
    command.add_argument(
        "-d",
        "--depth",
        type=integer(0, 1000),
        metavar="N",
        help="levels of groups below the first to go into (default: all)",
    )
    command.add_argument(
        "-s", "--stored", action="store_true", help="show stored sizes too, which lists all keys"
    )
    add_json_option(command)
    add_place_options(command)
    command.set_defaults(run=run)


@dataclass
class Entry:
    """A group or an array of the tree.

    Attributes
    ----------
    name : str
    kind : {"array", "group", None}
        None for a member that cannot be read.
    facts : dict
        Facts as JSON.
    image : Multiscale or None
        Image in OME-Zarr that a group is.
    members : dict of str to Entry
        Members of a group by name.
    """

    name: str
    kind: str | None
    facts: dict[str, Any] = field(default_factory=dict)
    image: Multiscale | None = None
    members: dict[str, Entry] = field(default_factory=dict)

    def all(self) -> Iterator[Entry]:
        """Yield the entry and all below it, groups before their members."""
        stack = [self]
        while stack:
            entry = stack.pop()
            yield entry
            stack += reversed(entry.members.values())

    def json_text(self) -> str:
        """Return the entry and all below it as JSON, also where :mod:`json` finds it too deep."""
        texts: list[str] = []
        stack: list[str | tuple[Entry, str]] = [(self, "")]
        while stack:
            one = stack.pop()
            if isinstance(one, str):
                texts.append(one)
                continue
            entry, indent = one
            text = json.dumps({"type": entry.kind, **entry.facts}, indent=2)
            texts.append(text[:-2].replace("\n", f"\n{indent}"))
            inside: list[str | tuple[Entry, str]] = []
            for name, member in entry.members.items():
                before = "," if inside else f',\n{indent}  "members": {{'
                inside += [f"{before}\n{indent}    {json.dumps(name)}: ", (member, indent + "    ")]
            if inside:
                inside.append(f"\n{indent}  }}")
            stack += reversed([*inside, f"\n{indent}}}"])
        return "".join(texts)


def run(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit code."""
    node = open_node(arguments.url, arguments, reading_context(arguments))
    if isinstance(node, gpustore.Group):
        root = _of_group(node, arguments.url, arguments.depth)
    else:
        root = _of_array(node, arguments.url)
    code = 0
    if arguments.stored:
        code = _add_stored(root, node.kvstore, arguments.url)
    _sum(root)
    if arguments.json:
        print(root.json_text())
        return code
    screen = Screen()
    for line in _lines(root):
        _print(screen, line)
    return code


def _of_array(store: gpustore.TensorStore, name: str) -> Entry:
    elements = Elements.of(store)
    written = store.shards or store.chunks
    chunk = None if written is None else list(written[: elements.rank])
    shape = [int(n) for n in store.shape[: elements.rank]]
    facts: dict[str, Any] = {"shape": shape, "dtype": elements.dtype, "chunk": chunk}
    facts["is_sharded"] = store.shards is not None
    return Entry(name, "array", {**facts, "nbytes": math.prod(shape) * elements.nbytes})


def _of_group(group: gpustore.Group, name: str, depth: int | None) -> Entry:
    root = Entry(name, "group", {"format": f"Zarr v{group.zarr_format}"}, find_image(group.attrs))
    if root.image is not None:
        root.facts["ome"] = line_of(root.image)
    for path, node in group.walk(depth):
        parent, _, last = path.rpartition("/")
        above = root
        for part in parent.split("/") if parent else ():
            above = above.members[part]
        above.members[last] = _of_node(last, node)
    return root


def _of_node(name: str, node: gpustore.Node) -> Entry:
    try:
        if node.error is not None:
            raise node.error
        if node.is_group:
            image = find_image(node.attributes)
            return Entry(name, "group", {} if image is None else {"ome": line_of(image)}, image)
        nbytes = math.prod(node.shape) * node.dtype.itemsize
        facts: dict[str, Any] = {"shape": list(node.shape), "dtype": _dtype_name(node)}
        facts |= {"chunk": _chunk(node), "is_sharded": _is_sharded(node), "nbytes": nbytes}
        return Entry(name, "array", facts)
    except gpustore.GpustoreError as error:
        return Entry(name, None, {"error": error.text})


def _dtype_name(node: gpustore.Node) -> str:
    name = getattr(node.dtype, "name", None)
    return name if isinstance(name, str) else str(node.dtype)


def _chunk(node: gpustore.Node) -> list[int] | None:
    grid = node.document.get("chunk_grid")
    if isinstance(grid, Mapping) and grid.get("name") != "regular":
        return None
    return list(node.chunk_shape)


def _is_sharded(node: gpustore.Node) -> bool:
    codecs = node.document.get("codecs")
    return isinstance(codecs, list) and any(
        isinstance(codec, Mapping) and codec.get("name") == "sharding_indexed" for codec in codecs
    )


def _add_stored(root: Entry, kvstore: gpustore.KvStore | None, url: str) -> int:
    """Add the stored sizes, from a list of all keys; return the exit code.

    Values whose sizes cannot be found are reported and not counted; the exit code is then 1.
    """
    if kvstore is None or not kvstore.driver.can_list:
        raise CommandError(f"{url} cannot be listed, so that stored sizes are not known")
    sizes, errors = kvstore.list_nbytes().result()
    print_not_counted(errors)
    root.facts["stored_nbytes"] = 0
    for key, nbytes in sizes.items():
        entry: Entry | None = root
        for part in [*key.lstrip("/").split("/"), ""]:
            if entry is None:
                break
            entry.facts["stored_nbytes"] = entry.facts.get("stored_nbytes", 0) + nbytes
            entry = entry.members.get(part)
    return int(bool(errors))


def _sum(root: Entry) -> None:
    """Add the decoded size of all arrays below a group, for each group."""
    for entry in reversed([*root.all()]):
        if entry.kind == "group":
            below = entry.members.values()
            entry.facts["nbytes"] = sum(int(one.facts.get("nbytes", 0)) for one in below)


@dataclass(frozen=True, slots=True)
class _Line:
    """A line of the tree.

    Attributes
    ----------
    before : str
        Branches that lead to the name.
    name, style : str
        Name and its style.
    about : str
        Text behind the name.
    below : str
        Branches that go on where the text is folded.
    """

    before: str
    name: str
    style: str
    about: str
    below: str


def _print(screen: Screen, line: _Line) -> None:
    indent = len(line.before) + len(line.name) + 2
    first, *more = screen.folded(line.about, screen.width - indent)
    text = f"  {first}" if first else ""
    screen.parts([(line.before, "dim"), (line.name, line.style), (text, "dim")])
    for text in more:
        screen.parts([(line.below.ljust(indent) + text, "dim")])


def _lines(root: Entry) -> Iterator[_Line]:
    """Yield the lines of an entry and of all below it."""
    stack: list[tuple[Entry, str, str, str | None]] = [(root, "", "", None)]
    while stack:
        entry, before, indent, scale = stack.pop()
        style = {"group": "bold", "array": "", None: "red"}[entry.kind]
        below = indent + ("│" if entry.members else "")
        yield _Line(before, entry.name, style, _about(entry, scale), below)
        image = entry.image
        for number, (name, one) in enumerate(reversed(entry.members.items())):
            within = None if image is None or name not in image.levels else scale_text(image, name)
            branch, further = ("├── ", "│   ") if number else ("└── ", "    ")
            stack.append((one, indent + branch, indent + further, within))


def _about(entry: Entry, scale: str | None) -> str:
    """Return what stands behind a name."""
    facts = entry.facts
    if entry.kind is None:
        return f"unreadable: {facts['error']}"
    if entry.kind == "array":
        texts = [f"{format_shape(facts['shape'])} {facts['dtype']}"]
        noun = "shard" if facts["is_sharded"] else "chunk"
        if scale is None and facts["chunk"] and facts["chunk"] != facts["shape"]:
            texts.append(f"{noun} {format_shape(facts['chunk'])}")
    else:
        texts = [facts[name] for name in ("format", "ome") if name in facts]
    if entry.kind == "array" or facts["nbytes"]:
        texts.append(format_nbytes(facts["nbytes"]))
    if "stored_nbytes" in facts:
        texts.append(f"{format_nbytes(facts['stored_nbytes'])} stored")
    if scale is not None:
        texts.append(scale)
    return ", ".join(texts)


COMMANDS = {"tree": add_options}
