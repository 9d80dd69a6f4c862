"""``file_io_concurrency``: threads that read and write local files.

JSON: ``{"limit": "shared"}`` (the default) or ``{"limit": 4}``. The value is an
:class:`~gpustore.runtime.executor.Executor`.
"""

from __future__ import annotations

from gpustore.resources._concurrency import ConcurrencyType

RESOURCE = ConcurrencyType("file_io_concurrency")
