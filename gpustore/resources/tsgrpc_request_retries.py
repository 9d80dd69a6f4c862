"""``tsgrpc_request_retries``: repetition of requests of a kvstore that gpustore lacks.

JSON: ``{"max_retries": 32, "initial_delay": "1s", "max_delay": "32s"}`` (the defaults). Contexts
that define it are taken.
"""

from __future__ import annotations

from gpustore.resources._retries import RetriesType

RESOURCE = RetriesType("tsgrpc_request_retries", max_retries=32)
