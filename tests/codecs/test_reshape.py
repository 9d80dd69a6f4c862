"""The codec ``reshape``: elements keep their order, and what follows sees the new shape."""

import numpy as np
import pytest

import gpustore
from gpustore.codec_chain.resolve import resolve_v3
from gpustore.data_types.dtype import uint16
from gpustore.errors import MetadataError
from gpustore.metadata.named_configuration import NamedConfiguration
from tests.matrix import each

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def reshape(shape):
    return {"name": "reshape", "configuration": {"shape": shape}}


def transpose(*order):
    return {"name": "transpose", "configuration": {"order": list(order)}}


def chain(codecs, shape):
    return resolve_v3(NamedConfiguration.list_from_json([*codecs, LITTLE]), uint16, shape)


def test_the_example_of_the_specification():
    made = chain([reshape([[0, 1], [2], 3])], (100, 50, 64, 3))
    assert made.is_raw
    assert made.layout.shape == (100, 50, 64, 3)
    assert made.inner_order == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("codecs", "move"),
    [
        ([reshape([[0, 1], [2]]), transpose(1, 0)], lambda a: a.reshape(12, 5).T),
        ([reshape([-1])], np.ravel),
        (
            [transpose(2, 0, 1), reshape([10, -1]), transpose(1, 0)],
            lambda a: a.transpose(2, 0, 1).reshape(10, 6).T,
        ),
        (
            [reshape([2, 2, 15]), transpose(2, 1, 0), reshape([[0], [1, 2]]), transpose(1, 0)],
            lambda a: a.reshape(2, 2, 15).transpose(2, 1, 0).reshape(15, 4).T,
        ),
        ([reshape([[], [0], [1, 2]])], lambda a: a.reshape(1, 4, 15)),
    ],
    ids=lambda value: "" if callable(value) else str(value),
)
def test_stored_bytes_are_those_of_numpy(codecs, move):
    spec = {
        "driver": "zarr3",
        "kvstore": "memory://a/",
        "metadata": {
            "shape": [8, 3, 10],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 3, 5]}},
            "data_type": "uint16",
            "codecs": [*codecs, {"name": "bytes", "configuration": {"endian": "big"}}],
        },
    }
    store = gpustore.open(spec, create=True).result()
    written = np.arange(1, 241, dtype="u2").reshape(8, 3, 10)
    store[...] = written
    assert (
        bytes(store.kvstore["c/1/0/1"])
        == np.ascontiguousarray(move(written[4:, :, 5:])).astype(">u2").tobytes()
    )
    assert np.array_equal(store.read().result(), written)
    assert np.array_equal(store[1:7:2, 2, ::-3].read().result(), written[1:7:2, 2, ::-3])


@each(
    ("shape", "match"),
    [
        ([7], "no shape of chunks"),
        ([-1, 7], "no shape of chunks"),
        ([[0], [3]], "no shape of chunks"),
        ([[1], [0], [2]], "increasing order"),
        ([[1, 0], 10], "increasing order"),
        ([[0, 0], -1], "increasing order"),
        ([-1, -1], "more than once"),
        ([0, -1], "positive integer"),
        ([-2], "-2"),
        ([3, [0], 5], "no shape of chunks"),
        ([[0], 5, [1]], "no shape of chunks"),
        (60, "Expected array"),
        ([1.5], "1.5"),
    ],
)
def test_invalid_shapes_are_refused(shape, match):
    with pytest.raises(MetadataError, match=match):
        chain([reshape(shape)], (4, 3, 5))
