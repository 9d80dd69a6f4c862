"""Stored parts of an OCDBT database as JSON, in which keys and values are bytes.

References are ``<kind>:<base path>:<relative path>:<offset>:<length>`` with percent-encoded paths;
kinds are ``value``, ``btreenode`` and ``versionnode``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote as percent_encode
from urllib.parse import unquote_to_bytes

from gpustore.errors import MetadataError, NotFoundError
from gpustore.kvstores.base import invalid_key
from gpustore.kvstores.ocdbt.columns import UINT64_MAX
from gpustore.kvstores.ocdbt.location import MAX_OFFSET, DataFile, Location, is_safe
from gpustore.kvstores.ocdbt.node import Leaf
from gpustore.kvstores.ocdbt.version_tree import Version
from gpustore.strict_json.member_order import ordered
from gpustore.strict_json.parsing import quote

if TYPE_CHECKING:
    from gpustore.kvstores.ocdbt.database import Database
    from gpustore.kvstores.ocdbt.manifest import Manifest
    from gpustore.kvstores.ocdbt.node import Interior, Totals
    from gpustore.kvstores.ocdbt.version_tree import VersionNode, VersionSubtree


_VALUE: Final = "value"
_BTREE_NODE: Final = "btreenode"
_VERSION_NODE: Final = "versionnode"
_REFERENCE: Final = re.compile(
    r"([^:]+):([^:]*):([^:]*):([0-9]{1,20}):([0-9]{1,20})", re.ASCII | re.DOTALL
)


def dump(database: Database, node: str | None) -> Any:
    """Return the manifest, or the node or value of a reference, as JSON.

    Raises
    ------
    NotFoundError
        If there is no manifest.
    MetadataError, InvalidKeyError
        If the reference is not valid.
    CorruptChunkError
        If the referenced data are damaged or missing.
    """
    if node is None:
        manifest = database.snapshot().manifest
        if manifest is None:
            where = database.base.driver.describe(database.base.path)
            raise NotFoundError(f"Manifest not found: there is no OCDBT database at {where}")
        return ordered(_manifest(manifest))
    kind, location = _parse(node)
    if kind == _VALUE:
        return bytes(database.value(location))
    if kind == _BTREE_NODE:
        return ordered(_btree_node(database.any_node(location)))
    return ordered(_version_node(database.any_version_node(location)))


def _parse(reference: str) -> tuple[str, Location]:
    match = _REFERENCE.fullmatch(reference)
    if match is None or max(int(match[4]), int(match[5])) > UINT64_MAX:
        raise MetadataError(f"Invalid indirect data reference: {quote(reference)}")
    if match[1] not in (_VALUE, _BTREE_NODE, _VERSION_NODE):
        raise MetadataError(f"Invalid indirect data kind: {match[1]}")
    for path in match.group(2, 3):
        wrong = re.search(r"%(?![0-9A-Fa-f]{2})", path)
        if wrong:
            raise MetadataError(
                f"Invalid percent-encoding at position {wrong.start()}: {quote(path)}"
            )
    file = DataFile(unquote_to_bytes(match[2]), unquote_to_bytes(match[3]))
    offset, nbytes = int(match[4]), int(match[5])
    if not is_safe(file.base + file.relative):
        raise invalid_key(file.path, "it would leave the database")
    if offset > MAX_OFFSET or nbytes > MAX_OFFSET - offset:
        raise MetadataError(
            f"Invalid offset/length pair in {{file_id={quote(match[2])}+{quote(match[3])}, "
            f"offset={offset}, length={nbytes}}}",
            status="DATA_LOSS",
        )
    return match[1], Location(file, offset, nbytes)


def _reference(kind: str, location: Location) -> str:
    paths = ":".join(
        # `percent_encode` leaves "~" as it is.
        percent_encode(path, safe="/").replace("~", "%7E")
        for path in location.file
    )
    return f"{kind}:{paths}:{location.offset}:{location.nbytes}"


def _manifest(manifest: Manifest) -> dict[str, Any]:
    return {
        "config": manifest.config.constraints.to_json(),
        "versions": [_version(version) for version in manifest.versions],
        "version_tree_nodes": [_subtree(subtree) for subtree in manifest.subtrees],
    }


def _totals(totals: Totals) -> dict[str, int]:
    return {
        "num_keys": totals.num_keys,
        "num_tree_bytes": totals.tree_nbytes,
        "num_indirect_value_bytes": totals.indirect_nbytes,
    }


def _version(version: Version) -> dict[str, Any]:
    root: dict[str, Any] = {"statistics": _totals(version.totals)}
    if not version.is_empty:
        root["location"] = _reference(_BTREE_NODE, version.root)
    return {
        "generation_number": version.generation,
        "root_height": version.root_height,
        "root": root,
        "commit_time": version.commit_time,
    }


def _subtree(subtree: VersionSubtree) -> dict[str, Any]:
    return {
        "generation_number": subtree.generation,
        "location": _reference(_VERSION_NODE, subtree.location),
        "num_generations": subtree.num_generations,
        "commit_time": subtree.commit_time,
        "height": subtree.height,
    }


def _version_node(node: VersionNode) -> dict[str, Any]:
    return {
        "version_tree_arity_log2": node.arity_log2,
        "height": node.height,
        "entries": [
            _version(entry) if isinstance(entry, Version) else _subtree(entry)
            for entry in node.entries
        ],
    }


def _btree_node(node: Leaf | Interior) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    for row, key in enumerate(node.keys.tolist()):
        entry: dict[str, Any] = {"key": key}
        if not isinstance(node, Leaf):
            entry["subtree_common_prefix"] = key[: int(node.prefix_nbytes[row])]
            entry["location"] = _reference(_BTREE_NODE, node.child(row))
            entry["statistics"] = _totals(node.child_totals(row))
        else:
            value = node.value(row)
            if isinstance(value, Location):
                entry["indirect_value"] = _reference(_VALUE, value)
            else:
                entry["inline_value"] = value
        entries.append(entry)
    return {"height": node.height, "entries": entries}
