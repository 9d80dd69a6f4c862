"""``http_request_retries``: repetition of requests of the http kvstore after errors that may pass.

JSON: ``{"max_retries": 32, "initial_delay": "1s", "max_delay": "32s"}`` (the defaults). A pause is
of random length, at most the delay, which doubles with each retry.
"""

from __future__ import annotations

from gpustore.resources._retries import RetriesType

RESOURCE = RetriesType("http_request_retries", max_retries=32)
