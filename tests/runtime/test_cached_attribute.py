"""Attributes computed at their first use: once, the same for all threads, without a lock."""

import threading

from gpustore.runtime.cached_attribute import cached_attribute


class Counted:
    def __init__(self, both=None):
        self.computed = 0
        self.both = both

    @cached_attribute
    def value(self):
        """Say something."""
        self.computed += 1
        if self.both is not None:
            self.both.wait(100)
        return object()


def test_it_is_computed_once():
    one, other = Counted(), Counted()
    assert one.value is one.value
    assert one.value is not other.value
    assert one.computed == 1
    assert Counted.value.__doc__ == "Say something."


def test_threads_that_meet_in_it_do_not_wait_for_each_other_and_get_one_value():
    """With a lock the second would never come to the barrier."""
    counted = Counted(threading.Barrier(2))
    found = []
    threads = [threading.Thread(target=lambda: found.append(counted.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted.computed == 2
    assert found[0] is found[1]
