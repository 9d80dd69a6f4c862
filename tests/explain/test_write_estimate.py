"""Estimates bound what writes then count, on the host and on an emulated device."""

import json
import math
import shutil
import warnings

import numpy as np
import pytest

import gpustore
from gpustore.errors import DeviceWarning
from tests.backends.device.test_encoding import put
from tests.explain.test_estimate import CODECS, SHAPE, create, uncounted
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated

PARTS = [np.s_[:, :], np.s_[3:30, 9:12], np.s_[16:, 18:], np.s_[8:16, :18], np.s_[5, 7]]
PARTS += [np.s_[30:2:-1, 40:1:-4], np.s_[[3, 36, 9], :], np.s_[4:4, :]]


def check(store, source):
    """Compare an estimate with the write of an array of random elements."""
    explanation = uncounted(store.explain_write)
    elements = np.random.default_rng(1).integers(1, 99, store.shape).astype("u4")
    futures = store.write(source(elements))
    futures.result()
    found = futures.commit.statistics
    for name, (least, most) in explanation.counts.items():
        assert least <= found[name] <= (math.inf if most is None else most), name
    assert explanation.chunks == found["chunks_planned"]
    assert explanation.read_values == found["key_reads"]
    assert (explanation.shape, explanation.bytes_written) == (elements.shape, elements.nbytes)
    if explanation.device == "cpu":
        assert explanation.bytes_encoded == found["bytes_encoded"]
    if explanation.device != "cpu" and explanation.codecs:
        encoded = found["chunks_encoded_device"] + found["host_encodings"]
        assert encoded == explanation.chunks
        assert not found["chunks_encoded_device"] or explanation.host_reason is None
    return explanation


@pytest.mark.parametrize("name", CODECS)
def test_writes_of_host_memory(tmp_path, name):
    store = gpustore.open(create(tmp_path, name, missing=False), device="cpu").result()
    for part in PARTS:
        explanation = check(store[part], np.asarray)
        assert {one.encoder for one in explanation.codecs} <= {"host"}


def test_chunks_of_different_sizes_are_encoded_in_their_own():
    edges = {"kind": "inline", "chunk_shapes": [[3, 3, 4], [1, 9]]}
    grid = {"name": "rectilinear", "configuration": edges}
    spec = {"driver": "zarr3", "kvstore": "memory://e/", "metadata": {"chunk_grid": grid}}
    store = gpustore.open(spec, create=True, dtype="uint32", shape=[10, 10]).result()
    assert check(store, np.asarray).encoded_per_byte == 1
    assert check(store[4:, :1], np.asarray).bytes_encoded == 4 * (3 + 4)


@needs_compiler
@pytest.mark.parametrize("name", CODECS)
def test_writes_of_a_device(tmp_path, name):
    spec = create(tmp_path, name, missing=False)
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        for part in PARTS[:4]:
            explanation = check(there[part], lambda array: put(device, array))
            text = str(explanation)
            by_host = name in ("bz2", "zstd-checksum")
            assert (explanation.host_reason is not None) == by_host
            assert ("encoder refuses" in text) == (not by_host and "raw" not in name)
            assert ("read first" in text) == bool(explanation.read_values)
        del there


REASONS = {
    "no library": ("zstd", {"decodes": ()}, "no library that encodes it"),
    "not the last": ("bz2", {}, "bz2"),
}


@needs_compiler
@pytest.mark.parametrize("case", REASONS)
def test_the_reason_for_encoding_by_the_host_is_told(tmp_path, case):
    name, options, reason = REASONS[case]
    spec = create(tmp_path, name, missing=False)
    with emulated(**options) as device, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeviceWarning)
        there = gpustore.open(spec, device=device.name).result()
        explanation = check(there[3:30], lambda array: put(device, array))
        assert reason in explanation.host_reason
        assert f"the host: {explanation.host_reason}" in str(explanation)
        assert explanation.codecs == ((name, "host"),)
        assert explanation.counts["chunks_encoded_device"] == (0, 0)
        del there


@needs_compiler
def test_an_encoder_that_fails_its_test_is_told(tmp_path):
    spec = create(tmp_path, "zstd", missing=False)
    with emulated() as device:
        device.faults.compressions = {(0, 0): 10}
        there = gpustore.open(spec, device=device.name).result()
        with pytest.warns(DeviceWarning, match="zstd encoder"):
            explanation = there.explain_write()
        assert "fails the test of its zstd encoder" in explanation.shortcoming
        assert f"missing      {explanation.shortcoming}" in str(explanation)
        assert explanation.library == "emulated library"
        assert explanation.host_reason is not None
        del there


@needs_compiler
def test_who_decodes_what_is_read_first_is_told(tmp_path):
    spec = create(tmp_path, "zstd", missing=False)
    context = gpustore.Context({"gpu_decode_choice": "host"})
    with emulated() as device:
        there = gpustore.open(spec, device=device.name, context=context).result()
        explanation = check(there[3:30], lambda array: put(device, array))
        assert explanation.decoders == (("zstd", "host"),)
        assert explanation.decoder_reason == 'gpu_decode_choice is "host"'
        assert explanation.decoder_reason in str(explanation)
        assert explanation.codecs == (("zstd", "nvcomp"),)
        assert there.explain_write().decoders == ()
        del there


def test_text_and_json(tmp_path):
    store = gpustore.open(create(tmp_path, "zstd"), device="cpu").result()
    explanation = store[3:30, 9:].explain_write()
    lines = str(explanation).split("\n")
    assert lines[:4] == [
        "write        27 x 32 of uint32, 3,456 bytes, from host memory",
        "chunks       16 of 8 x 9, in 16 stored values",
        "encoded      1.33 bytes for each byte written",
        "by           zstd by the host",
    ]
    assert lines[-1] == (
        "read first   8 stored values, which the write covers in part, and 8 of their chunks "
        "decoded: zstd by the host"
    )
    members = explanation.to_json()
    assert json.loads(json.dumps(members)) == members
    assert members["codecs"] == [{"codec": "zstd", "encoder": "host"}]
    assert members["gpu"] == [{"codec": "zstd", "encoder": "nvcomp"}]
    assert members["counts"]["key_reads"] == {"least": 8, "most": 8}
    few = store[:, 3].explain_write()
    assert few.encoded_per_byte > 4
    assert "write larger parts" in few.advice
    assert few.advice in str(few)


def test_no_stored_value_is_looked_at(tmp_path):
    store = gpustore.open(create(tmp_path, "shards-zstd-crc32c")).result()
    explanation = store.explain_write()
    shutil.rmtree(tmp_path)
    assert store.explain_write() == explanation


def test_bounds_are_those_of_the_write(tmp_path):
    spec = create(tmp_path, "zstd")
    store = gpustore.open(spec, recheck_cached_metadata=True).result()
    gpustore.open(spec).result().resize(exclusive_max=[8, 41]).result()
    assert store.explain_write().chunks == 5
    with pytest.raises(gpustore.OutOfBoundsError):
        store[: SHAPE[0]].explain_write()
    with pytest.raises(gpustore.UnsupportedError, match='"array" driver'):
        gpustore.array([1, 2]).explain_write()
