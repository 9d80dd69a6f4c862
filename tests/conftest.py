"""Settings that hold for every test."""

import gc
import itertools
import os
import sys

import pytest
from _pytest.doctest import DoctestModule

from gpustore.backends.native import library
from gpustore.runtime.cores import cores
from tests import gpu
from tests.emulator import host_build
from tests.emulator.device import EmulatedDevice
from tests.emulator.queue import ORDERS
from tests.waiting import is_at_rest, wait_until

pytest_plugins = ["tests.matrix", "tests.collection_order"]

OURS = ("gpustore", "tests", "benchmarks", "docs")

_numbers = itertools.count()


@pytest.fixture
def tmp_path(tmp_path_factory):
    """A folder of one test, which stays until all tests have ended.

    Pytest's own is removed behind each test. On a file system without a journal whoever makes a
    file passes over all that were removed in the last minutes: a tenth of what the tests took.
    """
    return tmp_path_factory.mktemp(f"{os.getpid()}-{next(_numbers)}", numbered=False)


@pytest.fixture(autouse=True, scope="session")
def _own_environment():
    """Variables with which a developer tunes gpustore must not change what the tests see.

    But ``GPUSTORE_NATIVE=0`` runs them without the native core.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("GPUSTORE_") and name != "GPUSTORE_NATIVE":
                patch.delenv(name)
        yield


@pytest.fixture(autouse=True, scope="session")
def _sanitized_core():
    """Under a sanitizer the native core is one that was compiled for it."""
    if not host_build.SANITIZER:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "PATH", host_build.build_core())
        library._load.cache_clear()
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """All cores for the whole suite, while what is chosen by path runs in this process; limits.

    Both are here and not in pyproject.toml: a machine that only runs the tests of a GPU need have
    neither pytest-xdist nor pytest-timeout.
    """
    plugins, option = config.pluginmanager, config.option
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS
    is_worker = hasattr(config, "workerinput")
    if plugins.hasplugin("xdist") and option.numprocesses is None and whole and not is_worker:
        # Tests that wait for processes or servers leave a core idle.
        option.numprocesses = cores() + 1
    if plugins.hasplugin("xdist") and option.numprocesses and option.dist == "no":
        option.dist = "worksteal"  # No process ends long after the others have nothing to do.
    if plugins.hasplugin("timeout") and option.timeout is None:
        option.timeout = 300  # Of a busy machine; a test that hangs is the only one that takes it.


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """``pytest -m gpu`` passes over files that import what is not installed, and names it."""
    report = yield
    call = getattr(report, "call", None)
    if collector.config.option.markexpr == "gpu" and report.failed and call is not None:
        missing = call.excinfo.value.__cause__ or call.excinfo.value
        name = getattr(missing, "name", None) or "gpustore"
        if isinstance(missing, ModuleNotFoundError) and name.split(".")[0] not in OURS:
            report.outcome = "skipped"
            report.longrepr = (str(collector.path), 0, f"Skipped: {name} is not installed")
            for half, module in list(sys.modules.items()):  # pytest leaves it to other importers.
                if getattr(module, "__file__", None) == str(collector.path):
                    del sys.modules[half]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Only the package has doctests: looking for them in all tests takes two seconds a process."""
    found = yield
    return [collector for collector in found if not isinstance(collector, DoctestModule)]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """What describes the tests stays to the end: no search for garbage need look at it again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


def pytest_collection_modifyitems(config, items):
    """Leave out what takes minutes, unless it was asked for: ``pytest -m long``."""
    unstable = [item.nodeid for item in items if " at 0x" in item.nodeid]
    if unstable:
        raise pytest.UsageError(f"identifiers differ from process to process: {unstable}")
    if "long" in config.option.markexpr:
        return
    left_out = [item for item in items if item.get_closest_marker("long")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and not gpu.answers():
        pytest.skip("no CUDA device answers")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """A test ends when its work has: what it has cancelled counts, and holds files, till then.

    What is left of a file's tests is what its libraries keep: collections pass over it from now on.
    """
    try:
        return (yield)
    finally:
        wait_until(is_at_rest)
        if nextitem is None or nextitem.path != item.path:
            gc.collect()
            gc.freeze()


_passed_on_gpu = []


def pytest_runtest_logreport(report):
    if report.when == "call" and report.passed and "gpu" in report.keywords:
        _passed_on_gpu.append(report.nodeid)


def pytest_sessionfinish(session):
    """``pytest -m gpu`` that ran nothing has shown nothing."""
    if hasattr(session.config, "workerinput") or session.config.option.collectonly:
        return  # Of several processes the first one knows what all of them ran.
    if session.config.option.markexpr == "gpu" and not _passed_on_gpu and not session.exitstatus:
        print("\nno test ran on a GPU")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(params=[*ORDERS, pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """A device: emulated, with each order of its streams, and real."""
    if request.param == "cuda":
        from gpustore.backends.cuda import CudaDevice  # CuPy need not be there.

        yield CudaDevice(0)
        return
    emulated = EmulatedDevice(request.param, seed=1)
    yield emulated
    emulated.close()
