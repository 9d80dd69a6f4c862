"""``experimental_s3_rate_limiter``: rate of requests to S3, which has no limit here."""

from __future__ import annotations

from gpustore.resources._rate_limiter import RateLimiterType

RESOURCE = RateLimiterType("experimental_s3_rate_limiter")
