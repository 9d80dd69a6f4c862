"""Chunks and shards of new scales are those that TensorStore chooses."""

import json
import random

import pytest
import tensorstore as ts

import gpustore
from tests.matrix import each


def random_spec(seed):
    choice = random.Random(seed).choice
    size = [choice([1, 16, 100, 300, 1000]) for _ in range(3)]
    channels = choice([1, 2])
    chunk = [choice([1, 3, 8, 16, 64]) for _ in range(3)]
    scale = {"size": size, "resolution": [1, 1, 1]}
    layout, codec = {}, {}
    if choice([True, False]):
        scale["chunk_size"] = chunk
    else:
        layout["read_chunk"] = choice(
            [
                {"shape": [*chunk, 0]},
                {"shape_soft_constraint": [*chunk, 0]},
                {"shape": [chunk[0], 0, 0, 0], "shape_soft_constraint": [5, *chunk[1:], 0]},
                {"aspect_ratio_soft_constraint": [1, 2, 0, 0], "elements_soft_constraint": 1000},
            ]
        )
    if choice([True, False]):
        layout["codec_chunk"] = choice(
            [
                {"shape_soft_constraint": [4, 0, 2, 0]},
                {"shape": [4, 0, 0, 0], "shape_soft_constraint": [2, 2, 2, 0]},
                {"aspect_ratio_soft_constraint": [2, 1, 0, 0]},
                {"elements_soft_constraint": 100},
            ]
        )
    shard = [choice([0, -1, n << choice(range(5)), 100]) for n in chunk]
    write = {
        "none": {},
        "soft": {"shape_soft_constraint": [*shard, 0]},
        "hard": {"shape": [*shard, choice([0, channels])]},
    }[choice(["none", "soft", "soft", "hard"])]
    if choice([True, False]):
        name = choice(["elements", "elements_soft_constraint"])
        write[name] = choice([1, 1000, 10**6, 10**9, 6 * chunk[0] * chunk[1] * chunk[2]])
    if write:
        layout["write_chunk"] = write
    if choice([True, False]):
        codec["shard_data_encoding"] = choice(["raw", "gzip"])
    if choice([True, False]):
        codec["encoding"] = choice(["raw", "png", "compressed_segmentation"])
    if choice(range(8)) == 0:
        scale["sharding"] = None
    schema = {"chunk_layout": layout} if layout else {}
    if codec:
        schema["codec"] = {"driver": "neuroglancer_precomputed", **codec}
    data_type = choice(["uint8", "uint32"])
    return {
        "driver": "neuroglancer_precomputed",
        "kvstore": "memory://a/",
        "multiscale_metadata": {"data_type": data_type, "num_channels": channels, "type": "image"},
        "scale_metadata": scale,
        "schema": schema,
    }


@each("seed", range(60))
def test_a_new_scale_has_the_shards_of_tensorstore(seed):
    found = []
    for library in (ts, gpustore):
        context = library.Context()
        try:
            store = library.open(random_spec(seed), create=True, context=context).result()
        except (ValueError, NotImplementedError) as error:
            found.append(type(error).__mro__[-2 if library is ts else 0])
            continue
        info = library.KvStore.open("memory://a/info", context=context).result()[""]
        found.append((json.loads(info), store.chunk_layout.to_json(), store.codec.to_json()))
    theirs, ours = found
    if isinstance(theirs, type):
        assert issubclass(ours, ValueError)
    else:
        assert ours == theirs


def test_shards_without_a_fitting_shape_are_refused():
    spec = random_spec(0) | {
        "scale_metadata": {"size": [64, 64, 64], "chunk_size": [8, 8, 8], "resolution": [1, 1, 1]},
        "schema": {"chunk_layout": {"write_chunk": {"shape": [24, 16, 16, 0]}}},
    }
    for library in (ts, gpustore):
        with pytest.raises(ValueError, match="Cannot satisfy write chunk shape constraint"):
            library.open(spec, create=True).result()
