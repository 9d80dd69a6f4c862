"""The corpus in ``cases/``: documents, and what reading them gives or which error it raises.

A case changes members of a minimal document (``patch``), or is the whole text, or base64 of the
bytes, or a text that is mostly one repeated piece. ``tensorstore`` says what tensorstore 0.1.86
does where that differs from what we do, and ``why``.
"""

import base64
import json
import re
import time
import tracemalloc
from pathlib import Path

import pytest

from gpustore.errors import GpustoreError
from gpustore.metadata.component import is_opaque, select
from gpustore.metadata.data_type import native_dtype
from gpustore.metadata.zarr2 import Zarr2Metadata
from gpustore.metadata.zarr3 import Zarr3Metadata
from tests.matrix import each

CASES = Path(__file__).with_name("cases")
CLASSES = {"zarr2": Zarr2Metadata, "zarr3": Zarr3Metadata}
WHERE = 'local file "/p/array"'
MINIMAL = {
    "zarr2": {
        "zarr_format": 2,
        "shape": [4, 6],
        "chunks": [2, 3],
        "dtype": "<u2",
        "compressor": None,
        "fill_value": 0,
        "order": "C",
        "filters": None,
    },
    "zarr3": {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 6],
        "data_type": "uint16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    },
}


def load():
    cases = []
    for path in sorted(CASES.glob("*.json")):
        corpus = json.loads(path.read_text())
        assert corpus["provenance"]
        for case in corpus["cases"]:
            cases.append(pytest.param(corpus["format"], case, id=f"{path.stem}: {case['name']}"))
    return cases


ALL = load()
ACCEPTED = [case for case in ALL if "error" not in case.values[1]]
REFUSED = [case for case in ALL if "error" in case.values[1]]
# TensorStore dies of a few; those say "unknown" and why.
ASKED = [case for case in ALL if case.values[1].get("tensorstore") != "unknown"]


def document(version, case):
    if "text" in case:
        return case["text"].encode()
    if "base64" in case:
        return base64.b64decode(case["base64"])
    if "repeat" in case:
        head, piece, times, tail = case["repeat"]
        closing = case.get("mirror", "") * times + case.get("tail", "")
        return (head + piece * times + tail + closing).encode()
    members = MINIMAL[version] | case["patch"]
    deleted = {"__delete__": True}
    return json.dumps({n: v for n, v in members.items() if v != deleted}).encode()


def test_corpus_is_not_empty():
    assert len(ACCEPTED) > 100
    assert len(REFUSED) > 200
    names = [case.id for case in ALL]
    assert len(set(names)) == len(names)


@each(("version", "case"), ACCEPTED)
def test_accepted_document_round_trips(version, case):
    metadata = CLASSES[version].decode(document(version, case), where=WHERE)
    encoded = metadata.encode()
    again = CLASSES[version].decode(encoded, where=WHERE)
    assert again == metadata
    assert again.encode() == encoded
    assert hash(again) == hash(metadata)


@each(("version", "case"), REFUSED)
def test_refused_document_is_typed_error_naming_file(version, case):
    data = document(version, case)
    with pytest.raises(GpustoreError) as caught:
        CLASSES[version].decode(data, where=WHERE)
    error = caught.value
    assert error.kind == case["error"], str(error)
    assert error.text.startswith(f"Error reading {WHERE}: ")
    assert case["message"] in error.text
    assert error.key == WHERE
    assert len(str(error)) < 3000


@pytest.mark.matrix("costly")
@each(("version", "case"), REFUSED)
def test_refusal_is_fast_and_small(version, case):
    data = document(version, case)

    def refuse():
        with pytest.raises(GpustoreError):
            CLASSES[version].decode(data, where=WHERE)

    # A document of megabytes takes its time to parse before it can be refused.
    allowed = max(1, len(data) / (1 << 19))
    seconds = []
    while len(seconds) < 5 and (not seconds or min(seconds) > allowed):
        start = time.thread_time()
        refuse()
        seconds.append(time.thread_time() - start)
    assert min(seconds) < allowed
    tracemalloc.start()
    refuse()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40 * len(data) + (4 << 20)
    assert peak < 100 << 20


@each(("version", "case"), ALL)
def test_a_difference_from_tensorstore_has_a_reason(version, case):
    assert ("tensorstore" in case) == bool(case.get("why"))


@each(("version", "case"), ASKED)
def test_tensorstore_agrees_or_the_case_says_otherwise(version, case, oracle):
    said = case.get("tensorstore", "rejects" if "error" in case else "accepts")
    reply = oracle.open(version, document(version, case))
    assert ("accepts" if "metadata" in reply else "rejects") == said, reply
    if said == "accepts" and "error" not in case:
        check_same_values(version, document(version, case), reply)
        # What we write is what tensorstore reads, with the same bits.
        again = oracle.open(version, CLASSES[version].decode(document(version, case)).encode())
        if version == "zarr2":
            # The byte order of one byte is read as any of <, > and |, and written as |.
            stored = reply["metadata"]["dtype"]
            if isinstance(stored, str):
                reply["metadata"]["dtype"] = re.sub("[<>](?=[biu]1$)", "|", stored)
        assert again == reply


def check_same_values(version, data, reply):
    metadata = CLASSES[version].decode(data)
    fill_value = metadata.fill_value
    stored = metadata.dtype if version == "zarr2" else native_dtype(metadata.data_type)
    component = select(stored, "", as_void=False)
    name = component.dtype.name
    if fill_value is not None and is_opaque(stored):
        fill_value = component.of(fill_value)
    assert name == reply["dtype"]
    assert list(metadata.shape) == reply["metadata"]["shape"]
    if fill_value is None:
        assert reply["metadata"]["fill_value"] is None
    elif not name.startswith(("int", "char", "byte")):
        # Arrays of bytes have no elements in its Python.
        # TensorStore sign-extends int2 and int4 in memory, ml_dtypes does not.
        assert fill_value.tobytes().hex() == reply["fill_value"]
    if version == "zarr3":
        assert list(metadata.labels) == reply["labels"]
        units = [unit if unit is None else unit.to_json() for unit in metadata.dimension_units]
        assert units == reply["units"]
