"""``data_copy_concurrency``: threads that decode, encode and copy.

JSON: ``{"limit": "shared"}`` (the default) or ``{"limit": 4}``. The value is an
:class:`~gpustore.runtime.executor.Executor`.
"""

from __future__ import annotations

from gpustore.resources._concurrency import ConcurrencyType

RESOURCE = ConcurrencyType("data_copy_concurrency")
