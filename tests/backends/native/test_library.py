"""The native core is loaded where it fits this package, and otherwise says why not."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import gpustore
from gpustore.backends.native import (
    blocks,
    copy_runs,
    fetched_files,
    headers,
    library,
    short_files,
)
from tests.emulator import host_build

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "kernels" / "host").iterdir())


@pytest.fixture
def other(monkeypatch, tmp_path):
    """Path of a library that is loaded in place of the core."""
    path = tmp_path / "core.native.so"
    # What asks for the core meanwhile, threads of other tests included, must not remember that one.
    modules = blocks, copy_runs, fetched_files, short_files
    users = headers.header_reader, *(module._core for module in modules)
    monkeypatch.setattr(library, "PATH", path)
    library._load.cache_clear()
    yield path
    for remembered in (library._load, *users):
        remembered.cache_clear()


@pytest.fixture
def core():
    """The core, which must be there where the kernels must run."""
    loaded = library.library()
    if loaded is None and not os.environ.get("KERNELS_MUST_RUN"):
        pytest.skip(library.why_not())
    assert loaded is not None, library.why_not()
    return loaded


def compile_library(path, code):
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    command = ["c++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
    subprocess.run(command, input=code, text=True, check=True)


def test_the_core_of_a_checkout_is_loaded_and_described(core):
    assert core.gpustore_core_abi() == library.ABI
    state = gpustore.native_core()
    assert state.in_use
    assert state.reason is None
    assert state.decoders[0] == "raw"
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: library.library(), range(100)))
    assert {each is core for each in found} == {True}


def test_under_a_sanitizer_the_core_is_one_that_was_compiled_for_it(core):
    del core
    if host_build.SANITIZER:
        symbol = b"__asan_init" if host_build.SANITIZER == "address" else b"__tsan_init"
        assert symbol in library.PATH.read_bytes()


def test_the_core_is_not_older_than_its_sources(core):
    """An editable install compiles it once: after a change, `python hatch_build.py` does."""
    del core
    if library.PATH.is_relative_to(ROOT):  # and not compiled for a sanitizer a moment ago
        newest = max(SOURCES, key=lambda path: path.stat().st_mtime)
        assert library.PATH.stat().st_mtime >= newest.stat().st_mtime, (
            f"{newest} is newer: run `python hatch_build.py`"
        )


def test_the_core_exports_its_own_functions_only(core):
    del core
    if shutil.which("nm") is None or sys.platform != "linux" or host_build.SANITIZER:
        pytest.skip("no nm, or symbols of a sanitizer among them")
    command = ["nm", "-D", "--defined-only", "--format=posix", str(library.PATH)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    symbols = [line.split()[:2] for line in listed.splitlines()]
    # Weak ones are templates of the standard library, which every C++ library has.
    strong = [name for name, kind in symbols if kind not in "WVwvu"]
    assert "gpustore_core_abi" in strong
    assert [name for name in strong if not name.startswith("gpustore_core_")] == []
    assert [
        n for n, kind in symbols if kind in "WVwvu" and not re.match(r"_ZN?[A-Z]*K?St", n)
    ] == []


def test_the_core_needs_no_symbol_of_python(core):
    del core
    if shutil.which("nm") is None or sys.platform != "linux":
        pytest.skip("no nm")
    command = ["nm", "-D", "--undefined-only", "--format=posix", str(library.PATH)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert not re.search(r"^_?Py", listed, re.MULTILINE)


@pytest.mark.matrix("costly")
def test_an_environment_variable_turns_it_off():
    code = "import gpustore; print(gpustore.native_core())"
    environment = {**os.environ, "GPUSTORE_NATIVE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100
    )
    expected = gpustore.NativeCore(in_use=False, reason="GPUSTORE_NATIVE is 0", decoders=())
    assert done.stdout.strip() == repr(expected)


def test_other_pythons_and_processors_go_without_it(other, monkeypatch):
    del other
    monkeypatch.setattr(sys, "byteorder", "big")
    assert library.why_not() == "it needs a little-endian processor"
    library._load.cache_clear()
    monkeypatch.setattr(sys.implementation, "name", "pypy")
    assert library.why_not() == "it needs CPython"


def test_a_package_without_the_core_says_how_that_came(other):
    assert library.library() is None
    state = gpustore.native_core()
    assert not state.in_use
    assert state.decoders == ()
    assert state.reason == (
        "it was not compiled at installation: no C++ compiler, or GPUSTORE_NATIVE=0"
    )


def test_a_file_that_is_no_library_is_not_loaded(other):
    other.write_bytes(b"no library")
    assert library.library() is None
    assert re.match(f"it cannot be loaded: {other}: ", library.why_not())


def test_a_library_without_the_function_is_not_used(other):
    compile_library(other, 'extern "C" int something() { return 0; }')
    assert library.library() is None
    assert "gpustore_core_abi" in library.why_not()


def test_a_core_of_another_version_is_not_used(other):
    compile_library(other, f'extern "C" long gpustore_core_abi() {{ return {library.ABI + 8}; }}')
    assert library.library() is None
    assert library.why_not() == (
        f"{other} was built from another version of gpustore: install it again"
    )


@pytest.mark.matrix("costly")
def test_arrays_are_read_and_written_without_the_core(other, tmp_path):
    store = gpustore.open(
        f"file://{tmp_path}/a.zarr|zarr3:", create=True, dtype="uint16", shape=[50, 40]
    ).result()
    store[10:20] = 7
    assert int(store[5:15].read().result().sum()) == 5 * 40 * 7
    assert isinstance(library.why_not(), str)
