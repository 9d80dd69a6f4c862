"""Estimates of views bound what their reads count; which chunks of a view are stored."""

import math

import numpy as np
import pytest
import tensorstore as ts

import gpustore
from tests.explain.test_estimate import compare, create, uncounted
from tests.matrix import each

CODECS = ["zlib", "shards-zstd-crc32c"]


def views(store, other):
    """Views of two arrays with missing chunks, by name."""
    return {
        "cast": gpustore.cast(store, gpustore.float64),
        "cast part": gpustore.cast(store, gpustore.int16)[3:30, 9:12],
        **{
            method: gpustore.downsample(store, [3, 2], method)
            for method in ("mean", "stride", "median")
        },
        "downsampled part": gpustore.downsample(store, [3, 2], "max")[2:5, 7:9],
        "downsampled cast": gpustore.downsample(gpustore.cast(store, "float32"), [3, 2], "mean"),
        "empty": gpustore.downsample(store, [3, 2], "mean")[4:4],
        "stack": gpustore.stack([store, other]),
        "part of a stack": gpustore.stack([store, other[::-1].translate_to[0]])[1, 3:20, 5],
        "points": gpustore.stack([store, other])[[0, 1, 1], [3, 4, 5]],
        "overlay": gpustore.overlay([store, other[:, 27:]])[:16],
        "concat": gpustore.concat([store, other], axis=1),
    }


def corners(view, shape):
    """Two corners of crops of a shape."""
    domain = view.domain
    starts = [domain.inclusive_min, np.add(domain.inclusive_min, 1)]
    return np.minimum(starts, np.subtract(domain.exclusive_max, shape))


@each("codec", CODECS)
def test_reads_and_crops(codec, tmp_path):
    stores = [gpustore.open(create(tmp_path / name, codec)).result() for name in "ab"]
    for name, view in views(*stores).items():
        explanation = uncounted(view.explain)
        compare(explanation, [view.read()])
        assert explanation.dtype == view.dtype.name
        if name in ("empty", "points"):
            continue
        shape = tuple(max(1, n // 3) for n in view.shape)
        starts = corners(view, shape)
        explanation = view.explain_many(starts, shape)
        found = view.read_many(starts, shape).result()
        assert explanation.bytes_returned == found.nbytes
        assert explanation.shape == found.shape
        assert explanation.together == 2
        assert str(explanation)


def test_parts_may_share_chunks(tmp_path):
    store = gpustore.open(create(tmp_path, "zlib")).result()
    for view in (
        gpustore.overlay([store, store[3:5, 7:30]]),
        gpustore.overlay([store, gpustore.array(np.zeros((2, 5), "u4"))]),
    ):
        explanation, read = view.explain(), view.read()
        read.result()
        assert explanation.chunks >= read.statistics["chunks_planned"]
        for name, (least, most) in explanation.counts.items():
            assert least <= read.statistics[name] <= (math.inf if most is None else most), name


def test_layers_without_chunks_are_left_out(tmp_path):
    store = gpustore.open(create(tmp_path, "zlib")).result()
    other = gpustore.array(np.zeros(store.shape, "u4"))
    assert gpustore.stack([store, other]).explain().chunks == store.explain().chunks
    with pytest.raises(gpustore.UnsupportedError, match="no layer has chunks"):
        gpustore.stack([other, other]).explain()


def test_writes(tmp_path):
    store = gpustore.open(create(tmp_path, "zlib")).result()
    one = store.explain_write()
    cast = gpustore.cast(store, gpustore.float64).explain_write()
    assert (cast.dtype, cast.bytes_written) == ("float64", 2 * one.bytes_written)
    assert (cast.chunks, cast.read_chunks) == (one.chunks, 0)
    both = gpustore.concat([store, store[5:]], axis=0).explain_write()
    assert both.shape == (69, 41)
    assert both.bytes_written == math.prod(both.shape) * 4
    part = store[5:].explain_write()
    assert both.chunks == one.chunks + part.chunks
    assert both.read_chunks == part.read_chunks
    with pytest.raises(gpustore.MetadataError, match="does not support writing"):
        gpustore.downsample(store, [2, 2], "mean").explain_write()


PARTS = {"none": [], "half": [np.s_[:4]], "all": [np.s_[:8]]}


@each("name", PARTS)
@each("method", ["mean", "stride"])
def test_stored_chunks_of_downsampled_arrays(name, method):
    found = []
    for library in (ts, gpustore):
        spec = {"driver": "n5", "kvstore": "memory://"}
        layout = library.ChunkLayout(chunk_shape=[4])
        store = library.open(
            spec, create=True, dtype="uint8", shape=[8], chunk_layout=layout
        ).result()
        for part in PARTS[name]:
            store[part] = 1
        view = library.downsample(store, [3], method)
        asked = {"query_not_stored": True, "query_fully_stored": True}
        for part in (view, view[1:], view[:1], view[1:1], view[[0, 2]]):
            answer = part.storage_statistics(**asked).result()
            found.append((library, answer.not_stored, answer.fully_stored))
    half = len(found) // 2
    assert [one[1:] for one in found[:half]] == [one[1:] for one in found[half:]]


def test_stored_chunks_of_layers():
    stores = []
    for written in ([], [np.s_[:4]], [np.s_[:]]):
        store = gpustore.open(
            {"driver": "n5", "kvstore": "memory://"},
            **{"create": True, "dtype": "uint8", "shape": [8], "context": gpustore.Context()},
            chunk_layout=gpustore.ChunkLayout(chunk_shape=[4]),
        ).result()
        for part in written:
            store[part] = 1
        stores.append(store)
    empty, half, full = stores

    def asked(view):
        found = view.storage_statistics(query_not_stored=True, query_fully_stored=True).result()
        return found.not_stored, found.fully_stored

    assert asked(gpustore.stack([empty, empty])) == (True, False)
    assert asked(gpustore.stack([half, full])) == (False, False)
    assert asked(gpustore.stack([half, full])[:, :4]) == (False, True)
    # The layer below counts where nothing lies over it.
    assert asked(gpustore.overlay([half, full[4:]])) == (False, True)
    assert asked(gpustore.overlay([full, empty[4:]])[4:]) == (True, False)
    assert asked(gpustore.stack([full, gpustore.array(np.zeros(8, "u1"))])) == (False, True)
