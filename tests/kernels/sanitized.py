"""Run pytest with kernels and native core compiled for a sanitizer, which Python must preload.

``python -m tests.kernels.sanitized address -q tests/kernels``; or ``thread``, or ``host-thread``
(``host_build.py``).
"""

import os
import sys
from pathlib import Path

from tests.emulator import host_build


def environment(sanitizer):
    """Variables with which Python runs such kernels."""
    return {
        "KERNEL_SANITIZER": sanitizer,
        "LD_PRELOAD": host_build.preload(sanitizer),
        "PYTHONMALLOC": "malloc",  # Python's own allocator has no bounds that a sanitizer knows.
        # Tests ask for more memory than there is, and expect NumPy to say so.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "TSAN_OPTIONS": "halt_on_error=1:allocator_may_return_null=1:die_after_fork=0:"
        f"suppressions={Path(__file__).with_name('thread_sanitizer.supp')}",
    }


def main():
    sanitizer, *arguments = sys.argv[1:]
    os.environ |= environment(sanitizer)
    # A report goes to the standard error itself, which pytest must not keep for later.
    os.execv(sys.executable, [sys.executable, "-m", "pytest", "--capture=sys", *arguments])


if __name__ == "__main__":
    main()
