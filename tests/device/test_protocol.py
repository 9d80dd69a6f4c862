"""What every :class:`gpustore.device.protocol.Device` does: one suite for the emulated one and for
a GPU."""

import gc
import inspect
import itertools
import threading
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gpustore.device.guard import EMPTY_STREAMS
from gpustore.device.image_batch import ImageBatch
from gpustore.device.image_decoders import FORMATS, IMAGES, LARGEST_DIFFERENCE, pixels
from gpustore.device.protocol import ALIGNMENT, CodecBatch, Device, Spans
from tests.device_memory import bench_of, fill_runs, require_kernels
from tests.emulator.device import EmulatedDevice
from tests.streams import CODECS, decode, encode, smooth

pytestmark = pytest.mark.matrix


@pytest.fixture
def bench(device):
    with bench_of(device) as bench:
        yield bench


def operations(kind):
    """Operations of a device, with the names of their arguments."""
    return {
        name: list(inspect.signature(getattr(kind, name)).parameters)
        for name, member in vars(Device).items()
        if inspect.isfunction(member) and not name.startswith("_")
    }


def test_the_emulated_device_has_every_operation():
    assert operations(EmulatedDevice) == operations(Device)
    assert len(operations(Device)) == 29


# --------------------------------------------------------------------------- memory


def test_memory_says_no_more_is_free_than_there_is(device):
    memory = device.memory()
    assert 0 < memory.free_nbytes <= memory.total_nbytes


def test_allocations_are_aligned_and_apart(bench):
    found = sorted((bench.allocate(nbytes), nbytes) for nbytes in (1, 255, 256, 257, 100_000))
    assert not any(address % ALIGNMENT for address, _ in found)
    assert all(a + nbytes <= b for (a, nbytes), (b, _) in itertools.pairwise(found))


def test_more_memory_than_there_is_is_a_memory_error_and_nothing_else_breaks(bench):
    with pytest.raises(MemoryError):
        bench.device.allocate(bench.device.memory().total_nbytes + 1, bench.stream)
    too_many = (bench.device.memory().total_nbytes + 1,)
    with pytest.raises(MemoryError):
        bench.device.empty(too_many, np.dtype("u1"), "C", bench.stream)
    assert bench.get(bench.put(b"still here"), 10) == b"still here"


@pytest.mark.parametrize("nbytes", [1, 3, 4096, 100_001])
@pytest.mark.parametrize("offset", [0, 1, 7])
def test_bytes_come_back_from_any_address(bench, nbytes, offset):
    data = smooth(nbytes)
    assert bench.get(bench.put(data, offset=offset), nbytes) == data


def test_part_of_pinned_memory_is_copied(bench):
    pinned = bench.device.allocate_pinned(100)
    pinned.view[:] = bytes(range(100))
    address = bench.put(bytes(50))
    bench.device.upload(pinned, 10, address + 20, 5, bench.stream)
    bench.wait()
    assert bench.get(address, 50) == bytes(20) + bytes(range(10, 15)) + bytes(25)
    pinned.view[:] = bytes(100)
    bench.device.download(address + 20, pinned, 60, 5, bench.stream)
    bench.wait()
    assert bytes(pinned.view) == bytes(60) + bytes(range(10, 15)) + bytes(35)
    bench.device.free_pinned(pinned)


def test_fill_sets_exactly_its_bytes(bench):
    address = bench.put(bytes(30))
    bench.device.fill(address + 3, 0xFE, 17, bench.stream)
    assert bench.get(address, 30) == bytes(3) + b"\xfe" * 17 + bytes(10)


@pytest.mark.parametrize(
    ("shape", "order", "strides"),
    [
        ((3, 4, 5), "C", (80, 20, 4)),
        ((3, 4, 5), "F", (4, 12, 48)),
        ((7,), "C", (4,)),
        ((), "C", ()),
        ((0, 3), "C", None),
    ],
)
def test_arrays_for_the_user_lie_where_they_say(bench, shape, order, strides):
    made = bench.device.empty(shape, np.dtype("<u4"), order, bench.stream)
    assert (made.shape, made.dtype) == (shape, np.dtype("<u4"))
    assert made.array.shape == shape
    if strides is not None:
        assert made.strides == strides
        nbytes = 4 * int(np.prod(shape))
        bench.device.fill(made.address, 5, nbytes, bench.stream)
        assert bench.get(made.address, nbytes) == b"\5" * nbytes
    bench.wait()
    wrapped = bench.device.wrap(made.array)
    assert (wrapped.shape, wrapped.dtype) == (made.shape, made.dtype)
    assert wrapped.array is made.array
    if strides is not None:
        assert (wrapped.address, wrapped.strides) == (made.address, made.strides)


@pytest.mark.parametrize(
    "dtype", [">f4", "M8[s]", "V5", "S3", [("a", "<u2"), ("b", "u1")], ml_dtypes.bfloat16]
)
def test_arrays_for_the_user_may_have_types_that_nobody_computes_with(bench, dtype):
    made = bench.device.empty((3, 2), np.dtype(dtype), "C", bench.stream)
    bench.wait()
    assert made.dtype == made.array.dtype == np.dtype(dtype)
    assert bench.device.wrap(made.array).dtype == np.dtype(dtype)


def test_host_cannot_look_into_arrays_by_accident(bench):
    made = bench.device.empty((3,), np.dtype("u1"), "C", bench.stream)
    with pytest.raises(TypeError):
        np.asarray(made.array)
    with pytest.raises(TypeError):
        memoryview(made.array)
    bench.wait()


def test_memory_of_a_dropped_array_is_free_again(device):
    stream = device.stream()
    used = []
    for _ in range(4):
        made = device.empty((1 << 20,), np.dtype("u1"), "C", stream)
        device.fill(made.address, 1, 1 << 20, stream)
        device.synchronize(device.record(stream))
        used.append(device.memory().free_nbytes)
        del made
        gc.collect()
    assert used[-1] >= used[0]


class Interface:
    """Foreign memory, as other libraries offer it."""

    def __init__(self, **interface):
        self.__cuda_array_interface__ = {"version": 3, **interface}


def test_foreign_arrays_are_wrapped_as_they_lie(bench):
    address = bench.put(bytes(1000))
    foreign = Interface(shape=(3, 4), typestr="<u2", data=(address + 6, False), strides=(100, -2))
    wrapped = bench.device.wrap(foreign)
    assert (wrapped.address, wrapped.strides) == (address + 6, (100, -2))
    assert (wrapped.shape, wrapped.dtype) == ((3, 4), np.dtype("<u2"))
    dense = Interface(shape=(3, 4), typestr="<u2", data=(address, False))
    assert bench.device.wrap(dense).strides == (8, 2)


def test_what_is_not_on_the_device_is_not_wrapped(bench):
    assert bench.device.wrap(np.zeros(3)) is None
    assert bench.device.wrap([1, 2]) is None
    address = bench.put(bytes(8))
    found = bench.device.wrap(Interface(shape=(8,), typestr="|u1", data=(address, True)))
    assert found.is_read_only


# --------------------------------------------------------------------------- queue


def test_a_stream_runs_in_order(bench):
    address = bench.put(bytes(10))
    for value in range(1, 20):
        bench.device.fill(address, value, 10, bench.stream)
    assert bench.get(address, 10) == bytes([19]) * 10


def test_an_event_orders_two_streams(bench):
    device = bench.device
    other = device.stream()
    address = bench.put(bytes(10))
    for value in range(1, 10):
        device.fill(address, value, 10, other)
        device.wait(bench.stream, device.record(other))
        assert bench.get(address, 10) == bytes([value]) * 10
        device.wait(other, device.record(bench.stream))


def test_events_carry_what_their_stream_waited_for(bench):
    device = bench.device
    first, second = device.stream(), device.stream()
    address = bench.put(bytes(4))
    device.fill(address, 9, 4, first)
    device.wait(second, device.record(first))
    device.wait(bench.stream, device.record(second))  # Nothing was asked of `second` itself.
    assert bench.get(address, 4) == b"\x09" * 4


def test_events_pass(bench):
    device = bench.device
    empty = device.record(device.stream())
    device.synchronize(empty)
    bench.allocate(100)
    event = device.record(bench.stream)
    for _ in range(2):
        device.synchronize(event)


def test_events_may_be_waited_for_in_another_thread(bench):
    address = bench.put(bytes(10))
    bench.device.fill(address, 3, 10, bench.stream)
    event = bench.device.record(bench.stream)
    thread = threading.Thread(target=bench.device.synchronize, args=(event,))
    thread.start()
    thread.join(60)
    assert bench.get(address, 10) == b"\3" * 10


def test_the_stream_of_a_caller_is_the_one_given(bench):
    device = bench.device
    own = device.caller_stream(bench.stream)
    address = bench.put(bytes(4))
    device.fill(address, 8, 4, own)
    assert bench.get(address, 4) == b"\x08" * 4
    current = device.caller_stream()
    device.wait(current, device.record(bench.stream))
    device.fill(address, 9, 4, current)
    device.wait(bench.stream, device.record(device.caller_stream()))
    assert bench.get(address, 4) == b"\x09" * 4
    with pytest.raises(TypeError, match="stream"):
        device.caller_stream("no stream")


def test_threads_share_a_device(device):
    """Each with a stream of its own; nobody sees the bytes of another."""
    wrong = []

    def work(number):
        with bench_of(device) as bench:
            data = [smooth(2000, 10 * number + i) for i in range(5)]
            for part in data:
                src = bench.put_streams([encode("zstd", part)])
                dst = Spans.contiguous(bench.allocate(2000), [2000])
                found = bench.run_codec("decompress", "zstd", src, dst)
                decoded = bench.get(int(dst.address[0]), 2000)
                if found != ([2000], [0]) or decoded != part:
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


# --------------------------------------------------------------------------- kernels


@pytest.mark.parametrize("width", ["u8", "u128"])
def test_kernels_are_launched_with_tables_and_values(bench, width):
    require_kernels(bench.device)
    itemsize = {"u8": 1, "u128": 16}[width]
    count, nitems = 3, 2000
    pattern = np.arange(1, itemsize + 1, dtype=np.uint8)
    address = bench.put(bytes(count * (nitems + 1) * itemsize))
    starts = address + np.arange(count) * (nitems + 1) * itemsize
    runs, blocks = fill_runs(starts, nitems, itemsize)
    table = bench.put(runs.tobytes())
    kernel = bench.device.kernel("fill", f"gs::fill_strided<gs::{width}, 1>")
    arguments = [np.uint64(table), np.uint32(count), pattern]
    bench.device.launch(kernel, blocks, arguments, bench.stream)
    expected = (pattern.tobytes() * nitems + bytes(itemsize)) * count
    assert bench.get(address, len(expected)) == expected


# --------------------------------------------------------------------------- codecs


def test_codecs_say_how_they_want_their_streams(device):
    for name in CODECS:
        codec = device.codec(name)
        assert codec.name == name
        for alignment in (codec.src_alignment, codec.dst_alignment, codec.temp_alignment):
            assert alignment in (1, 2, 4, 8, 16)
        assert codec.decoded_max_nbytes >= 1 << 30
    assert device.codec("lz4").detects_damage
    assert device.codec("no such codec") is None


SIZES = (1, 2, 63, 64, 1000, 65_536, 65_537, 131_073, 5)


@pytest.mark.parametrize("codec", CODECS)
def test_streams_of_all_sizes_decompress_in_one_call(bench, codec):
    decoded = [smooth(nbytes, i) for i, nbytes in enumerate(SIZES)]
    decoded += [np.random.default_rng(i).bytes(5000) for i in range(3)] + [bytes(100_000)]
    sizes = [len(data) for data in decoded]
    src = bench.put_streams([encode(codec, data) for data in decoded])
    margin = 32
    spans = Spans.contiguous(0, [size + margin for size in sizes], 16)
    total = int(spans.address[-1]) + sizes[-1] + margin
    base = bench.put(b"\x5a" * total)
    dst = Spans(spans.address + np.uint64(base), np.array(sizes, np.uint64))
    assert bench.run_codec("decompress", codec, src, dst) == (sizes, [0] * len(sizes))
    found = bench.get(base, total)
    expected = bytearray(b"\x5a" * total)
    for start, data in zip(spans.address.tolist(), decoded, strict=True):
        expected[start : start + len(data)] = data
    assert found == expected


@pytest.mark.parametrize("codec", CODECS)
def test_streams_lie_at_any_address_their_codec_allows(bench, codec):
    device = bench.device
    data = [smooth(3000, i) for i in range(4)]
    offset = device.codec(codec).src_alignment
    src = bench.put_streams([encode(codec, part) for part in data], offset=offset)
    room = bench.put(bytes(4 * 3001))
    dst = Spans.contiguous(room + device.codec(codec).dst_alignment, [3000] * 4)
    assert bench.run_codec("decompress", codec, src, dst) == ([3000] * 4, [0] * 4)
    assert bench.get(int(dst.address[0]), 12_000) == b"".join(data)


@pytest.mark.parametrize("codec", CODECS)
def test_two_thousand_streams_are_one_call(bench, codec):
    parts = [smooth(200, i) for i in range(10)]
    encoded = [encode(codec, part) for part in parts]
    src = bench.put_streams([encoded[i % 10] for i in range(2000)])
    dst = Spans.contiguous(bench.allocate(400_000), [200] * 2000)
    for by_table in (False, True)[: 1 + bench.device.codec(codec).reads_table]:
        found = bench.run_codec("decompress", codec, src, dst, by_table=by_table)
        assert found == ([200] * 2000, [0] * 2000)
        assert bench.get(int(dst.address[0]), 400_000) == b"".join(parts) * 200


@pytest.mark.parametrize("codec", CODECS)
def test_room_beyond_the_end_is_left_alone_and_the_size_told(bench, codec):
    src = bench.put_streams([encode(codec, smooth(1000))])
    room = bench.put(b"\x77" * 1500)
    dst = Spans.contiguous(room, [1400])
    assert bench.run_codec("decompress", codec, src, dst) == ([1000], [0])
    assert bench.get(room, 1000) == smooth(1000)
    assert bench.get(room + 1400, 100) == b"\x77" * 100


@pytest.mark.parametrize("codec", CODECS)
def test_too_little_room_is_a_status_and_the_others_decode(bench, codec):
    data = [smooth(1000, i) for i in range(3)]
    src = bench.put_streams([encode(codec, part) for part in data])
    room = bench.put(b"\x77" * 3300)
    dst = Spans(
        np.array([room, room + 1100, room + 2200], np.uint64), np.array([1000, 999, 1000], "u8")
    )
    _, statuses = bench.run_codec("decompress", codec, src, dst)
    assert [status == 0 for status in statuses] == [True, False, True]
    found = bench.get(room, 3300)
    assert (found[:1000], found[2200:3200]) == (data[0], data[2])
    assert found[1000:1100] + found[2099:2200] + found[3200:] == b"\x77" * 301


@pytest.mark.parametrize("codec", CODECS)
def test_streams_in_place_of_damaged_ones_do_no_harm(bench, codec):
    """Followed by zeros, as long as a stream had been; those beside them are decoded."""
    data = [smooth(3000, 1), b"", smooth(3000, 2)]
    streams = [encode(codec, part) for part in data]
    streams[1] = EMPTY_STREAMS[codec] + bytes(1000)
    base = bench.put(b"\x5a" * 3 * 3040)
    dst = Spans.contiguous(base, [3000] * 3, 3040)
    sizes, statuses = bench.run_codec("decompress", codec, bench.put_streams(streams), dst)
    assert (sizes[0], sizes[2], statuses[0], statuses[2]) == (3000, 3000, 0, 0)
    assert (sizes[1], statuses[1]) != (3000, 0)
    found = bench.get(base, 3 * 3040)
    for number in (0, 2):
        assert found[3040 * number :][:3040] == data[number] + b"\x5a" * 40
    assert found[3040 + 3000 : 2 * 3040] == b"\x5a" * 40


def test_a_codec_that_detects_damage_never_passes_it_off_as_success(bench):
    """Each truncation, and damage at each byte: a status, another size, or decoded bytes."""
    data = smooth(600)
    whole = encode("lz4", data)
    damaged = [whole[:length] for length in range(1, len(whole))]
    for position in range(0, len(whole), 7):
        changed = bytearray(whole)
        changed[position] ^= 0x81
        damaged.append(bytes(changed))
    src = bench.put_streams(damaged)
    spans = Spans.contiguous(0, [632] * len(damaged))
    base = bench.put(b"\x33" * 632 * len(damaged))
    dst = Spans(spans.address + np.uint64(base), np.full(len(damaged), 600, np.uint64))
    sizes, statuses = bench.run_codec("decompress", "lz4", src, dst)
    truncated = len(whole) - 1
    assert not any(
        status == 0 and size == 600
        for size, status in zip(sizes[:truncated], statuses[:truncated], strict=True)
    )
    found = np.frombuffer(bench.get(base, 632 * len(damaged)), np.uint8).reshape(-1, 632)
    assert (found[:, 600:] == 0x33).all()


@pytest.mark.parametrize("codec", CODECS)
def test_what_the_device_compresses_the_host_decodes(bench, codec):
    if not bench.device.codec(codec).encodes_max_nbytes:
        pytest.skip(f"this device does not encode {codec}")
    data = [smooth(nbytes, 1) for nbytes in (1, 700, 65_536)] + [bytes(9000)]
    sizes = [len(part) for part in data]
    bound, _ = bench.device.compress_nbytes(codec, len(data), max(sizes))
    src = bench.put_streams(data)
    dst = Spans.contiguous(bench.allocate(16 * (bound + 16)), [bound] * len(data), 16)
    found, statuses = bench.run_codec("compress", codec, src, dst)
    assert statuses == [0] * len(data)
    for start, nbytes, part in zip(dst.address.tolist(), found, data, strict=True):
        assert decode(codec, bench.get(start, nbytes), len(part)) == part


def test_columns_are_read_back_as_they_were_written():
    src = Spans.contiguous(4096, [5, 6])
    dst = Spans.contiguous(8192, [70, 80], 64)
    columns = CodecBatch.columns(src, dst)
    assert columns.tolist() == [[4096, 4101], [5, 6], [8192, 8320], [70, 80]]
    found = np.concatenate(
        [np.array([70, 1], np.uint64).view(np.uint8), np.array([0, 12], np.int32).view(np.uint8)]
    )
    sizes, statuses = CodecBatch.results(found)
    assert (sizes.tolist(), statuses.tolist()) == ([70, 1], [0, 12])


# --------------------------------------------------------------------------- files


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "values"
    path.write_bytes(smooth(50_000))
    return path


def test_files_are_read_page_by_page(bench, path):
    device = bench.device
    file = device.open_file(path)
    page = max(file.alignment, 16)
    address = -(-bench.allocate(12 * 4096 + page) // page) * page
    bench.wait()
    for first, count in ((0, 1), (1, 3), (2, 2)):
        read = device.read_file(file, first * page, count * page, address)
        assert read.result() == count * page
        assert read.result() == count * page
        assert bench.get(address, count * page) == smooth(50_000)[first * page :][: count * page]
    device.close_file(file)


def test_reading_beyond_the_end_of_a_file_tells_how_much_there_was(bench, path):
    device = bench.device
    file = device.open_file(path)
    page = file.alignment
    start = 40_000 // page * page
    address = -(-bench.allocate(5 * 4096 + page) // page) * page
    bench.wait()
    assert device.read_file(file, start, 5 * 4096, address).result() == 50_000 - start
    assert bench.get(address, 50_000 - start) == smooth(50_000)[start:]
    device.close_file(file)


def test_an_open_descriptor_is_a_path_to_its_file(device, path):
    """So the file is the one that somebody has looked at, whatever its name means by now."""
    with path.open("rb") as opened:
        path.rename(path.with_name("elsewhere"))
        file = device.open_file(Path(f"/proc/self/fd/{opened.fileno()}"))
    with bench_of(device) as bench:
        page = max(file.alignment, 16)
        address = -(-bench.allocate(4096 + page) // page) * page
        bench.wait()
        assert device.read_file(file, 0, 4096, address).result() == 4096
        assert bench.get(address, 4096) == smooth(50_000)[:4096]
    device.close_file(file)


def test_a_file_that_is_not_there_is_an_os_error(device, tmp_path):
    with pytest.raises(FileNotFoundError):
        device.open_file(tmp_path / "nothing")


# --------------------------------------------------------------------------- images


@pytest.mark.parametrize("name", FORMATS)
def test_images_are_decoded_one_by_one(bench, name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A GPU need not have the library.
        state = bench.device.image_decoder(name)
    if state.engine is None:
        pytest.skip(state.shortcoming)
    nbytes, around, count = pixels().nbytes, 40, 3
    memory, result = bench.allocate(count * (nbytes + around)), bench.allocate(4 * count)
    bench.device.fill(memory, 77, count * (nbytes + around), bench.stream)
    bench.device.fill(result, 255, 4 * count, bench.stream)
    files = [IMAGES[name], IMAGES[name][: len(IMAGES[name]) // 4], IMAGES[name]]
    dst = np.uint64(memory) + (nbytes + around) * np.arange(count, dtype=np.uint64)
    batch = ImageBatch(name, files, [pixels().shape] * count, 0, dst, result)
    bench.device.decode_images(batch, bench.stream)
    statuses = np.frombuffer(bench.get(result, 4 * count), np.int32)
    assert (statuses == 0).tolist() == [True, False, True]
    rows = np.frombuffer(bench.get(memory, count * (nbytes + around)), np.uint8).reshape(count, -1)
    assert (rows[:, nbytes:] == 77).all()
    for row in rows[[0, 2], :nbytes]:
        difference = np.abs(row.reshape(pixels().shape).astype(int) - pixels()).max()
        assert difference <= LARGEST_DIFFERENCE[name]
