"""The probes on the host: what they say of decoders that are right, and of ones that are not."""

import inspect
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.gpu import findings, frame, plan
from benchmarks.gpu.nvcomp import CODECS, MORE_PROTOTYPES, abi, packed, repeated
from benchmarks.gpu.probes import asynchrony, damage, decode_rate, health, unusual
from benchmarks.gpu.stream import KIB
from tests.backends.cuda.wheels import nvcomp_headers
from tests.backends.nvcomp.test_abi import prototype
from tests.benchmarks.gpu.host_gpu import HostGpu, HostNvcomp
from tests.matrix import each


@pytest.fixture
def gpu():
    return HostGpu()


def asked(probe, gpu, variant, path, *, quick=True):
    found = findings.Findings(path / "lines", time.time() + 60, quick=quick, guarded=False)
    probe.run(found, gpu, variant)
    lines = findings.read_lines(found.path)
    return {line["name"]: line["value"] for line in lines if "name" in line}


@pytest.mark.matrix
@pytest.mark.parametrize("codec", plan.CODECS)
def test_rates_are_of_streams_decoded_right(codec, gpu, tmp_path):
    facts = asked(decode_rate, gpu, codec, tmp_path)
    rows = [row for row in facts.values() if isinstance(row, dict) and "GBs" in row]
    assert {(row["nbytes"], row["count"]) for row in rows} == {
        (64 * KIB, 1), (64 * KIB, 16), (1024 * KIB, 1)
    }  # fmt: skip
    for row in rows:
        assert row["equal"]
        assert row["GBs"] > 0
        assert 1 < row["ratio"] < 100


class _OneByteWrong(HostNvcomp):
    def decompress(self, batch):
        super().decompress(batch)
        _, _, capacity, dst = self._rows(batch)[-1]
        last = dst + capacity - 1
        batch.gpu.upload(~batch.gpu.download(last, 1), last)


def test_one_wrong_byte_is_seen(gpu, tmp_path):
    gpu.nvcomp = _OneByteWrong()
    rates = asked(decode_rate, gpu, "zstd", tmp_path)
    rows = [row for row in rates.values() if isinstance(row, dict) and "GBs" in row]
    assert rows
    assert not any(row["equal"] for row in rows)


@pytest.mark.matrix
@pytest.mark.parametrize("codec", plan.CODECS)
def test_unusual_streams_come_out_as_the_cpu_decodes_them(codec, gpu, tmp_path):
    facts = asked(unusual, gpu, codec, tmp_path)
    for case in frame.unusual(codec):
        row = facts[case.name]
        assert facts[f"{case.name}_claims_nbytes"] == len(case.decoded)
        assert row["neighbour_equal"]
        assert not row["wrote_beyond"]
        if case.valid:
            assert (row["equal"], row["status"], row["nbytes"]) == (True, 0, len(case.decoded)), (
                case.name
            )


class _Overrun(HostNvcomp):
    def decompress(self, batch):
        super().decompress(batch)
        for _, _, capacity, dst in self._rows(batch):
            batch.gpu.fill(dst + capacity, 0, 1)


@pytest.mark.matrix
@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_damage_is_told_from_what_is_whole(codec, gpu, tmp_path):
    facts = asked(damage, gpu, codec, tmp_path)
    assert len(facts) == 9
    for row in facts.values():
        assert row["whole_streams_right"]
        assert row["wrote_beyond"] == 0
        assert sum(row["statuses"].values()) == row["of"] == frame.DAMAGED_COUNT // 2
    assert facts["random_bytes"]["statuses"] == {"12": 16}
    assert facts["random_bytes"]["wrong_without_status"] == 0


def test_writing_beyond_the_room_is_seen(gpu, tmp_path):
    gpu.nvcomp = _Overrun()
    facts = asked(damage, gpu, "lz4", tmp_path)
    assert facts["all_ones"]["wrote_beyond"] == frame.DAMAGED_COUNT
    (tmp_path / "lines").unlink()
    assert asked(unusual, gpu, "lz4", tmp_path)["block_of_1MiB"]["wrote_beyond"]


def test_a_call_that_waits_is_told_from_one_that_does_not(gpu, monkeypatch):
    now = [0.0]

    def spend(seconds):
        now[0] += seconds

    monkeypatch.setattr(gpu, "occupy", lambda milliseconds: None)
    monkeypatch.setattr(gpu, "wait", lambda: spend(0.05))
    monkeypatch.setattr(asynchrony, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    assert asynchrony.behind_work(gpu, lambda: None) == (0, pytest.approx(50))
    assert asynchrony.behind_work(gpu, lambda: spend(0.2)) == (
        pytest.approx(200),
        pytest.approx(250),
    )


def test_health_compares(gpu, tmp_path):
    assert asked(health, gpu, "", tmp_path) == {"answers": True}


def test_batches_repeat_streams_at_addresses_of_their_own(gpu):
    out = gpu.allocate(7 * 5)
    batch = repeated(gpu, "lz4", [b"abc", b"defgh", b"i"], 5, 7, out)
    rows = gpu.nvcomp._rows(batch)
    assert len({src for src, *_ in rows}) == 7
    texts = [bytes(gpu.download(src, nbytes)) for src, nbytes, *_ in rows]
    assert texts == [b"abc", b"defgh", b"i", b"abc", b"defgh", b"i", b"abc"]
    assert [dst - out.ptr for *_, dst in rows] == [*range(0, 35, 5)]


def test_packed_streams_lie_where_they_are_asked_to():
    arena, offsets, sizes = packed([b"x" * 20, b"y" * 16, b""], shift=3)
    assert [int(offset) % 16 for offset in offsets] == [3, 3, 3]
    assert sizes.tolist() == [20, 16, 0]
    assert bytes(arena[offsets[1] :][:16]) == b"y" * 16
    assert np.all(arena[int(offsets[0]) + 20 : int(offsets[1])] == 0x5A)


def test_points_fit_and_begin_with_what_matters():
    points = decode_rate.points(4 << 30, quick=False)
    assert len(points) == len(set(points)) > 60
    assert all(point.nbytes * point.count <= 4 << 30 for point in points)
    assert (points[0].nbytes, points[0].count) == (64 * KIB, 8192)
    assert len(decode_rate.points(4 << 30, quick=True)) == 6


def test_the_host_has_the_methods_of_the_gpu():
    path = frame.__file__.replace("frame.py", "gpu.py")
    with open(path) as file:
        source = file.read()
    for name, _ in inspect.getmembers(HostGpu, inspect.isfunction):
        if name not in ("__init__", "launch"):
            assert f"def {name}(" in source, name


@each("major", abi.ROWS)
@each("codec", abi.FORMATS)
def test_prototypes_that_only_the_report_calls_are_those_of_the_headers(major, codec):
    text = "\n".join(nvcomp_headers(major).values())
    for function, expected in MORE_PROTOTYPES.items():
        name = f"nvcompBatched{abi.FORMATS[codec]}{function}"
        found = {argument: kind.__name__ for argument, kind in prototype(text, name).items()}
        # The report has loaded the rows of the product once more: compare the types by name.
        assert [*found.items()] == [(name, kind.__name__) for name, kind in expected.items()]


@pytest.mark.parametrize("major", abi.ROWS)
def test_lookahead_of_gzip_is_the_second_word_of_its_options(major):
    text = re.sub(r"/\*.*?\*/", " ", nvcomp_headers(major)["gzip.h"], flags=re.DOTALL)
    (body,) = re.findall(r"\{([^{}]*)\}\s*nvcompBatchedGzipDecompressOpts_t;", text)
    assert [line.split()[1] for line in body.split(";")[:2]] == ["backend", "algorithm"]
    (algorithms,) = re.findall(r"\{([^{}]*)\}\s*nvcompBatchedGzipDecompressAlgorithm_t;", text)
    names = re.findall(r"NVCOMP_\w+", algorithms)
    assert "LOOKAHEAD" in names[CODECS["gzip_lookahead"][1][0]]
