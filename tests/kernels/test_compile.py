"""Every kernel instance compiles with NVRTC and CuPy's options, within its budgets."""

import re

import numpy as np
import pytest

from gpustore.device.kernels import descriptor, instance, source
from tests.kernels import execution, nvrtc
from tests.matrix import each

needs_nvrtc = pytest.mark.skipif(
    nvrtc.library() is None and not execution.MUST_RUN,
    reason="no NVRTC on this machine: device code was not compiled (pip install nvidia-cuda-nvrtc)",
)

MAX_REGISTERS = 64  # Four blocks of 256 threads have the registers of a multiprocessor.


def check(family, expressions, architecture):
    resources, ptx = nvrtc.compile_source(
        source.flatten(family), expressions, architecture, source.OPTIONS
    )
    for expression, used in resources.items():
        assert used["registers"] <= MAX_REGISTERS, expression
        assert used["stack"] == used["spill_stores"] == used["spill_loads"] == 0, expression
        assert used["shared"] <= 48 * 1024, expression
    # CuPy flushes denormal numbers to zero; no kernel may contain an instruction that would.
    assert re.findall(r"\S*\.ftz\S*", ptx) == []
    assert len(resources) == len(expressions) == ptx.count(".entry ")
    return resources


@needs_nvrtc
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", instance.INSTANCES)
def test_every_instance_compiles_within_its_budgets(family):
    """For the oldest architecture; for others one of each and those that could leave the budget."""
    oldest, *others = nvrtc.ARCHITECTURES
    resources = check(family, instance.INSTANCES[family], oldest)
    large = [e for e, used in resources.items() if used["registers"] > 2 / 3 * MAX_REGISTERS]
    for architecture in others:
        check(family, list(dict.fromkeys([*_one_of_each(family), *large])), architecture)


def _one_of_each(family):
    """The first and the last instance of each kernel, and the last of the first one's types."""
    by_kernel = {}
    for expression in instance.INSTANCES[family]:
        by_kernel.setdefault(expression.partition("<")[0], []).append(expression)
    chosen = []
    for found in by_kernel.values():
        types = found[0].rpartition(",")[0]
        chosen += [found[0], [e for e in found if e.rpartition(",")[0] == types][-1], found[-1]]
    return list(dict.fromkeys(chosen))


@pytest.mark.matrix("costly", long=False)
@needs_nvrtc
@each("family", instance.INSTANCES)
def test_some_instances_compile_within_their_budgets(family):
    check(family, _one_of_each(family), "sm_90")


@needs_nvrtc
def test_a_moved_field_of_a_descriptor_stops_the_compile(monkeypatch):
    names = list(descriptor.DIM.names)
    names[1], names[2] = names[2], names[1]
    moved = np.dtype([(name, descriptor.DIM[name]) for name in names])
    monkeypatch.setattr(source, "layouts", lambda: {"Dim": moved})
    with pytest.raises(nvrtc.CompileError, match=r"gs::Dim\.shift"):
        check("fill", ["gs::fill_strided<gs::u8, 1>"], "sm_90")


@needs_nvrtc
def test_an_error_shows_the_file_and_line(tmp_path, monkeypatch):
    for path in source.folder().glob("*.cu*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with (tmp_path / "fill.cu").open("a") as file:
        file.write("int broken = nothing;\n")
    line = (tmp_path / "fill.cu").read_text().count("\n")
    monkeypatch.setattr(source, "folder", lambda: tmp_path)
    with pytest.raises(nvrtc.CompileError, match=rf"fill\.cu\({line}\).*nothing"):
        check("fill", ["gs::fill_strided<gs::u8, 1>"], "sm_90")


@needs_nvrtc
def test_a_flushed_conversion_is_seen():
    text = "template <int N> __global__ void k(float* out, double value) { *out = (float)value; }"
    _, ptx = nvrtc.compile_source(text, ["k<1>"], "sm_90", source.OPTIONS)
    assert ".ftz" in ptx
