"""``file_io_retries``: repetition of operations on local files after errors that may pass.

JSON: ``{"max_retries": 0, "initial_delay": "1s", "max_delay": "32s"}`` (the defaults). The delay
doubles with each retry.
"""

from __future__ import annotations

from gpustore.resources._retries import RetriesType

RESOURCE = RetriesType("file_io_retries", max_retries=0)
