"""The native core and Python read the same: elements, and errors with their texts and keys."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import gpustore
from gpustore.backends.native import job, library, request
from gpustore.backends.native.job import Job
from gpustore.backends.native.request import Request
from gpustore.pipelines import read as pipeline
from gpustore.runtime.statistics import STATISTICS
from tests.backends.native.stored_arrays import (
    chunk_files,
    compare,
    counted_threads,
    created,
    in_python,
    is_error,
    named,
    open_at,
    outcome,
    selections,
    specs,
    stored,
    windows_of,
)
from tests.matrix import each, share

pytestmark = pytest.mark.skipif(library.library() is None, reason=str(library.why_not()))

SEEDS = st.integers(0, 999)
DATA = (np.arange(2000) // 3).astype("<u2").reshape(40, 50)


def opened(spec):
    """Members with which an array that is there is opened."""
    return {name: spec[name] for name in ("driver", "field") if name in spec}


@given(st.data(), specs(), SEEDS, st.sampled_from([0.0, 0.4]))
def test_elements_are_the_same(data, spec, seed, missing):
    with stored(spec, seed, missing=missing) as folder:
        store = open_at(folder, opened(spec))
        assert not is_error(compare(data.draw(selections(store.shape))(store)))


@each("dtype", ["uint8", "uint16", "uint32", "uint64"])
def test_lines_of_every_length_are_copied(dtype, tmp_path):
    nbytes = 290
    columns = nbytes // np.dtype(dtype).itemsize + 5
    data = np.random.default_rng(0).integers(0, 255, (3, 4, columns)).astype(dtype)
    store = created(tmp_path, data.shape, [2, 3, columns], dtype)
    store[...] = data
    for count in range(1, columns - 4):
        index = np.s_[:, 1:, count % 5 : count % 5 + count]
        assert np.array_equal(store[index].read().result(), data[index])


@settings(max_examples=share(60))
@given(st.data(), specs(large=True), SEEDS)
def test_elements_of_chunks_that_are_read_in_part_are_the_same(data, spec, seed):
    with stored(spec, seed) as folder:
        store = open_at(folder, opened(spec))
        for _ in range(4):
            assert not is_error(compare(data.draw(selections(store.shape))(store)))


@given(st.data(), specs(), SEEDS, st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_elements_are_the_same_window_by_window(data, spec, seed, rows, listed, threads):
    with stored(spec, seed, missing=0.2) as folder:
        copies = {"data_copy_concurrency": {"limit": threads}}
        store = open_at(folder, opened(spec), **copies)
        view = data.draw(selections(store.shape))(store)
        ways = {name: data.draw(st.booleans()) for name in ("pooled", "planned")}
        with windows_of(rows, listed, **ways):
            assert not is_error(compare(view))


@given(st.data(), specs(), SEEDS)
def test_arrays_that_are_filled_are_the_same(data, spec, seed):
    """Arrays of any strides; what lies between their elements stays."""
    with stored(spec, seed, missing=0.2) as folder:
        store = open_at(folder, opened(spec))
        view = data.draw(selections(store.shape))(store)
        assume(0 not in view.shape)
        dtype = view.dtype.numpy_dtype
        dtype = dtype if dtype.itemsize else np.dtype(f"{dtype.kind}1")
        steps = [data.draw(st.sampled_from([1, 2, -1, -3])) for _ in view.shape]
        sizes = [abs(step) * size for step, size in zip(steps, view.shape)]
        order = data.draw(st.permutations(range(len(sizes))))

        def filled():
            shape = [sizes[d] for d in order]
            memory = np.full(math.prod(shape) * dtype.itemsize, 1, np.uint8).view(dtype)
            memory = memory.reshape(shape)
            out = memory.transpose(np.argsort(order))[
                tuple(slice(None, None, step) for step in steps)
            ]
            view.read(out=out).result()
            return memory

        native = outcome(filled)
        with in_python():
            assert native == outcome(filled)
        assert not is_error(native)


@given(st.data(), specs(), SEEDS)
def test_missing_chunks_that_are_not_filled_are_the_same_error(data, spec, seed):
    with stored(spec, seed) as folder:
        files = chunk_files(folder)
        if files:
            files[seed % len(files)].unlink()
        store = open_at(folder, {**opened(spec), "fill_missing_data_reads": False})
        compare(data.draw(selections(store.shape))(store))


# --------------------------------------------------------------------------- damage


def flip(value, generator):
    value[generator.integers(len(value))] ^= 1 << generator.integers(8)
    return value


def set_in_header(value, generator):
    value[generator.integers(min(16, len(value)))] = generator.integers(256)
    return value


def set_at_end(value, generator):
    value[-1 - generator.integers(min(64, len(value)))] = generator.integers(256)
    return value


DAMAGES = {
    "flip": flip,
    "header": set_in_header,
    "end": set_at_end,
    "truncate": lambda value, g: value[: g.integers(len(value))],
    "extend": lambda value, g: value + g.bytes(int(g.integers(1, 30))),
    "twice": lambda value, g: value + value,
    "zeros": lambda value, g: bytes(len(value)),
    "noise": lambda value, g: g.bytes(len(value)),
    "nothing": lambda value, g: b"",
}


def is_same_but_for_unread_bools(native, expected):
    """Python looks at all bools of some uncompressed chunks, the core at those that it reads."""
    return native == expected or (not is_error(native) and "Invalid bool value" in expected[1])


@given(st.data(), specs(), SEEDS, st.sampled_from(sorted(DAMAGES)))
def test_damage_is_the_same_error_or_the_same_elements(data, spec, seed, name):
    with stored(spec, seed, missing=data.draw(st.sampled_from([0, 0.3]))) as folder:
        _damage_and_compare(data, spec, folder, seed, name)


@settings(max_examples=share(60))
@given(st.data(), specs(large=True), SEEDS, st.sampled_from(sorted(DAMAGES)))
def test_damage_of_chunks_that_are_read_in_part_is_the_same(data, spec, seed, name):
    with stored(spec, seed) as folder:
        _damage_and_compare(data, spec, folder, seed, name)


def _damage_and_compare(data, spec, folder, seed, name):
    generator = np.random.default_rng(seed)
    files = chunk_files(folder)
    assume(files)
    file = files[seed % len(files)]
    file.write_bytes(DAMAGES[name](bytearray(file.read_bytes()), generator))
    store = open_at(folder, opened(spec))
    view = data.draw(selections(store.shape))(store)
    native = outcome(lambda: view.read().result())
    with in_python():
        expected = outcome(lambda: view.read().result())
    assert is_same_but_for_unread_bools(native, expected)


@given(st.data(), specs(), SEEDS)
def test_chunks_that_changed_places_are_the_same_error_or_elements(data, spec, seed):
    with stored(spec, seed) as folder:
        files = chunk_files(folder)
        assume(len(files) > 1)
        first, second = data.draw(st.permutations(files))[:2]
        values = first.read_bytes(), second.read_bytes()
        second.write_bytes(values[0])
        first.write_bytes(values[1])
        store = open_at(folder, opened(spec))
        view = data.draw(selections(store.shape))(store)
        compare(view)


# --------------------------------------------------------------------------- single cases


def copies(array, index, count):
    """`count` copies of one element of an array of one dimension."""
    transform = gpustore.IndexTransform(
        input_shape=[count], output=[gpustore.OutputIndexMap(offset=index)]
    )
    return array[transform]


@each("endian", ["little", "big"])
def test_elements_longer_than_what_is_read_at_once(endian, tmp_path):
    kind = named("fixed_length_utf32", length_bytes=400_000)
    store = created(tmp_path, [5], [5], kind, [named("bytes", endian=endian)])
    store[...] = np.array([chr(97 + i) * 100_000 for i in range(5)])
    for view in (store[3], store[1:3], store[::-2], copies(store, 2, 4), copies(store, 1, 1)):
        assert not is_error(compare(view))


@each("kind", ["uint8", "uint16", "uint32", "uint64", "complex64", "complex128"])
@each("endian", ["little", "big"])
def test_chunks_in_another_order_than_the_array_are_transposed(kind, endian, tmp_path):
    """Dimensions have more and fewer elements than a line of the cache or a vector."""
    values = np.random.default_rng(0).integers(0, 250, (90, 3, 75)).astype(kind)
    values *= np.array(257).astype(kind)
    codecs = [named("transpose", order=[2, 1, 0]), named("bytes", endian=endian)]
    store = created(tmp_path, values.shape, values.shape, kind, codecs)
    store[...] = values
    store = open_at(tmp_path, {})
    for low, high in ((0, 75), (3, 68), (5, 38), (6, 23), (7, 15), (1, 4)):
        box = np.s_[low:high, :, low // 2 : high - low]
        assert np.array_equal(store[box].read().result(), values[box])
    assert np.array_equal(store[:, 1].read(order="F").result(), values[:, 1])


@each(("step", "reads_gaps"), [(3, True), (-2048, True), (8192, False)])
def test_short_gaps_between_elements_of_a_raw_chunk_are_read(step, reads_gaps, tmp_path):
    values = np.arange(1 << 19, dtype="u2")
    store = created(tmp_path, values.shape, values.shape, "uint16")
    store[...] = values
    future = open_at(tmp_path, {})[::step].read()
    result = future.result()
    assert np.array_equal(result, values[::step])
    fetched = future.statistics["bytes_fetched"]
    assert (fetched > 0.9 * values.nbytes) if reads_gaps else (fetched == result.nbytes)


def test_strides_of_dimensions_of_one_element_may_be_of_any_length(tmp_path):
    store = created(tmp_path, [40, 40], [8, 8], "uint16")
    store[...] = np.arange(1600, dtype="uint16").reshape(40, 40)
    far = gpustore.OutputIndexMap(input_dimension=0, stride=2**62)
    same = gpustore.OutputIndexMap(
        offset=3, stride=1, index_array=np.array([[0, 2]], dtype=np.int64)
    )
    for maps, shape in (
        ([far, gpustore.OutputIndexMap(offset=3)], [1]),
        ([far, far], [1]),
        ([far, same], [1, 2]),
    ):
        found = compare(store[gpustore.IndexTransform(input_shape=shape, output=maps)])
        assert not is_error(found)


def test_rows_of_tables_are_left_to_python_only_where_they_are_not_plain(tmp_path, monkeypatch):
    """Otherwise the two ways would be the same because they are one."""
    left = []
    rows = Job.left

    def counted(job):
        left.extend(rows(job))
        return rows(job)

    monkeypatch.setattr(Job, "left", counted)
    monkeypatch.setattr(pipeline.StridedReads, "one", lambda *_: None)
    store = created(tmp_path, [40, 40], [8, 8], "uint16")
    store[...] = np.arange(1600, dtype="uint16").reshape(40, 40)
    before = STATISTICS["key_reads"]
    assert store.read().result()[3, 4] == 124
    assert STATISTICS["key_reads"] == before + 25
    assert left == []
    (tmp_path / "c" / "1" / "2").write_bytes(b"short")
    with pytest.raises(gpustore.CorruptChunkError):
        store.read().result()
    assert left == [7, 0]  # The sink tries the value once more, by itself.


@each(("maps", "limit"), [(maps, limit) for maps in (True, False) for limit in (1, 2, 4)])
def test_as_many_threads_as_allowed_are_in_the_core(maps, limit, tmp_path, monkeypatch):
    """All at once, the one that waits for the result among them."""
    ways = Request if maps else Job
    threads = counted_threads(monkeypatch, ways, "read", limit)
    created(tmp_path, [64, 64], [8, 8], "uint16")
    store = open_at(tmp_path, {}, data_copy_concurrency={"limit": limit})
    with windows_of(65_536, 64, pooled=True, planned=maps):
        assert not store.read().result().any()
    assert threads() == limit


@each("maps", [True, False])
def test_threads_ask_whether_a_long_shard_is_still_wanted(maps, tmp_path, monkeypatch):
    """After each unit here, because the time they take is over at once."""
    module = request if maps else job
    ways = Request if maps else Job
    read, answers = ways.read, []

    def counted(*arguments):
        answers.append(read(*arguments))
        return answers[-1]

    monkeypatch.setattr(module, "SLICE_NS", 1)
    monkeypatch.setattr(ways, "read", counted)
    little = named("bytes", endian="little")
    sharding = named(
        "sharding_indexed", chunk_shape=[1 << 19], codecs=[little], index_codecs=[little]
    )
    created(tmp_path, [5 << 19], [8 << 19], "uint8", [sharding])
    store = open_at(tmp_path, {}, data_copy_concurrency={"limit": 1})
    with windows_of(65_536, 64, pooled=True, planned=maps):
        assert not store.read().result().any()
    assert [answer == job.AGAIN for answer in answers] == [True, True, False]


def in_other_order(frame):
    """A Blosc frame whose blocks lie last one first, as encoders with several threads may do."""
    nbytes, blocksize = np.frombuffer(frame, "<u4", 2, 4).tolist()
    count = -(-nbytes // blocksize)
    starts = np.frombuffer(frame, "<u4", count, 16).tolist()
    ends = [*starts[1:], len(frame)]
    table, blocks, at = [0] * count, b"", 16 + 4 * count
    for number in reversed(range(count)):
        block = frame[starts[number] : ends[number]]
        table[number], at, blocks = at, at + len(block), blocks + block
    return frame[:16] + np.array(table, "<u4").tobytes() + blocks


@each("order", ["as encoded", "other"])
def test_blocks_of_a_frame_are_fetched_alone(order, tmp_path):
    values = np.random.default_rng(0).integers(0, 999, (64, 4096)).astype("<u2")
    codec = named("blosc", cname="lz4", clevel=5, shuffle="shuffle", typesize=2, blocksize=16384)
    codecs = [named("bytes", endian="little"), codec]
    created(tmp_path, [64, 4096], [64, 4096], "uint16", codecs)[...] = values
    (path,) = chunk_files(tmp_path)
    frame = path.read_bytes()
    if order == "other":
        path.write_bytes(in_other_order(frame))
    store = open_at(tmp_path, {})
    for index in (np.s_[0], np.s_[30:34, ::3], np.s_[63], np.s_[3::-1]):
        future = store[index].read()
        assert np.array_equal(future.result(), values[index])
        assert future.statistics["key_reads"] == 1
        assert future.statistics["bytes_fetched"] < len(frame) / 3
