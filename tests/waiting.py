"""Waits for states that no event announces: private ones of a thread, files of a process."""

import time


def wait_until(condition):
    """Return once the condition holds; an error if it does not within 200 s."""
    end = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)
