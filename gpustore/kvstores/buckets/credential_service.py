"""Requests to credential services, sent by :class:`~gpustore.kvstores.http.client.HttpClient`.

botocore and google-auth make the requests and read the responses. They are sent here, so that
bodies and waits are bounded, no redirect is followed, and a cancelled task ends.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import astuple, replace
from typing import Final, TypeVar
from urllib.parse import urlsplit

from gpustore import registry
from gpustore.errors import GpustoreError, StoreIOError, UnsupportedError
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import HttpRequest, HttpResponse, Origin
from gpustore.resources._request_concurrency import Permits
from gpustore.resources._retries import Retries
from gpustore.resources.http_request_timeouts import Timeouts

T = TypeVar("T")

_NEAR: Final = Timeouts(connect_s=2.0, idle_s=5.0, total_s=15.0, reach_s=5.0)
"""Upper bounds for services without TLS, which are on the same machine or network."""

_NEAR_RETRIES: Final = 3
_CODE: Final = re.compile(
    rb'<Code>([\w.]{1,64})</Code>|"(?:error|status|__type|code|Code)"\s*:\s*"([\w.#]{1,64})"'
)
_OWN: Final = frozenset(
    {"accept-encoding", "connection", "content-length", "expect", "host", "user-agent"}
)
"""Header fields that the client sets itself."""


class CredentialServices:
    """Credential services of one opened store.

    Parameters
    ----------
    retries : Retries
        Retries of the store's own requests.
    timeouts : Timeouts
        Timeouts of the store's own requests, in seconds.
    keyless : str
        Setting that opens a public bucket, named in errors.
    """

    def __init__(self, retries: Retries, timeouts: Timeouts, keyless: str) -> None:
        self._retries = retries
        self._timeouts = timeouts
        self._keyless = keyless
        self._refused = threading.local()  # Its error: the last refusal of a service.

    def send(
        self, method: str, url: str, headers: Mapping[str, str | bytes], body: bytes | str | None
    ) -> HttpResponse:
        """Send a request and return its response, with at most 64 KiB of the body.

        Raises
        ------
        StoreIOError
            If there is no response, or it is a redirect.
        MetadataError
            If `url` is malformed.
        """
        parts = urlsplit(url)
        origin = Origin.parse(parts.scheme, parts.netloc)
        timeouts, retries = self._timeouts, self._retries
        if origin.scheme == "http":
            limits = zip(astuple(_NEAR), astuple(timeouts), strict=True)
            timeouts = Timeouts(*map(min, limits))
            retries = replace(retries, max_retries=min(retries.max_retries, _NEAR_RETRIES))
        client = HttpClient(
            origin, permits=Permits(1), retries=retries, timeouts=timeouts, explain=_code_of
        )
        fields = {
            name: value.decode("latin-1") if isinstance(value, bytes) else value
            for name, value in headers.items()
            if name.lower() not in _OWN
        }
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        sent = body.encode() if isinstance(body, str) else body or b""
        try:
            response = client.send_one(HttpRequest(method, target, fields, sent))
            if 300 <= response.status < 400:
                raise client.status_error(response)
        except StoreIOError as error:
            raise error.prefixed(str(origin)) from None
        if not 200 <= response.status < 300:
            self._refused.error = client.status_error(response).prefixed(str(origin))
        return response

    def require(self, package: str) -> None:
        """Raise UnsupportedError unless the library `package` is installed."""
        if not registry.is_installed(package):
            raise UnsupportedError(
                f"credentials are found by the package {package}: pip install 'gpustore[cloud]'; "
                f"for a public bucket: {self._keyless}"
            )

    def ask(self, package: str, function: Callable[[], T]) -> T:
        """Call `function`, which uses the library `package`, and replace the errors it raises.

        The texts of the library's errors are dropped, since they may hold secrets.

        Raises
        ------
        StoreIOError
            For any error, with the last refusal of a service, or the name of the error's class.
        """
        self._refused.error = None
        try:
            return function()
        except GpustoreError as error:
            why = error.text
        except Exception as error:
            refused = self._refused.error
            why = refused.text if refused else f"{package} reports {type(error).__name__}"
        raise StoreIOError(
            f"there are no credentials, or they cannot be fetched: {why}; for a public bucket: "
            f"{self._keyless}",
            status="PERMISSION_DENIED",
        )


def _code_of(response: HttpResponse) -> str:
    """Return the code in an XML or JSON error response; empty if there is none."""
    match = _CODE.search(response.body)
    return (match[1] or match[2]).decode() if match else ""
