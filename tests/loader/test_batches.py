"""Batches made ahead by a thread."""

from gpustore.loader.batches import BatchesAhead


def test_closing_wakes_a_thread_that_waits_for_a_batch():
    batches = BatchesAhead(iter([{"n": 0}, {"n": 1}, {"n": 2}]), 1)
    assert next(batches) == {"n": 0}
    batches.close()
    # A thread that saw the iterator open and waits now, as the batch was dropped before it woke.
    assert batches._ready.get(timeout=60) is not None
    assert list(batches) == []
