"""Files of this process that are open, but for those of servers and threads of other tests."""

import os
from contextlib import suppress


def open_files(folder):
    """Return, by descriptor, what is open of a folder and of all in it, in sorted order."""
    folder = os.path.realpath(folder)
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # The descriptor of the list, or another thread's.
            path = os.readlink(f"/proc/self/fd/{name}")
            if path == folder or path.startswith((f"{folder}/", f"{folder} (")):
                found.append((int(name), path))
    return sorted(found)
