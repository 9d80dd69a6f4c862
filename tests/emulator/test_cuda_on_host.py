"""The shim notices planted mistakes: as an error of the launch, as results that depend on the
order of threads, or through a sanitizer; and nothing where there is no mistake.
"""

from pathlib import Path

import numpy as np
import pytest

from tests.emulator import host_build
from tests.kernels import execution, sanitized
from tests.matrix import each

pytestmark = execution.needs_compiler

KERNELS = {
    "reverse": (
        "NONE",
        "GLOBAL",
        "SHARED",
        "BARRIER",
        "EARLY",
        "DIVERGENT",
        "UNINITIALISED",
        "TOO_MUCH",
    ),
    "running_sum": ("NONE", "WARP"),
    "exchange": ("NONE", "MASK", "LANE", "ENDED"),
    "arithmetic": ("NONE", "MISALIGNED", "SHIFT"),
    "add": ("NONE", "BLOCKS"),
}
EXPRESSIONS = [f"{kernel}<{bug}>" for kernel, bugs in KERNELS.items() for bug in bugs]


def module():
    source = (Path(__file__).parent / "planted.cu").read_text(encoding="utf-8")
    return host_build.HostModule("planted", f'#line 1 "planted.cu"\n{source}', EXPRESSIONS)


@pytest.fixture(scope="module")
def planted():
    return module()


def launch(planted, expression, order="forward", blocks=None, threads=256):
    data = np.random.default_rng(0).integers(0, 1 << 32, 256, np.uint32)
    out = np.zeros(256, np.uint32)
    blocks = blocks or (8 if expression.startswith("add") else 1)
    arguments = [np.uint64(array.__array_interface__["data"][0]) for array in (data, out)]
    planted.launch(expression, blocks, arguments, order=order, threads=threads)
    return data, out


def expected(kernel, data):
    if kernel == "reverse":
        return data[::-1]
    if kernel == "running_sum":
        return np.cumsum(data.reshape(8, 32), axis=1, dtype=np.uint32).ravel()
    if kernel == "exchange":
        return data.reshape(-1, 2)[:, ::-1].ravel()
    if kernel == "arithmetic":
        return data << 3
    return np.concatenate(([np.bitwise_xor.reduce(data[:8])], np.zeros(255, np.uint32)))


@pytest.mark.parametrize("order", host_build.ORDERS)
@pytest.mark.parametrize("kernel", KERNELS)
def test_right_kernels_are_right_in_every_order(planted, kernel, order):
    data, out = launch(planted, f"{kernel}<NONE>", order)
    assert (out == expected(kernel, data)).all()


@each("order", host_build.ORDERS)
@each(
    ("expression", "message"),
    [
        ("reverse<EARLY>", "255 threads wait at the barrier of line 28, 1 have ended"),
        ("reverse<DIVERGENT>", "threads wait at different barriers, lines 2[35] and 2[35]"),
        ("exchange<MASK>", "lanes meet in different warp operations, lines "),
        ("exchange<LANE>", "the shuffle of line 57 reads lane 20, which is not in its mask"),
        ("exchange<ENDED>", "line 59 waits for lane 5, which has ended"),
        ("reverse<TOO_MUCH>", "50176 bytes of static shared memory, CUDA has 49152"),
    ],
)
def test_what_cuda_forbids_is_an_error_of_the_launch(planted, expression, message, order):
    with pytest.raises(
        host_build.LaunchError, match=rf"block \(0, 0, 0\), thread \d+: .*{message}"
    ):
        launch(planted, expression, order)
    # The next launch is not affected.
    data, out = launch(planted, "reverse<NONE>", order)
    assert (out == data[::-1]).all()


@pytest.mark.parametrize("expression", ["reverse<BARRIER>", "running_sum<WARP>"])
def test_a_missing_barrier_shows_as_a_wrong_result(planted, expression):
    wrong = []
    for order in host_build.ORDERS:
        data, out = launch(planted, expression, order)
        wrong.append((out != expected(expression.partition("<")[0], data)).any())
    assert any(wrong)


def test_shared_memory_that_nobody_wrote_differs_between_orders(planted):
    found = {
        int(launch(planted, "reverse<UNINITIALISED>", order)[1][248]) for order in host_build.ORDERS
    }
    assert found == {0xA5A5A5A5, 0x5A5A5A5A, 0xFFFFFFFF}


@pytest.mark.parametrize(("blocks", "threads"), [(0, 256), (1 << 31, 256), (1, 1025)])
def test_an_impossible_grid_is_an_error_of_the_launch(planted, blocks, threads):
    arguments = [np.uint64(0), np.uint64(0)]
    with pytest.raises(host_build.LaunchError, match="invalid launch configuration"):
        planted.launch("reverse<NONE>", blocks, arguments, threads=threads)


def test_arguments_of_the_wrong_size_are_noticed(planted):
    with pytest.raises(AssertionError, match=r"reverse<NONE> takes \[8, 8\] bytes, got \[8, 4\]"):
        planted.launch("reverse<NONE>", 1, [np.uint64(0), np.uint32(0)])


RIGHT = ", ".join(f"{kernel}<NONE>" for kernel in KERNELS)


PLANTED = {
    "address": {
        "reverse<GLOBAL>": "heap-buffer-overflow",
        "reverse<SHARED>": "use-after-poison",
        "arithmetic<MISALIGNED>": "misaligned address",
        "arithmetic<SHIFT>": "shift exponent 32 is too large",
        RIGHT: None,
    },
    "thread": {
        "reverse<BARRIER>": "data race",
        "running_sum<WARP>": "data race",
        "add<BLOCKS>": "data race",
        RIGHT: None,
    },
    "host-thread": {RIGHT: None, "add<BLOCKS>": None},  # Its CUDA threads are one thread.
}


@pytest.mark.long
@pytest.mark.parametrize("sanitizer", PLANTED)
def test_sanitizers_report_what_is_planted_and_nothing_else(sanitizer, tmp_path):
    # Behind a launch that leaves its threads to the next one. Forwards each thread would do
    # the same in every block: a race between blocks would be hidden if they shared threads.
    cases = [
        (*case, order) for case in PLANTED[sanitizer].items() for order in ("forward", "shuffled")
    ]
    pieces = [
        f"for expression in ['reverse<NONE>', *{expressions.split(', ')!r}]:\n"
        f"    t.launch(module, expression, {order!r})\n"
        for expressions, _, order in cases
    ]
    setup = "from tests.emulator import test_cuda_on_host as t\nmodule = t.module()"
    found = sanitized.run_each(sanitizer, setup, pieces, tmp_path)
    for (status, printed), (_, report, _) in zip(found, cases, strict=True):
        if report is None:
            assert status == 0, printed
            assert "Sanitizer" not in printed
        else:
            assert status != 0
            assert report in printed
            assert "planted.cu:" in printed
