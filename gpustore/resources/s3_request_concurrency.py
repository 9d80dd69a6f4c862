"""``s3_request_concurrency``: number of requests of the s3 kvstore under way at a time.

JSON: ``{"limit": "shared"}`` (the default: 32, counted over the whole process) or ``{"limit": 4}``.
The value is a :class:`~gpustore.resources._request_concurrency.Permits`.
"""

from __future__ import annotations

from gpustore.resources._request_concurrency import RequestConcurrencyType

RESOURCE = RequestConcurrencyType("s3_request_concurrency")
