"""``gcs_request_concurrency``: number of requests to Google Cloud Storage under way at a time.

JSON: ``{"limit": "shared"}`` (the default: 32, counted over the whole process) or ``{"limit": 4}``.
The value is a :class:`~gpustore.resources._request_concurrency.Permits`.
"""

from __future__ import annotations

from gpustore.resources._request_concurrency import RequestConcurrencyType

RESOURCE = RequestConcurrencyType("gcs_request_concurrency")
