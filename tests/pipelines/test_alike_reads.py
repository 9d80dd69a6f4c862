"""Reads of many arrays that are stored alike, against reads of each of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpustore
from gpustore.backends.native.library import library
from tests.kernels.execution import needs_compiler
from tests.matrix import each
from tests.on_device import emulated, on_host

pytestmark = pytest.mark.skipif(library() is None, reason="no native core")

COUNT = 9
SHAPE = (9, 10)


def opened(folder, **keywords):
    """Arrays in files whose elements are all different, and those elements; one is not stored."""
    given = {"dtype": "uint16", "shape": SHAPE, "chunks": [4, 4], "fill_value": 9, **keywords}
    stores = []
    elements = np.full((COUNT, *SHAPE), 9, "uint16")
    for number in range(COUNT):
        # Names of different lengths.
        path = f"{folder}/{number * 37}.zarr|zarr3:"
        stores.append(gpustore.open(path, create=True, device="cpu", **given).result())
        if number != 3:
            elements[number] = 100 * number + np.arange(90).reshape(SHAPE)
            stores[-1].write(elements[number]).result()
    return stores, elements


@pytest.fixture(scope="module")
def planes(tmp_path_factory):
    return opened(tmp_path_factory.mktemp("planes"), codec="zstd")


parts = st.tuples(
    *[
        st.one_of(
            st.just(slice(None)),
            st.tuples(st.integers(0, n), st.integers(0, n)).map(lambda x: slice(min(x), max(x))),
            st.sampled_from([slice(None, None, 2), slice(None, None, -1), slice(None, None, -3)]),
        )
        for n in (COUNT, *SHAPE)
    ]
)


@given(
    parts,
    st.sampled_from([0, 1, -1]),
    st.sampled_from(["C", "F", "out"]),
    st.permutations(range(3)),
)
def test_elements_are_those_of_each_array(planes, index, axis, order, axes):
    stores, elements = planes
    expected = np.moveaxis(elements, 0, axis)
    index = tuple(np.moveaxis(np.array([*index], object), 0, 0))
    index = (*index[1:], index[0]) if axis == -1 else index
    index = (index[1], index[0], index[2]) if axis == 1 else index
    view = gpustore.stack(stores, axis=axis)
    view = view[index].transpose(axes)
    expected = expected[index].transpose(axes)
    keywords = {"order": order}
    if order == "out":
        keywords = {"out": np.zeros([2 * n for n in expected.shape], "uint16")[
            tuple(slice(0, 2 * n, 2) for n in expected.shape)]}  # fmt: skip
    assert (view.read(**keywords).result() == expected).all()


@each("axis", [0, 1])
def test_parts_of_a_chunk_are_concatenated(planes, axis):
    stores, elements = planes
    view = gpustore.concat([store[1:8, ::-2] for store in stores], axis=axis)
    expected = np.concatenate([one[1:8, ::-2] for one in elements], axis=axis)
    assert (view.read().result() == expected).all()
    cut = tuple(slice(n + 5, -7) if d == axis else slice(1, 3) for d, n in enumerate((0, 0)))
    assert (view.translate_to[0].numpy[cut] == expected[cut]).all()


def test_all_arrays_are_one_read(planes):
    stores, _ = planes
    future = gpustore.stack(stores).read()
    future.result()
    assert future.statistics["reads"] == 1
    assert future.statistics["chunks_planned"] == 9 * COUNT
    assert future.statistics["chunks_missing"] == 9
    few = gpustore.stack(stores)[:4].read()
    few.result()
    assert few.statistics["reads"] == 1
    assert few.statistics["chunks_planned"] == 9 * 4


@each("keywords", [{"shards": [8, 8]}, {"codec": "none"}])
def test_forms_of_storage(tmp_path, keywords):
    _, elements = opened(tmp_path, **keywords)
    paths = [f"{tmp_path}/{number * 37}.zarr" for number in range(COUNT)]
    stores = [gpustore.open(path, device="cpu").result() for path in paths]
    future = gpustore.stack(stores)[:, 1:, 3:].read()
    assert (future.result() == elements[:, 1:, 3:]).all()
    assert future.statistics["reads"] == 1


def test_arrays_that_differ_are_read_by_themselves(tmp_path):
    stores, elements = opened(tmp_path)
    other = gpustore.open(
        f"{tmp_path}/other.zarr|zarr3:", create=True, data=elements[5], chunks=[3, 5], device="cpu"
    ).result()
    future = gpustore.stack([*stores[:5], other, *stores[6:]]).read()
    assert (future.result() == elements).all()
    assert future.statistics["reads"] == COUNT


def test_damaged_chunks_are_named(tmp_path):
    stores, _ = opened(tmp_path, codec="zstd")
    (tmp_path / f"{37 * 7}.zarr" / "c" / "1" / "2").write_bytes(b"?")
    view = gpustore.stack(stores)
    with pytest.raises(gpustore.CorruptChunkError, match=r"259\.zarr/c/1/2"):
        view.read().result()
    assert view[:, :4].read().result().shape == (COUNT, 4, 10)


def test_chunks_that_python_reads(tmp_path):
    stores, elements = opened(tmp_path, codec="zstd")
    chunk = tmp_path / f"{37 * 7}.zarr" / "c" / "1" / "2"
    moved = chunk.with_name("moved")
    chunk.rename(moved)
    chunk.symlink_to("moved")
    assert (gpustore.stack(stores).read().result() == elements).all()


def test_missing_chunks_may_be_errors(tmp_path):
    stores, _ = opened(tmp_path)
    strict = [
        gpustore.open({**store.spec().to_json(), "fill_missing_data_reads": False}, device="cpu")
        for store in stores
    ]
    with pytest.raises(gpustore.NotFoundError, match=r"111\.zarr"):
        gpustore.stack([store.result() for store in strict]).read().result()


def test_layers_that_operations_open_are_one_read(planes):
    stores, elements = planes
    view = gpustore.stack([store.spec() for store in stores])
    future = view[1:, 2].read()
    assert (future.result() == elements[1:, 2]).all()
    assert future.statistics["reads"] == 1


@needs_compiler
@pytest.mark.parametrize(
    "keywords", [{"codec": "zstd"}, {"codec": "zstd", "shards": [8, 8]}, {"codec": "none"}]
)
def test_arrays_on_a_device_are_one_submission(tmp_path, keywords):
    _, elements = opened(tmp_path, **keywords)
    paths = [f"{tmp_path}/{number * 37}.zarr" for number in range(COUNT)]
    with emulated() as device:
        stores = [gpustore.open(path, device=device.name).result() for path in paths]
        view = gpustore.stack(stores, axis=1)
        # Of uncompressed chunks Python reads byte ranges, array by array.
        assert (on_host(device, view[1, :, 2].read().result()) == elements[:, 1, 2]).all()
        future = view[:, :, ::-1].read()
        expected = elements.transpose(1, 0, 2)[:, :, ::-1]
        assert (on_host(device, future.result()) == expected).all()
        alone = stores[0][:, ::-1].read()
        alone.result()
        if keywords["codec"] != "none":
            assert future.statistics["reads"] == 1
            each_has = alone.statistics["chunks_planned"]
            assert future.statistics["chunks_planned"] == COUNT * each_has
            for name in ("copies", "launches", "waits"):
                assert future.statistics[name] <= 2 * alone.statistics[name], name
        del future, alone


@pytest.mark.matrix("costly")
@needs_compiler
def test_chunks_that_a_device_does_not_get_from_the_core(tmp_path):
    stores, elements = opened(tmp_path, codec="zstd")
    chunk = tmp_path / f"{37 * 7}.zarr" / "c" / "1" / "2"
    chunk.rename(chunk.with_name("moved"))
    chunk.symlink_to("moved")
    with emulated() as device:
        stores = [gpustore.open(one.spec(), device=device.name).result() for one in stores]
        view = gpustore.stack(stores)
        assert (on_host(device, view.read().result()) == elements).all()
        chunk.with_name("moved").write_bytes(b"?")
        with pytest.raises(gpustore.CorruptChunkError, match=r"259\.zarr/c/1/2"):
            view.read().result()
        (tmp_path / "37.zarr" / "c" / "0" / "1").write_bytes(b"?" * 40)
        with pytest.raises(gpustore.CorruptChunkError, match=r"37\.zarr/c/0/1"):
            view[:, :4].read().result()
