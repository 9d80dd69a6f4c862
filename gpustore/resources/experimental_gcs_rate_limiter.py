"""``experimental_gcs_rate_limiter``: rate of requests to Cloud Storage, which has no limit here."""

from __future__ import annotations

from gpustore.resources._rate_limiter import RateLimiterType

RESOURCE = RateLimiterType("experimental_gcs_rate_limiter")
