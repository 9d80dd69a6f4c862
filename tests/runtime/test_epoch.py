"""Number of forks that led to a process."""

import os

from gpustore.runtime.epoch import epoch


def test_a_child_is_in_the_next_epoch():
    before = epoch()
    child = os.fork()
    if not child:
        os._exit(epoch() - before)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert epoch() == before
