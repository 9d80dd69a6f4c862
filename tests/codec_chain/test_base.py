"""Helpers of all codecs."""

import itertools
import sys
import threading
import time

from gpustore.codec_chain.base import deliver
from tests.waiting import wait_until


def test_other_threads_run_while_decoded_bytes_are_copied():
    """One of them may wait for Ctrl-C: a copy of 256 MiB into new memory takes half a second."""
    decoded, turns = bytes(64 << 20), itertools.count()
    turn, is_over = 0, threading.Event()

    def run():
        nonlocal turn
        while not is_over.is_set():
            turn = next(turns)
            time.sleep(0)

    def runs_meanwhile():
        out = memoryview(bytearray(len(decoded)))
        before = turn
        deliver(decoded, len(decoded), exact=True, out=out)
        return turn > before

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=run)
    sys.setswitchinterval(1000)  # No thread loses the interpreter but by its own will.
    try:
        thread.start()
        wait_until(lambda: turn > 1)
        # The system need not wake the other thread in time for each copy.
        assert any(runs_meanwhile() for _ in range(100))
    finally:
        sys.setswitchinterval(interval)
        is_over.set()
        thread.join()
