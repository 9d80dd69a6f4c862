"""Waits for states that no event announces: private ones of a thread, files of a process."""

import time

from gpustore.runtime import executor


def wait_until(condition):
    """Return once the condition holds; an error if it does not within 200 s."""
    end = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def is_at_rest():
    """Return whether no pool of this process has work left, not even for cancelled reads."""
    pools = [reference() for reference in list(executor._resettables.data)]
    return all(_is_asleep(pool) for pool in pools if isinstance(pool, executor._Crew))


def _is_asleep(pool):
    if not pool._lock.acquire(timeout=1):
        return False  # A test that is stuck must not stop those behind it for ever.
    try:
        return not pool._queue and len(pool._sleepers) == pool._threads
    finally:
        pool._lock.release()
