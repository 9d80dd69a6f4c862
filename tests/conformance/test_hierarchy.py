"""The corpus in ``hierarchy/``: documents of nodes, consolidated metadata and paths, and what
reading them gives.

A file has cases of one ``kind``, and a ``provenance`` that its cases may replace. A case has a
``name``, an ``input`` (``zarr_format`` and ``documents`` by name, where a string is the text as
stored; or ``value``; or ``path``), and ``parsed``, of which members that are not named are not
compared, or the kind of an ``error``, whose text contains ``message``.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from gpustore.errors import GpustoreError
from gpustore.metadata.consolidated import ConsolidatedMetadata
from gpustore.metadata.logical_path import check_node_names, logical_path
from gpustore.metadata.node import parse_document, parse_node
from gpustore.runtime.limits import DEFAULT_LIMITS
from tests.matrix import each

CASES = Path(__file__).with_name("hierarchy")
FILES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in CASES.glob("*.json")}


def plain(node):
    """What a node says, as JSON."""
    if node.error is not None:
        return {"error": node.error.kind}
    said = {"node_type": node.node_type, "attributes": dict(node.attributes)}
    if node.is_array:
        dtype = node.dtype
        said["shape"] = list(node.shape)
        said["chunk_shape"] = list(node.chunk_shape)
        said["dtype"] = dtype.str if isinstance(dtype, np.dtype) else dtype.name
    return said


def read_node(case):
    """One array or group, from its documents."""
    documents = {
        name: parse_document(text.encode(), name=name, where=name, limits=DEFAULT_LIMITS)
        if isinstance(text, str)
        else text
        for name, text in case["documents"].items()
    }
    node = parse_node("x", case["zarr_format"], documents, where="x", limits=DEFAULT_LIMITS)
    if node.error is not None:
        raise node.error
    return plain(node)


def read_consolidated(case):
    """All nodes that consolidated metadata tell of."""
    found = ConsolidatedMetadata(
        case["zarr_format"], case["value"], where="x", limits=DEFAULT_LIMITS
    )
    nodes = {}
    pending = [""]
    while pending:
        for node in found.children(pending.pop()):
            nodes[node.path] = plain(node)
            pending.append(node.path)
    return nodes


def read_logical_path(case):
    """A normalised path; with a format, one at which something is to be created."""
    path = logical_path(case["path"])
    if "zarr_format" in case:
        check_node_names(path, case["zarr_format"])
    return path


READERS = {
    "consolidated": read_consolidated,
    "logical_path": read_logical_path,
    "node": read_node,
}


def all_cases():
    for stem, file in sorted(FILES.items()):
        for case in file["cases"]:
            yield pytest.param(file["kind"], case, id=f"{stem}-{case['name']}")


def named_in(expected, found):
    """`found` with only the members that are named in `expected`, at any depth."""
    if not isinstance(expected, dict) or not isinstance(found, dict):
        return found
    return {name: named_in(expected[name], found[name]) for name in expected if name in found}


@each(("kind", "case"), list(all_cases()))
def test_case(kind, case):
    if "error" in case:
        with pytest.raises(GpustoreError) as caught:
            READERS[kind](case["input"])
        assert caught.value.kind == case["error"]
        assert case.get("message", "") in str(caught.value)
    else:
        found = READERS[kind](case["input"])
        assert named_in(case["parsed"], found) == case["parsed"]


def test_there_is_a_corpus():
    assert {file["kind"] for file in FILES.values()} == set(READERS)
    for stem, file in FILES.items():
        names = [case["name"] for case in file["cases"]]
        assert len(names) >= 10, stem
        assert len(set(names)) == len(names), stem
        assert all(case.get("provenance") or file.get("provenance") for case in file["cases"]), stem
        assert all(("error" in case) != ("parsed" in case) for case in file["cases"]), stem
        assert any("error" in case for case in file["cases"]), stem
