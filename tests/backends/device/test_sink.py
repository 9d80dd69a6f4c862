"""Sinks of a device: what they hold when the Future of a read resolves."""

import threading

import pytest

from gpustore.backends.selection import select_backend
from gpustore.errors import DeviceError
from gpustore.metadata.named_configuration import NamedConfiguration
from gpustore.pipelines.read import read
from gpustore.resources.device import parse_device
from gpustore.runtime.executor import Executor
from tests.kernels.execution import needs_compiler
from tests.on_device import emulated
from tests.pipelines.arrays import BYTES, make_array, put, whole

pytestmark = [needs_compiler, pytest.mark.matrix]

TIMEOUT_S = 60

ITEMS = 1 << 20
"""Elements of a chunk that fills a staging buffer, so that its task begins the submission."""


class Late(Executor):
    """Executor that tells a fan-out of its end when `is_over` is set, if it has a parent."""

    def __init__(self, limit):
        super().__init__(limit)
        self.is_over = threading.Event()

    def run_all(self, tasks, then, *, parent=None, ended=None, **options):
        def late():
            assert self.is_over.wait(TIMEOUT_S)
            ended()

        told = ended if parent is None else late
        return super().run_all(tasks, then, parent=parent, ended=told, **options)


def test_a_task_that_decodes_on_the_host_fails_after_all_is_given_back():
    """The tasks before it may end later."""
    with emulated() as device:
        backend = select_backend(parse_device(device.name))
        executor = Late(2)
        codecs = (BYTES, NamedConfiguration("crc32c", {}))
        array = make_array((ITEMS,), (ITEMS,), codecs=codecs, backend=backend, executor=executor)
        put(array, "c/0", bytes(2 * ITEMS + 4))
        device.faults.failing = {("wait", 1): False}  # When the host has decoded the chunk.
        future = read(array, whole(array))
        error = future.exception(timeout=TIMEOUT_S)
        taken = backend.buffers.taken
        executor.is_over.set()
        assert isinstance(error, DeviceError)
        assert taken == 0
        del array, executor, future, error
