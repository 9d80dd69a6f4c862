"""Threads that open, read, write, resize and cancel for a while: no deadlock, only typed errors."""

import collections
import random
import sys
import threading
import time

import numpy as np
import pytest

import gpustore
from gpustore.errors import (
    ConflictError,
    GpustoreError,
    MismatchError,
    NotFoundError,
    OutOfBoundsError,
)
from tests.reliability.scales import scales
from tests.reliability.worker import QUICK

pytestmark = pytest.mark.matrix

THREADS = 8
SECONDS, LONG_SECONDS = 1.5, 300
PATIENCE_S = 30
ROWS, COLUMNS = 64, 48
"""The domain that always stays; rows beyond it come and go."""

FORMS = {
    "zarr2": {"driver": "zarr2", "metadata": {"chunks": [16, 16], "compressor": {"id": "blosc"}}},
    "zarr3 sharded": {
        "driver": "zarr3",
        "schema": {
            "chunk_layout": {"read_chunk": {"shape": [8, 8]}, "write_chunk": {"shape": [32, 16]}}
        },
    },
}


class Soak:
    """What the threads share."""

    def __init__(self, url, form, seconds):
        self.spec = {**FORMS[form], "kvstore": url}
        self.context = gpustore.Context(
            {**QUICK, "cache_pool": {"total_bytes_limit": 1 << 16}, "limits": {}}
        )
        self.store = gpustore.open(
            self.spec, create=True, dtype="uint32", shape=[ROWS, COLUMNS], context=self.context
        ).result()
        self.store[...] = 1
        self.end = time.monotonic() + seconds
        self.counts = collections.Counter()
        self.errors = []

    def opened(self):
        spec = {"driver": self.spec["driver"], "kvstore": self.spec["kvstore"]}
        return gpustore.open(spec, context=self.context).result(timeout=PATIENCE_S)

    def run(self, number):
        generator = random.Random(number)
        actions = [name for name in dir(self) if name.startswith("do_")]
        store = self.store
        try:
            while time.monotonic() < self.end:
                name = generator.choice(actions)
                try:
                    store = getattr(self, name)(generator, store, number) or store
                    self.counts[name] += 1
                except (OutOfBoundsError, ConflictError, MismatchError, NotFoundError) as error:
                    self.counts[type(error).__name__] += 1
                except gpustore.CancelledError:
                    self.counts["cancelled"] += 1
        except BaseException as error:
            self.errors.append((name, error))

    def part(self, generator):
        y, x = generator.randrange(ROWS - 1), generator.randrange(COLUMNS - 1)
        return np.s_[y : y + generator.randint(1, 20), x : x + generator.randint(1, 20)]

    @staticmethod
    def check(found):
        """Elements are such as somebody wrote: one, or a round of a thread."""
        assert ((found == 1) | (found // 1000 < THREADS + 1)).all()

    def do_open(self, generator, store, number):
        return self.opened()

    def do_read(self, generator, store, number):
        y, x = self.part(generator)
        clipped = np.s_[y.start : min(y.stop, ROWS), x.start : min(x.stop, COLUMNS)]
        self.check(store[clipped].read().result(timeout=PATIENCE_S))

    def do_read_all(self, generator, store, number):
        self.check(store.read().result(timeout=PATIENCE_S))

    def do_read_many(self, generator, store, number):
        starts = [
            [generator.randrange(ROWS - 9), generator.randrange(COLUMNS - 9)] for _ in range(9)
        ]
        self.check(store.read_many(starts, [9, 9]).result(timeout=PATIENCE_S))

    def do_batch(self, generator, store, number):
        with gpustore.Batch() as batch:
            parts = [store[i : i + 5].read(batch=batch) for i in range(0, ROWS - 5, 7)]
            if generator.random() < 0.3:
                parts[0].cancel()
        for part in parts[1:]:
            self.check(part.result(timeout=PATIENCE_S))

    def do_write(self, generator, store, number):
        """Row `number` is this thread's: nobody else changes it."""
        value = 1000 * number + generator.randrange(2, 999)
        writing = store[number, : generator.randint(1, COLUMNS)]
        writing.write(value).result(timeout=PATIENCE_S)
        found = writing.read().result(timeout=PATIENCE_S)
        assert (found == value).all(), (number, value, found)

    def do_write_more(self, generator, store, number):
        rows = store[THREADS + number : ROWS : 2]
        writing = rows.write(1000 * number + 1)
        if generator.random() < 0.3:
            writing.commit.cancel()
            return
        writing.commit.result(timeout=PATIENCE_S)

    def do_cancel(self, generator, store, number):
        reads = [store.read() for _ in range(5)]
        for read in reads[: generator.randint(1, 5)]:
            read.cancel()
        for read in reads:
            error = read.exception(timeout=PATIENCE_S) if not read.cancelled() else None
            assert error is None or isinstance(error, GpustoreError), error

    def do_resize(self, generator, store, number):
        rows = ROWS + generator.randrange(0, 40)
        self.store.resize(exclusive_max=[rows, COLUMNS]).result(timeout=PATIENCE_S)

    def do_resolve(self, generator, store, number):
        return store.resolve().result(timeout=PATIENCE_S)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kvstore", ["file", "memory"])
@pytest.mark.parametrize("seconds", scales(SECONDS, LONG_SECONDS))
def test_threads_do_everything_at_once(tmp_path, form, kvstore, seconds):
    url = "memory://a/" if kvstore == "memory" else f"file://{tmp_path}/a/"
    soak = Soak(url, form, seconds)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    threads = [threading.Thread(target=soak.run, args=(i,), daemon=True) for i in range(THREADS)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=seconds + PATIENCE_S)
    finally:
        sys.setswitchinterval(interval)
    assert not any(thread.is_alive() for thread in threads)
    assert soak.errors == []
    for name in dir(soak):
        if name.startswith("do_"):
            assert soak.counts[name], name
    soak.check(soak.opened().read().result())
