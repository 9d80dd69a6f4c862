"""What is explained of crops is what reading them counts, on an emulated device and on the host."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustore
from tests.explain.explained import SHAPE, check_many, create, opened
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated

STARTS = [[0, 0], [3, 5], [3, 5], [20, 28], [24, 0], [8, 9]]
CROPS = {"crops": (STARTS, (9, 13)), "small": (STARTS, (2, 3)), "one": (STARTS[:1], (9, 13))}
NAMES = ["raw", "zstd", "shards-v3-zstd-crc32c", "bz2"]


@pytest.mark.parametrize("name", NAMES)
def test_crops_of_the_host(tmp_path, name):
    store = gpustore.open(create(tmp_path, name)).result()
    for starts, shape in CROPS.values():
        assert check_many(store, starts, shape).expected == ()
    assert check_many(store, np.zeros((0, 2), int), (3, 3)).chunks == 0
    assert check_many(store, STARTS, (0, 3)).bytes_returned == 0


@needs_compiler
@pytest.mark.parametrize("name", NAMES)
def test_crops_of_a_device(tmp_path, name):
    spec = create(tmp_path, name)
    with emulated() as device:
        there = gpustore.open(spec, device=device.name).result()
        for starts, shape in CROPS.values():
            explanation = check_many(there, starts, shape)
            assert (explanation.host_reason is not None) == (name == "bz2")
        del there


crops = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 32)), max_size=12)


@settings(max_examples=200)
@given(
    starts=crops,
    shape=st.tuples(st.integers(0, 7), st.integers(0, 9)),
    name=st.sampled_from(["raw", "zstd", "shards-v3-raw"]),
)
def test_any_crops_of_the_host(tmp_path_factory, starts, shape, name):
    check_many(opened(tmp_path_factory, name), np.array(starts, int).reshape(-1, 2), shape)


def test_dense_crops_whose_chunks_are_decoded_side_by_side(tmp_path):
    """Blocks of several chunks, and keys of several blocks."""
    store = gpustore.open(create(tmp_path, "shards-v3-raw")).result()
    starts = [[i, j] for i in range(0, 20, 2) for j in range(0, 30, 2)]
    explanation = check_many(store, starts, (12, 11))
    assert explanation.values < explanation.chunks
    assert f"each once for all {len(starts)}" in str(explanation)
    assert explanation.decoded_per_byte < 1


def test_amplified_crops_get_advice_that_helps_them(tmp_path):
    store = gpustore.open(create(tmp_path, "zstd")).result()
    few = store.explain_many([[0, 3], [20, 3]], (1, 1))
    assert "read larger parts, or store smaller chunks" in few.advice
    assert "read_many" in store.explain_many([[0, 3]], (1, 1)).advice


def test_chunks_of_several_shapes(tmp_path):
    metadata = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(SHAPE),
        "data_type": "uint32",
        "chunk_grid": {
            "name": "rectilinear",
            "configuration": {"kind": "inline", "chunk_shapes": [[10, 20, 7], [[8, 5], 1]]},
        },
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()
    store[...] = np.arange(SHAPE[0] * SHAPE[1], dtype="u4").reshape(SHAPE)
    check_many(store, STARTS, (9, 13))


def test_bounds_and_arguments_are_those_of_the_read(tmp_path):
    spec = create(tmp_path, "zstd")
    store = gpustore.open(spec, recheck_cached_metadata=True).result()
    gpustore.open(spec).result().resize(exclusive_max=[8, 41]).result()
    assert store.explain_many([[0, 0]], (8, 1)).chunks == 1
    with pytest.raises(gpustore.OutOfBoundsError):
        store.explain_many([[1, 0]], (8, 1))
    store = gpustore.open(f"file://{tmp_path}").result()
    for starts in ([[30, 0]], [[0.5, 0]]):
        errors = []
        for ask in (store.explain_many, store.read_many):
            with pytest.raises((gpustore.OutOfBoundsError, TypeError)) as caught:
                ask(starts, (5, 5))
            errors.append((caught.type, str(caught.value)))
        assert errors[0] == errors[1]
    with pytest.raises(gpustore.UnsupportedError, match='"array" driver'):
        gpustore.array([1, 2]).explain_many([[0]], [1])
