"""The second part's cells on the emulated device, and nvcomp's streams with CPU decoders."""

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest

import gpustore
from benchmarks.gpu import (
    access,
    dataset,
    findings,
    overlap,
    read_plan,
    reader,
    recording_device,
    result,
    stage,
    stored,
)
from benchmarks.gpu.emulated_target import EmulatedTarget, emulated_target
from benchmarks.gpu.format import ZARR2, ZARR3, Format, describe
from benchmarks.gpu.probes import reads
from benchmarks.gpu.setting import Setting
from benchmarks.peers import TensorStorePeer
from tests.emulator.queue import ORDERS, Breach
from tests.on_device import emulated, on_host

WHOLE = Format("blosc-zstd", 2, "1MiB")


@pytest.fixture
def volume(tmp_path):
    return dataset.load("labels_u4", access.TINY, tmp_path)


def notes(folder):
    return findings.Findings(folder / "lines", time.time() + 60, guarded=False)


@pytest.mark.matrix("costly")
def test_every_reader_reads_what_was_written_and_nothing_is_timed(tmp_path):
    found = notes(tmp_path)
    with emulated_target() as target:
        reads.run(found, target, "labels_u4-blosc-lz4")
    report = {"probes": {"reads:labels_u4-blosc-lz4": {"status": "ok", "facts": found.known}}}
    assert result.wrong(report) == []
    (table,) = result.tables(report)
    rows = table["cells"]["whole"]
    missing = {name[10:] for name in found.known if name.startswith("missing / ")}
    assert missing <= {"zarr-python enable_gpu", "zarr-python fused + copy", "zarrs + copy"}
    able = {kind.name for kind in reader.READERS} - missing
    assert {name for name, row in rows.items() if row["equal"]} == able
    assert found.known["missing / zarr-python enable_gpu"] == "needs CuPy and a GPU"
    assert rows["gpustore"]["chunks_decoded_device"] == 64
    assert rows["gpustore"]["host_fallbacks"] == 0
    calls = table["stages"]
    own = [row["calls"] for name, row in calls.items() if name not in ("upload", *stage.GROUPS)]
    assert sum(own) == rows["gpustore"]["launches"]
    assert calls["upload"]["nbytes"] == rows["gpustore"]["bytes_to_device"]
    assert table["ratio"] > 5
    text = repr(found.known)
    assert [word for word in ("seconds", "cpu_s", "'ms'", "device_nbytes") if word in text] == []


class _OneBitWrong(reader.GpustoreHost):
    name = "wrong"

    def read(self, handle, box):
        values = self._peer.read(handle, box).copy()
        values.flat[-1] ^= 1
        return self.target.copied(values)


class _Unable(reader.GpustoreHost):
    name = "unable"

    def read(self, handle, box):
        raise RuntimeError("no such thing")


def test_who_reads_wrongly_is_named_and_does_not_count(tmp_path, volume):
    found = notes(tmp_path)
    path = tmp_path / "array"
    stored.write(path, WHOLE, volume, access.TINY)
    parts = access.boxes("crop", volume, access.TINY, (4, 16, 8))
    with emulated_target() as target:
        cell = reads.Cell(found, target, "zarr2-x / crop", volume, "crop", parts)
        some = [reader.GpustoreHost(target), _OneBitWrong(target), _Unable(target)]
        handles = {each.name: reads.opener(each, path, WHOLE) for each in some}
        cell.compare(some, handles, access.TINY)
    report = {"probes": {"reads:labels_u4-x": {"status": "ok", "facts": found.known}}}
    cells = ["labels_u4 zarr2-x / crop / unable", "labels_u4 zarr2-x / crop / wrong"]
    assert sorted(result.wrong(report)) == cells
    row = result.tables(report)[0]["cells"]["crop"]["unable"]
    assert row == {"error": "RuntimeError: no such thing"}


class _MeasuredTarget(EmulatedTarget):
    """Where what is measured is looked at, though it means nothing."""

    is_emulated = False
    used = 0

    def forget(self):
        self.used = 0

    def used_nbytes(self):
        self.used += 7
        return self.used


@pytest.mark.matrix("costly")
def test_readers_take_turns_until_their_time_is_spent(tmp_path, volume):
    found, path = notes(tmp_path), tmp_path / "array"
    stored.write(path, WHOLE, volume, access.TINY)
    parts = access.boxes("crop", volume, access.TINY, (4, 16, 8))
    spent = {"gpustore": 0.001, "gpustore host + copy": 1.0}

    class Slow(reads.Cell):
        def once(self, reader, handle, *, first):
            row = super().once(reader, handle, first=first)
            return row | {"seconds": spent[reader.name]}

    with emulated() as device:
        target = _MeasuredTarget(device)
        some = [reader.Gpustore(target, Setting()), reader.GpustoreHost(target)]
        cell = Slow(found, target, "zarr2-x / crop", volume, "crop", parts)
        handles = {each.name: reads.opener(each, path, WHOLE) for each in some}
        cell.compare(some, handles, replace(access.TINY, rounds=3, budget_s=1.5))
    turns = [name.rpartition(" / ") for name in found.known]
    assert [(name.rpartition(" / ")[2][8:], int(number)) for name, _, number in turns] == [
        (" host + copy", 0), ("", 0), ("", 1), (" host + copy", 1), ("", 2), (" host + copy", 2),
        ("", 3),
    ]  # fmt: skip
    report = {"probes": {"reads:labels_u4-x": {"status": "ok", "facts": found.known}}}
    rows = result.tables(report)[0]["cells"]["crop"]
    assert (rows["gpustore"]["rounds"], rows["gpustore host + copy"]["rounds"]) == (3, 2)
    for row in rows.values():
        assert row["device_nbytes"] == 7
        assert row["cpu_s"] > 0
        assert row["GBs"] == row["nbytes"] / row["seconds"] / 1e9


def test_a_cell_in_which_a_process_died_is_passed_over(tmp_path, volume):
    first = notes(tmp_path)
    assert first.begin("zarr2-x / whole / gpustore / 0")
    later = notes(tmp_path)
    path = tmp_path / "array"
    stored.write(path, WHOLE, volume, access.TINY)
    parts = access.boxes("whole", volume, access.TINY, (4, 16, 8))
    with emulated_target() as target:
        some = [reader.Gpustore(target, Setting()), reader.GpustoreHost(target)]
        handles = {each.name: reads.opener(each, path, WHOLE) for each in some}
        cell = reads.Cell(later, target, "zarr2-x / whole", volume, "whole", parts)
        cell.compare(some, handles, access.TINY)
    assert [*later.known] == ["zarr2-x / whole / gpustore host + copy / 0"]


@pytest.mark.parametrize("order", ORDERS)
def test_overlapped_slabs_are_the_box(order, tmp_path, volume, monkeypatch):
    array_format = Format("zstd", 3, "64KiB")
    stored.write(tmp_path / "array", array_format, volume, access.TINY)
    monkeypatch.setattr(overlap, "SLAB_NBYTES", 1)
    host = TensorStorePeer(2).open(f"{tmp_path}/array/", array_format)
    boxes = [
        tuple(slice(0, size) for size in volume.shape),
        (slice(3, volume.shape[0] - 2), slice(5, 17), slice(9, 30)),
        (slice(5, 6), slice(0, 1), slice(2, 3)),
    ]
    with emulated(order, seed=3) as device:
        overlapped = overlap.Overlap(device)
        for box in boxes:
            array = on_host(device, overlapped.read(host, box, 2))
            assert np.array_equal(array, np.resize(volume.part(box), array.shape))
        overlapped.close()


def test_a_slab_that_is_decoded_into_too_early_is_noticed(tmp_path, volume, monkeypatch):
    array_format = Format("raw", 3, "64KiB")
    stored.write(tmp_path / "array", array_format, volume, access.TINY)
    monkeypatch.setattr(overlap, "SLAB_NBYTES", 1)
    host = TensorStorePeer(2).open(f"{tmp_path}/array/", array_format)
    box = tuple(slice(0, size) for size in volume.shape)
    with pytest.raises(Breach), emulated("lazy") as device:  # noqa: PT012
        overlapped = overlap.Overlap(device)
        synchronize, device.synchronize = device.synchronize, lambda event: None
        overlapped.read(host, box, 2)
        device.synchronize = synchronize
        synchronize(device.record(overlapped._stream))
        overlapped.close()


def test_slabs_are_whole_chunks_and_cover_the_box():
    rng = np.random.default_rng(2)
    for first, extent, depth, plane in rng.integers(1, 200, (300, 4)).tolist():
        pieces = overlap.slabs((slice(first, first + extent),), depth, plane << 16)
        assert [pieces[0].start, pieces[-1].stop] == [first, first + extent]
        for a, b in itertools.pairwise(pieces):
            assert a.stop == b.start
            assert a.stop % depth == 0
        assert all(piece.stop > piece.start for piece in pieces)


@pytest.mark.parametrize("codec", [*ZARR2])
@pytest.mark.parametrize("most_nbytes", [1 << 30, 9000])
def test_streams_for_nvcomp_are_those_that_it_decodes(codec, most_nbytes, tmp_path):
    volume = dataset.load("camera_u2", access.TINY, tmp_path)
    array_format = Format(codec, 2, "1MiB")
    path = tmp_path / "array"
    stored.write(path, array_format, volume, access.TINY)
    with emulated_target() as target:
        row = reads.nvcomp_alone(target, path, array_format, volume, access.TINY, most_nbytes)
    if codec in ("raw", "blosc-blosclz"):
        assert row == {"cannot": f"no streams for nvcomp in {codec}"}
        return
    assert row["equal"]
    assert 0 < row["nbytes"] <= min(most_nbytes, volume.nbytes)
    if codec == "zstd":
        assert row["nbytes"] > min(most_nbytes, volume.nbytes) - 2048


def test_one_wrong_byte_of_a_decoder_is_seen(tmp_path, volume):
    stored.write(tmp_path / "array", WHOLE, volume, access.TINY)
    with emulated_target() as target:
        target.device.faults.nonsense = {(0, 0)}
        found = tmp_path / "array", WHOLE, volume, access.TINY, 1 << 30
        assert not reads.nvcomp_alone(target, *found)["equal"]


@pytest.mark.parametrize("name", dataset.DATASETS)
def test_volumes_are_the_same_each_time_and_look_like_data(name, tmp_path):
    shape = (8, 64, 64)
    made = dataset._MADE[name](shape)
    assert made.shape == shape
    assert made.dtype.newbyteorder("=").str[1:] == name[-2:]
    assert np.array_equal(made, dataset._MADE[name](shape))
    volume = dataset.Volume(name, made, 3)
    whole = np.concatenate([made] * 3)
    box = (slice(6, 19), slice(1, 50), slice(7, 64))
    assert np.array_equal(volume.part(box), whole[box])
    assert volume.nbytes == whole.nbytes
    loaded = dataset.load(name, access.TINY, tmp_path)
    assert np.array_equal(loaded.base, dataset.load(name, access.TINY, tmp_path).base)


@pytest.mark.parametrize("scale", [access.FULL, access.TINY], ids=["full", "tiny"])
@pytest.mark.parametrize("dtype", ["<u2", "<f4"])
def test_chunks_shards_and_boxes_fit_the_volume(scale, dtype):
    dtype = np.dtype(dtype)
    base = np.broadcast_to(np.zeros((), dtype), scale.base)
    volume = dataset.Volume("x", base, scale.nbytes // base.nbytes)
    assert volume.nbytes == scale.nbytes
    for name in scale.chunks:
        for sharded in (False, True):
            if sharded and name == "16MiB":
                continue
            array_format = Format("zstd", 3, name, sharded)
            chunk = array_format.chunk_shape(dtype, scale)
            outer = array_format.stored_shape(dtype, scale)
            assert all(a % b == 0 for a, b in zip(scale.base, outer))
            assert all(a % b == 0 for a, b in zip(outer, chunk))
            if scale is not access.TINY:
                count, unit = int(name[:-3]), name[-3:]
                assert np.prod(chunk) * dtype.itemsize == count << {"KiB": 10, "MiB": 20}[unit]
            for kind in access.ACCESSES:
                for box in access.boxes(kind, volume, scale, chunk):
                    assert all(0 <= s.start < s.stop <= n for s, n in zip(box, volume.shape))


def test_every_codec_and_access_is_asked():
    found = [cell for variant, _ in read_plan.variants() for cell in read_plan.cells(variant)]
    asked = {array_format.codec for array_format, _ in found}
    assert asked == {*ZARR2} >= {*ZARR3}
    assert {chunk for chunk in access.FULL.chunks} == {f.chunk for f, _ in found}
    assert {name for _, names in found for name in names} == {*access.ACCESSES}
    assert {(f.codec, f.sharded) for f, _ in found} >= {("zstd", True), ("blosc-zstd", True)}


def test_formats_are_described():
    assert describe("zarr2-blosc-lz4-64KiB") == (
        "Zarr v2, blosc-lz4 (clevel 5, shuffle 1, blocksize 0, cname lz4), 64KiB chunks"
    )
    assert describe("zarr3-raw-16MiB-sharded") == "Zarr v3, raw, 16MiB chunks in shards"


def test_time_that_overlaps_is_counted_once():
    rng = np.random.default_rng(1)
    for _ in range(200):
        intervals = [(a, a + n) for a, n in rng.integers(0, 20, (rng.integers(0, 6), 2)).tolist()]
        covered = {t for a, b in intervals for t in range(a, b)}
        assert stage.union(intervals) == len(covered)


def test_a_recording_device_is_a_device(tmp_path, volume):
    stored.write(tmp_path / "array", WHOLE, volume, access.TINY)

    class Clock(recording_device.NoClock):
        now = 0

        def mark(self, stream):
            self.now += 1
            return self.now

        def milliseconds(self, mark):
            return mark

    with emulated() as device:
        recorder = recording_device.RecordingDevice(device, Clock())
        with recording_device.opened(recorder) as name:
            store = gpustore.open(WHOLE.spec(tmp_path / "array"), device=name).result()
            recorder.begin()
            array = on_host(device, store.read().result())
        rows = stage.rows(recorder.stages())
    assert np.array_equal(array, np.resize(volume.base, array.shape))
    # The clock ticks once at each mark: nothing overlaps, and each call takes one tick.
    for name, row in rows.items():
        assert row["ms"] == row["calls"], name
    assert rows["decode"]["nbytes"] == volume.nbytes
