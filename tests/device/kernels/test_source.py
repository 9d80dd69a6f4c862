"""Finding and joining kernel sources."""

import re

import pytest

from gpustore.device.kernels import instance, source
from tests.matrix import each


def test_every_kernel_file_is_listed_and_every_listed_file_exists():
    files = {path.stem for path in source.folder().glob("*.cu")}
    assert files == set(instance.INSTANCES)


@each("family", instance.INSTANCES)
def test_source_is_complete_in_itself(family):
    text = source.flatten(family)
    assert "#include" not in text
    assert "#pragma once" not in text
    for expression in instance.INSTANCES[family]:
        name = re.fullmatch(r"gs::(\w+)(<.*>)?", expression)[1]
        assert f" {name}(" in text


@pytest.mark.parametrize("struct", ["Dim", "Run<3>", "ByteRange"])
def test_layouts_are_asserted_where_the_struct_is(struct):
    texts = [source.flatten(family) for family in instance.INSTANCES]
    declared = [f"struct {struct.partition('<')[0]} " in text for text in texts]
    asserted = [f"static_assert(sizeof(gs::{struct})" in text for text in texts]
    assert any(declared)
    assert declared == asserted


@each("family", instance.INSTANCES)
def test_source_keeps_the_line_numbers_of_the_files(family):
    lines = source.flatten(family).split("\n")
    origin = (source.folder() / f"{family}.cu").read_text(encoding="utf-8").split("\n")
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
    for path in source.folder().glob("*.cu*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(source, "folder", lambda: tmp_path)
    before = source.flatten("fill")
    header = tmp_path / "gs_common.cuh"
    header.write_text(header.read_text() + "// a new line at the end\n")
    assert source.flatten("fill") != before


def test_source_refuses_a_foreign_header(tmp_path, monkeypatch):
    (tmp_path / "gs_common.cuh").write_text("#pragma once\n")
    (tmp_path / "fill.cu").write_text('#include "gs_common.cuh"\n#include <cstdint>\n')
    monkeypatch.setattr(source, "folder", lambda: tmp_path)
    with pytest.raises(ValueError, match=r"expected to include gs_common.*cstdint"):
        source.flatten("fill")
