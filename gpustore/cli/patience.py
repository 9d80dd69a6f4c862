"""How often commands that only look ask a server again: a person waits for them."""

from __future__ import annotations

import gpustore

_MAX_RETRIES = 4
"""About seven seconds of pauses. A copy goes on for as long as the library does."""


def looking() -> gpustore.Context:
    """The context of a command that only looks."""
    retries = {"max_retries": _MAX_RETRIES}
    return gpustore.Context({f"{kind}_request_retries": retries for kind in ("http", "s3", "gcs")})
