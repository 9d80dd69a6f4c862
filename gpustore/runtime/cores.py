"""Number of cores: :func:`cores`."""

import os


def cores() -> int:
    """Return the number of cores this process may run on, which others may share.

    A batch system, a container or ``taskset`` may allow fewer than the machine has.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
