"""Time of work on a device, and how it is noted; nothing on a device that is emulated."""

import statistics
import time

BUDGET_S = 0.5


def milliseconds(target, stream, call, *, rounds=9, budget_s=BUDGET_S):
    """Run what `call` queues on `stream`, and give its median time; None on an emulated device.

    One run warms up. There are at most `rounds` more, and none begins behind `budget_s` seconds.
    """
    device = target.device

    def wait():
        device.synchronize(device.record(stream))

    call()
    wait()
    if target.is_emulated:
        return None
    taken, end = [], time.monotonic() + budget_s
    while len(taken) < 2 or (len(taken) < rounds and time.monotonic() < end):
        clock = target.clock()
        clock.start()
        first = clock.mark(stream)
        call()
        last = clock.mark(stream)
        wait()
        taken.append(clock.milliseconds(last) - clock.milliseconds(first))
    return statistics.median(taken)


def rate(nbytes, taken, name="GBs"):
    """A row's GB/s of `nbytes` in so many milliseconds; nothing if these are not known."""
    return {} if taken is None else {name: round(nbytes / taken / 1e6, 2)}
