"""Finding and joining kernel sources."""

import re

import numpy as np
import pytest

from gpustore.backends import _kernels


def test_every_kernel_file_is_listed_and_every_listed_file_exists():
    files = {path.stem for path in _kernels.folder().glob("*.cu")}
    assert files == set(_kernels.INSTANCES)


def test_instances_are_few_and_unique():
    expressions = [e for family in _kernels.INSTANCES.values() for e in family]
    assert len(set(expressions)) == len(expressions) <= 400


@pytest.mark.parametrize("family", _kernels.INSTANCES)
def test_source_is_complete_in_itself(family):
    text = _kernels.source(family)
    assert "#include" not in text
    assert "#pragma once" not in text
    for expression in _kernels.INSTANCES[family]:
        name = re.fullmatch(r"gs::(\w+)<.*>", expression)[1]
        assert f" {name}(" in text
    assert "static_assert(__builtin_offsetof(gs::Dim, dst_stride) == 24" in text


@pytest.mark.parametrize("family", _kernels.INSTANCES)
def test_source_keeps_the_line_numbers_of_the_files(family):
    lines = _kernels.source(family).split("\n")
    origin = (_kernels.folder() / f"{family}.cu").read_text(encoding="utf-8").split("\n")
    directive = re.compile(r'#line (\d+) "(.*)"')
    place = None
    compared = 0
    for line in lines:
        if match := directive.fullmatch(line):
            place = (match[2], int(match[1]))
            continue
        if place[0] == f"{family}.cu" and line:
            assert line == origin[place[1] - 1]
            compared += 1
        place = (place[0], place[1] + 1)
    assert compared > 20


def test_source_reads_the_file_anew(tmp_path, monkeypatch):
    for path in _kernels.folder().iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(_kernels, "folder", lambda: tmp_path)
    before = _kernels.source("fill")
    header = tmp_path / "gs_common.cuh"
    header.write_text(header.read_text() + "// a new line at the end\n")
    assert _kernels.source("fill") != before


def test_source_refuses_a_foreign_header(tmp_path, monkeypatch):
    (tmp_path / "gs_common.cuh").write_text("#pragma once\n")
    (tmp_path / "fill.cu").write_text('#include "gs_common.cuh"\n#include <cstdint>\n')
    monkeypatch.setattr(_kernels, "folder", lambda: tmp_path)
    with pytest.raises(ValueError, match=r"expected exactly one include.*cstdint"):
        _kernels.source("fill")


def test_division_is_exact():
    rng = np.random.default_rng(0)
    extents = [2, 3, 5, 7, 255, 256, 257, 641, 65535, 65536, 65537, 2**30 - 1, 2**30, 2**31 - 1]
    for extent in [*extents, *(int(e) for e in rng.integers(2, 2**31, 200))]:
        magic, shift = _kernels.division(extent)
        assert 0 < magic < 2**32
        assert 0 <= shift < 32
        multiples = np.arange(1, 50, dtype=np.uint64) * np.uint64(extent)
        edges = np.concatenate([multiples - 1, multiples, multiples + 1])
        random = rng.integers(0, 2**31, 200, dtype=np.uint64)
        last = np.array([0, 2**31 - 1], np.uint64)
        dividend = np.concatenate([edges[edges < 2**31], random, last])
        got = (dividend * np.uint64(magic) >> np.uint64(32)) >> np.uint64(shift)
        assert (got == dividend // np.uint64(extent)).all()
