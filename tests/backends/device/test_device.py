"""Reads into the memory of an emulated device equal those into host memory, bit for bit."""

import threading
import zlib

import numcodecs
import numpy as np
import pytest

import gpustore
from tests.emulator.dlpack import DlpackArray, TorchLikeArray
from tests.emulator.queue import ORDERS
from tests.on_device import emulated, on_host
from tests.waiting import wait_until

pytestmark = pytest.mark.matrix

SHAPE = (50, 70)

ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": False}}


@pytest.fixture(params=ORDERS)
def device(request):
    with emulated(request.param, seed=3) as device:
        yield device


@pytest.fixture
def lazy():
    with emulated() as device:
        yield device


def create(path, *, stored=40, driver="zarr", **metadata):
    """An array on disk, opened on the host; its rows from `stored` on are missing chunks."""
    metadata = {"shape": list(SHAPE), "chunks": [16, 16], "dtype": "<u4", **metadata}
    metadata.setdefault("compressor", None)
    spec = {"driver": driver, "kvstore": f"file://{path}", "metadata": metadata}
    store = gpustore.open(spec, create=True).result()
    elements = (
        np.random.default_rng(0).integers(0, 1000, store.shape).astype(store.dtype.numpy_dtype)
    )
    store[:stored] = elements[:stored]
    return store


def opened(path, device, **options):
    return gpustore.open(f"file://{path}", device=device.name, **options).result()


def counted(read):
    """The result of a read, and what it counted."""
    before = gpustore.statistics.snapshot()
    result = read()
    after = gpustore.statistics.snapshot()
    return result, {name: after[name] - before.get(name, 0) for name in after}


COMPRESSORS = [
    None,
    {"id": "zlib", "level": 1},
    {"id": "gzip", "level": 1},
    {"id": "zstd", "level": 1},
]


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: c["id"] if c else "raw")
@pytest.mark.parametrize(
    ("dtype", "order"), [("<u4", "C"), (">u4", "F"), (">c16", "F"), ("|u1", "C")]
)
def test_reads_equal_those_of_the_host(tmp_path, device, compressor, dtype, order):
    fill = {"fill_value": 7} if dtype != ">c16" else {}
    host = create(tmp_path, compressor=compressor, dtype=dtype, order=order, **fill)
    there = opened(tmp_path, device)
    assert there.device == device.name
    for select in (
        lambda store: store,
        lambda store: store[5:45:3][:, 60:3:-2],
        lambda store: store[[3, 44, 7, 3], :],
        lambda store: store[[3, 44, 7], [1, 69, 2]],
        lambda store: store[20, 30],
        lambda store: store[40:40],
        lambda store: store[gpustore.newaxis, 47:50, 60:],
    ):
        for layout in ("C", "F"):
            found = select(there).read(order=layout).result()
            expected = select(host).read(order=layout).result()
            assert found.dtype == expected.dtype
            assert on_host(device, found).tobytes() == expected.tobytes()


def test_crops_and_batches_equal_those_of_the_host(tmp_path, device):
    host = create(tmp_path, compressor={"id": "zlib", "level": 1})
    there = opened(tmp_path, device)
    starts = np.random.default_rng(1).integers(0, 35, (30, 2))
    for shape in ((10, 12), (2, 3)):
        found = there.read_many(starts, shape).result()
        expected = host.read_many(starts, shape).result()
        assert np.array_equal(on_host(device, found), expected)
    batch = gpustore.Batch()
    parts = [(slice(i, i + 9), slice(j, None, 2)) for i, j in starts[:6].tolist()]
    futures = [there[part].read(batch=batch) for part in parts]
    batch.submit()
    for part, future in zip(parts, futures, strict=True):
        assert np.array_equal(on_host(device, future.result()), host[part].read().result())


@pytest.mark.parametrize("shape", [(10, 12), (2, 3)], ids=["regions", "elements"])
def test_crops_survive_failed_streams_and_little_memory(tmp_path, device, shape):
    host = create(tmp_path, compressor={"id": "zstd", "level": 1})
    there = opened(tmp_path, device)
    starts = np.random.default_rng(1).integers(0, 35, (30, 2))
    expected = host.read_many(starts, shape).result()
    device.faults.statuses = {(0, 1): 12, (0, 2): 12}
    found, counts = counted(lambda: there.read_many(starts, shape).result())
    assert np.array_equal(on_host(device, found), expected)
    assert counts["retries"] == counts["host_fallbacks"] == 2
    there._driver.array.backend.release()
    device.faults.allocations = {device.counts["allocations"] + i for i in (1, 2, 3)}
    found = there.read_many(starts, shape).result()
    assert np.array_equal(on_host(device, found), expected)


def test_a_damaged_chunk_of_crops_is_named(tmp_path, lazy):
    create(tmp_path, compressor={"id": "zlib", "level": 1})
    path = tmp_path / "1.2"
    path.write_bytes(path.read_bytes()[:-20])
    there = opened(tmp_path, lazy)
    with pytest.raises(gpustore.CorruptChunkError, match=r"1\.2"):
        there.read_many([[0, 0], [20, 30]], (9, 9)).result()
    batch = gpustore.Batch()
    good, bad = (there[part].read(batch=batch) for part in (np.s_[:9, :9], np.s_[9:20, :40]))
    batch.submit()
    assert np.array_equal(
        on_host(lazy, good.result()), opened_on_host(tmp_path)[:9, :9].read().result()
    )
    with pytest.raises(gpustore.CorruptChunkError, match=r"1\.2"):
        bad.result()


def test_reads_fill_an_array_of_the_device(tmp_path, device):
    host = create(tmp_path)
    there = opened(tmp_path, device)
    out = there[:20].read(order="F").result()
    assert there[20:40].read(out=out).result() is out
    assert np.array_equal(on_host(device, out), host[20:40].read().result())


@pytest.mark.parametrize("made_by", [DlpackArray, TorchLikeArray])
@pytest.mark.parametrize("version", [0, 1])
def test_reads_fill_arrays_that_have_dlpack(tmp_path, device, made_by, version):
    host = create(tmp_path, dtype="bfloat16")
    there = opened(tmp_path, device)
    out = there[:20].read(order="F").result()
    view = device.wrap(out)
    # Its owner is still at work on it, on a stream of its own.
    own = device.stream()
    device.wait(own, device.record(device.caller_stream()))
    device.fill(view.address, 0, 20 * 70 * 2, own)
    foreign = made_by(view, device, own, version=version)
    assert there[20:40].read(out=foreign).result() is foreign
    assert foreign.streams == [device.caller_stream().number]
    wait_until(lambda: foreign.held == 0)  # A thread that has ended its work may still know it.
    assert on_host(device, out).tobytes() == host[20:40].read().result().tobytes()


@pytest.mark.parametrize("made_by", [DlpackArray, TorchLikeArray])
def test_writes_take_arrays_that_have_dlpack(tmp_path, device, made_by):
    host = create(tmp_path, dtype="bfloat16")
    there = opened(tmp_path, device)
    source = there[:20, ::2].read(order="F").result()
    view = device.wrap(source)
    own = device.stream()
    device.wait(own, device.record(device.caller_stream()))
    device.fill(view.address, 0x3F, view.shape[0] * view.shape[1] * 2, own)
    foreign = made_by(view, device, own, is_read_only=True)
    there[20:40, 35:].write(foreign).result()
    wait_until(lambda: foreign.held == 0)  # A thread that has ended its work may still know it.
    assert (host[20:40, 35:].read().result().view("u2") == 0x3F3F).all()


def test_read_only_memory_is_no_destination(tmp_path, lazy):
    create(tmp_path)
    there = opened(tmp_path, lazy)
    out = there[:20].read().result()
    with pytest.raises(TypeError, match="out is read-only, expected writable device memory"):
        there[:20].read(out=DlpackArray(lazy.wrap(out), is_read_only=True))


def test_wrong_destinations_are_refused_at_once(tmp_path, lazy):
    create(tmp_path)
    there = opened(tmp_path, lazy)
    with pytest.raises(TypeError, match="out is not in the memory of device emulated"):
        there.read(out=np.zeros(SHAPE, "u4"))
    part = there[:20].read().result()
    with pytest.raises(gpustore.MismatchError, match="out has shape"):
        there.read(out=part)
    with pytest.raises(TypeError, match="device='cuda'"):
        gpustore.open(f"file://{tmp_path}", device="cpu").result()[:20].read(out=part)


def test_a_store_on_a_device_is_no_numpy_array(tmp_path, lazy):
    create(tmp_path)
    with pytest.raises(TypeError, match=r"call read\(\)"):
        np.asarray(opened(tmp_path, lazy))


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: c["id"] if c else "raw")
def test_launches_copies_and_waits_do_not_grow_with_the_chunks(tmp_path, lazy, compressor):
    create(tmp_path, compressor=compressor, chunks=[5, 10])
    there = opened(tmp_path, lazy)
    results = []
    for part in (np.s_[:10, :20], np.s_[:40, :]):
        result, counts = counted(lambda part=part: there[part].read().result())
        results.append(result)
        counts = {name: counts.get(name, 0) for name in ("launches", "copies", "waits")}
        if len(results) == 1:
            few = counts
    assert counts == few
    assert counts["waits"] == 1
    assert counts["copies"] <= 2


def test_shards_share_submissions(tmp_path, lazy):
    """All inner chunks of 4 or of 16 shards: one submission, and one request for all indices."""
    inner = [{"name": "bytes", "configuration": {"endian": "little"}}]
    index = [*inner, {"name": "crc32c"}]
    inner.append(ZSTD)
    sharding = {"chunk_shape": [2, 4], "codecs": inner, "index_codecs": index}
    metadata = {
        "shape": [32, 32],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 8]}},
        "data_type": "uint32",
        "codecs": [{"name": "sharding_indexed", "configuration": sharding}],
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}", "metadata": metadata}
    host = gpustore.open(spec, create=True).result()
    host[...] = np.arange(1024, dtype="u4").reshape(32, 32)
    there = opened(tmp_path, lazy)
    few, many = (
        counted(lambda part=part: there[part].read().result())[1]
        for part in (np.s_[:16, :16], np.s_[:, :])
    )
    for name in ("launches", "copies", "waits"):
        assert few[name] == many[name] > 0
    assert many["chunks_decoded_device"] == 4 * few["chunks_decoded_device"] == 128
    path = tmp_path / "c" / "2" / "1"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(gpustore.CorruptChunkError, match=r"c/2/1.*shard index"):
        there.read().result()


def test_each_read_has_counts_of_its_own(tmp_path, device):
    create(tmp_path, compressor={"id": "zstd", "level": 1})
    there = opened(tmp_path, device)
    parts = [np.s_[:], np.s_[:20, :20], np.s_[30:, ::3]]
    alone = [counted(lambda part=part: there[part].read().result())[1] for part in parts]
    before = gpustore.statistics.snapshot()
    futures = [there[part].read() for part in parts]
    results = [future.result() for future in futures]
    # Work that reads under way share is divided among them.
    for future, expected in zip(futures, alone, strict=True):
        for name in ("reads", "chunks_planned"):
            assert future.statistics[name] == expected[name]
    after = gpustore.statistics.snapshot()
    for name in after:
        total = sum(future.statistics[name] for future in futures)
        assert total == after[name] - before.get(name, 0)
    assert len(results) == 3


READS = {
    "read": lambda store, out, stream: store[:20].read(out=out, stream=stream),
    "crops": lambda store, out, stream: store.read_many(
        [[20, 0]], [20, 70], out=out, stream=stream
    ),
    "batch": lambda store, out, stream: in_batch(store, out, stream, 0),
    "joined": lambda store, out, stream: in_batch(store, out, stream, 1),
}


def in_batch(store, out, stream, others):
    """A read that is submitted by another thread, whose current stream is another one."""
    batch = gpustore.Batch()
    future = store[:20].read(out=out, stream=stream, batch=batch)
    for _ in range(others):
        store[:3].read(batch=batch)
    thread = threading.Thread(target=batch.submit)
    thread.start()
    thread.join()
    return future


class Borrowed:
    def __init__(self, stream):
        self.stream = stream

    def __cuda_stream__(self):
        return self.stream.__cuda_stream__()


class TorchStream:
    def __init__(self, stream):
        self.cuda_stream = stream.number


FORMS = {
    "current": lambda stream: None,
    "stream": lambda stream: stream,
    "address": lambda stream: stream.number,
    "protocol": Borrowed,
    "torch": TorchStream,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("recheck", [False, True], ids=["", "recheck"])
@pytest.mark.parametrize("kind", READS)
def test_a_read_waits_for_the_stream_of_its_caller(tmp_path, lazy, kind, recheck, form):
    host = create(tmp_path)
    there = opened(tmp_path, lazy, recheck_cached_metadata=recheck)
    before = (
        there[20:40].read().result()
        if kind != "crops"
        else there.read_many([[0, 0]], [20, 70]).result()
    )
    stream = lazy.caller_stream() if form == "current" else lazy.stream()
    seen = begin_download(lazy, before, stream)
    found = READS[kind](there, before, FORMS[form](stream)).result()
    assert found is before
    # The array was in use until here, and may be used by any stream now.
    lazy.synchronize(lazy.record(stream))
    first, second = host[:20].read().result(), host[20:40].read().result()
    if kind == "crops":
        first, second = second, first
    assert seen.view.tobytes() == second.tobytes()
    assert on_host(lazy, found).tobytes() == first.tobytes()
    lazy.free_pinned(seen)


def begin_download(device, array, stream):
    """Pinned memory to which an array is on its way."""
    view = device.wrap(array)
    nbytes = int(np.prod(view.shape)) * view.dtype.itemsize
    pinned = device.allocate_pinned(nbytes)
    device.download(view.address, pinned, 0, nbytes, stream)
    return pinned


@pytest.mark.parametrize("kind", READS)
def test_without_that_stream_a_read_overwrites_what_is_in_use(tmp_path, lazy, kind):
    """What the test above would not notice if reads waited for everything."""
    create(tmp_path)
    there = opened(tmp_path, lazy)
    out = there.read_many([[0, 0]], [20, 70]).result()
    if kind != "crops":
        out = there[20:40].read().result()
    old = on_host(lazy, out)
    stream = lazy.stream()
    seen = begin_download(lazy, out, stream)
    READS[kind](there, out, lazy.stream()).result()
    new = on_host(lazy, out)
    lazy.synchronize(lazy.record(stream))
    assert seen.view.tobytes() == new.tobytes() != old.tobytes()
    lazy.free_pinned(seen)


def test_a_host_has_no_streams(tmp_path):
    store = create(tmp_path)
    expected = store.read().result()
    batch = gpustore.Batch()
    later = store.read(stream=17, batch=batch)
    batch.submit()
    for found in (later, store.read(stream=object()), gpustore.array(expected).read(stream=3)):
        assert np.array_equal(found.result(), expected)
    crops = store.read_many([[0, 0]], list(SHAPE), stream="none")
    assert np.array_equal(crops.result()[0], expected)


def test_what_is_no_stream_is_refused_at_once(tmp_path, lazy):
    create(tmp_path)
    with pytest.raises(TypeError, match="expected a CUDA stream"):
        opened(tmp_path, lazy).read(stream="the default one")


def test_damaged_chunks_are_named(tmp_path, lazy):
    """The last byte is one of the Adler-32, which only the device has compared before."""
    create(tmp_path, compressor={"id": "zlib", "level": 1})
    path = tmp_path / "1.2"
    value = path.read_bytes()
    path.write_bytes(value[:-1] + bytes([value[-1] ^ 1]))
    there = opened(tmp_path, lazy)
    with pytest.raises(gpustore.CorruptChunkError, match=r"1\.2"):
        there.read().result()
    there[:16].read().result()


def test_streams_that_fail_on_the_device_are_decoded_by_the_host_once(tmp_path, lazy):
    host = create(tmp_path, compressor={"id": "zstd", "level": 1})
    there = opened(tmp_path, lazy)
    lazy.faults.statuses = {(0, 1): 12}
    lazy.faults.sizes = {(0, 3): 5}
    found, counts = counted(lambda: there.read().result())
    assert np.array_equal(on_host(lazy, found), host.read().result())
    assert counts["retries"] == counts["host_fallbacks"] == 2
    assert counts["chunks_decoded_device"] == 15 - 2


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: c["id"] if c else "raw")
def test_buffers_are_used_again_while_others_run(tmp_path, device, compressor):
    """A budget for four raw chunks or one: many submissions, in several threads."""
    host = create(tmp_path, compressor=compressor, chunks=[5, 7])
    limits = {"limits": {"device_in_flight_nbytes": 24 * 3 * 5 * 7 * 4}}
    there = opened(tmp_path, device, context=gpustore.Context(limits))
    starts = [[0, 0], [30, 40], [7, 9]]
    futures = [there.read() for _ in range(2)]
    crops = [there.read_many(starts, (20, 30)) for _ in range(2)]
    expected, expected_crops = host.read().result(), host.read_many(starts, (20, 30)).result()
    for future, crop in zip(futures, crops, strict=True):
        assert np.array_equal(on_host(device, future.result()), expected)
        assert np.array_equal(on_host(device, crop.result()), expected_crops)
    _, counts = counted(lambda: there.read().result())
    assert counts["waits"] >= (100 / 4 if compressor is None else 100)
    assert device.counts["stream"] > 1


@pytest.mark.parametrize("compressor", [None, {"id": "zlib", "level": 1}], ids=["raw", "zlib"])
def test_booleans_are_checked_by_the_device(tmp_path, device, compressor):
    host = create(tmp_path, dtype="|b1", compressor=compressor)
    there = opened(tmp_path, device)
    found, counts = counted(lambda: there.read().result())
    assert np.array_equal(on_host(device, found), host.read().result())
    assert not counts.get("host_fallbacks")
    data = bytes([0] * 20 + [2] + [0] * 235)
    (tmp_path / "1.0").write_bytes(zlib.compress(data) if compressor else data)
    with pytest.raises(
        gpustore.CorruptChunkError, match=r"1\.0.*Invalid bool value: 2; at byte 20"
    ):
        there.read().result()
    with pytest.raises(gpustore.CorruptChunkError, match=r"1\.0.*Invalid bool value: 2; at byte"):
        there[17, 2:7].read().result()
    with pytest.raises(gpustore.CorruptChunkError, match=r"1\.0.*Invalid bool value: 2; at byte"):
        there.read_many([[0, 0], [16, 3]], (2, 6)).result()
    if compressor is None:  # Other parts of raw chunks are not looked at.
        assert not on_host(device, there[20:22, :16].read().result()).any()


RECORD = [["a", "<i2"], ["b", "|b1"], ["c", "|b1", [2, 3]], ["d", "|u1"]]


@pytest.mark.parametrize("compressor", [None, {"id": "zlib", "level": 1}], ids=["raw", "zlib"])
@pytest.mark.parametrize(("field", "place"), [("b", 2), ("c", 8)])
def test_fields_of_booleans_are_checked_by_the_device(tmp_path, device, compressor, field, place):
    metadata = {"shape": [300], "chunks": [100], "dtype": RECORD, "compressor": compressor}
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}", "metadata": metadata}
    records = np.full((100, 10), 7, np.uint8)
    records[:, 2:9] = np.arange(700).reshape(100, 7) % 3 % 2
    spec = {**spec, "field": field}
    host = gpustore.open(spec, create=True).result()

    def store(value):
        data = value.tobytes()
        (tmp_path / "1").write_bytes(zlib.compress(data) if compressor else data)

    store(records)
    there = gpustore.open(spec, device=device.name).result()
    for part in (np.s_[:], np.s_[120:140], np.s_[130:190:7], np.s_[[5, 110, 5]]):
        found, counts = counted(lambda part=part: there[part].read().result())
        assert np.array_equal(on_host(device, found), host[part].read().result())
        assert not counts.get("host_fallbacks")
    assert there.explain().host_reason is None
    others = [at for at in range(2, 9) if at != place]
    for at, is_error in ((place, True), (0, False), (9, False), (others[0], False)):
        changed = records.copy()
        changed[57, at] = 2
        store(changed)
        is_other = field == "c" and 3 <= at < 9
        if is_error or is_other:
            texts = []
            for store_ in (host, there):
                with pytest.raises(
                    gpustore.CorruptChunkError, match="Invalid bool value"
                ) as caught:
                    store_.read().result()
                texts.append(str(caught.value))
                del caught
            assert texts[0] == texts[1]
        else:
            found, counts = counted(lambda: there.read().result())
            assert np.array_equal(on_host(device, found), host.read().result())
            assert not counts.get("host_fallbacks")


@pytest.mark.parametrize("dtype", ["int4", "int2", "float4_e2m1fn"])
def test_unused_bits_are_cleared_by_the_device(tmp_path, device, dtype):
    for name, codecs in (("raw", []), ("zstd", [ZSTD])):
        metadata = {
            "shape": [300],
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [100]}},
            "data_type": dtype,
            "codecs": [{"name": "bytes"}, *codecs],
        }
        path = tmp_path / name
        spec = {"driver": "zarr3", "kvstore": f"file://{path}", "metadata": metadata}
        host = gpustore.open(spec, create=True).result()
        (path / "c").mkdir()
        data = np.arange(100, dtype=np.uint8) * 3
        encoded = numcodecs.Zstd(1).encode(data) if codecs else data.tobytes()
        (path / "c" / "1").write_bytes(encoded)
        for part in (np.s_[:], np.s_[120:140], np.s_[130:190:7]):
            there = opened(path, device)[part]
            found, counts = counted(lambda there=there: there.read().result())
            assert not counts.get("host_fallbacks")
            expected = host[part].read().result()
            assert on_host(device, found).tobytes() == expected.tobytes()


def test_little_memory_means_smaller_parts(tmp_path, lazy):
    host = create(tmp_path, compressor={"id": "zlib", "level": 1})
    there = opened(tmp_path, lazy)
    # The array is the first allocation, then memory for a staging buffer.
    lazy.faults.allocations = {1, 2, 3}
    found = there.read().result()
    assert np.array_equal(on_host(lazy, found), host.read().result())
    assert lazy.counts["allocations"] > 4


def test_no_memory_is_a_limit_error(tmp_path, lazy):
    create(tmp_path)
    there = opened(tmp_path, lazy)
    lazy.faults.allocations = set(range(1, 100))
    with pytest.raises(gpustore.LimitError, match="does not fit in the free memory of device"):
        there.read().result()
    lazy.faults.allocations = set(range(1000))
    with pytest.raises(gpustore.LimitError, match="does not fit the memory of device"):
        there.read()
    lazy.faults.allocations, lazy.faults.pinned = set(), set(range(1000))
    with pytest.raises(gpustore.LimitError, match="does not fit in the pinned memory for device"):
        there.read().result()


def test_a_device_that_is_lost_says_so(tmp_path, lazy):
    create(tmp_path)
    there = opened(tmp_path, lazy)
    lazy.faults.lost_at = 0
    for _ in range(2):
        with pytest.raises(gpustore.DeviceError, match="illegal memory access"):
            there.read().result()


def test_cancelled_and_dropped_reads_leave_nothing_behind(tmp_path, device):
    create(tmp_path, compressor={"id": "zlib", "level": 1}, chunks=[5, 5])
    there = opened(tmp_path, device)
    futures = [there.read() for _ in range(6)]
    for future in futures[::2]:
        future.cancel()
    del future
    kept = futures[1]
    del futures
    assert np.array_equal(
        on_host(device, kept.result())[:40], opened_on_host(tmp_path)[:40].read().result()
    )


def opened_on_host(path):
    return gpustore.open(f"file://{path}", device="cpu").result()
