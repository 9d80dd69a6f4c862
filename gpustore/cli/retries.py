"""Retries of requests in commands that only read: few, because a person waits for them."""

from __future__ import annotations

import gpustore

_MAX_RETRIES = 4
"""About seven seconds of pauses. ``gpustore copy`` keeps the library's default."""


def few_retries() -> gpustore.Context:
    """Make a context with few retries for http, S3 and Google Cloud Storage."""
    retries = {"max_retries": _MAX_RETRIES}
    return gpustore.Context({f"{kind}_request_retries": retries for kind in ("http", "s3", "gcs")})
