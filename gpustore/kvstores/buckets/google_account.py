"""Tokens for the account with which somebody has signed in (``gcloud auth application-default``).

obstore would ask for them too, but it takes as much memory for an answer as its head announces, and
what it sends encrypted cannot be looked at.

Source: RFC 6749 section 6 (refreshing an access token).
"""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from gpustore.errors import StoreIOError
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import HttpRequest, HttpResponse, Origin
from gpustore.resources._request_concurrency import Permits
from gpustore.resources._retries import Retries
from gpustore.resources.http_request_timeouts import Timeouts
from gpustore.strict_json.parsing import quote

TOKENS: Final = Origin("https", "oauth2.googleapis.com", 443)
_NBYTES: Final = 1 << 20
_ERROR: Final = re.compile(rb'"error"\s*:\s*"([a-z_]{1,64})"')
_TOKEN: Final = re.compile(r"[!-~]{1,16384}")
_SECRETS: Final = ("client_id", "client_secret", "refresh_token")


class GoogleAccount:
    """An account, as a file of the type ``authorized_user`` describes it.

    Parameters
    ----------
    path : Path
        The file, which is read again for each token.
    retries : Retries
    timeouts : Timeouts
    """

    def __init__(self, path: Path, retries: Retries, timeouts: Timeouts) -> None:
        self._path = path
        self._client = HttpClient(
            TOKENS, permits=Permits(1), retries=retries, timeouts=timeouts, explain=_explain
        )

    def token(self) -> dict[str, Any]:
        """A new token, in obstore's form.

        Raises
        ------
        StoreIOError
            If Google does not give one, or the file does not say enough.
        """
        form = urlencode({"grant_type": "refresh_token", **self._secrets()}).encode()
        fields = {"Content-Type": "application/x-www-form-urlencoded"}
        response = self._client.send_one(HttpRequest("POST", "/token", fields, form))
        if response.status != 200:
            refusal = self._client.refusal(response)
            raise refusal.prefixed(str(TOKENS))
        try:
            found = json.loads(bytes(response.body))
            token, lasts = found["access_token"], timedelta(seconds=found["expires_in"])
            ends = datetime.now(UTC) + lasts
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            token = ""
        if not isinstance(token, str) or not _TOKEN.fullmatch(token):
            raise StoreIOError(f"{TOKENS}: the answer is not a token", status="UNKNOWN")
        return {"token": token, "expires_at": ends}

    def _secrets(self) -> dict[str, str]:
        try:
            with self._path.open("rb") as file:
                members = json.loads(file.read(_NBYTES))
            found = {name: members[name] for name in _SECRETS}
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            found = {"": None}
        if not all(isinstance(value, str) for value in found.values()):
            raise StoreIOError(
                f"{quote(str(self._path))} is not a file with {', '.join(_SECRETS)}",
                status="FAILED_PRECONDITION",
            ) from None
        return found


def _explain(response: HttpResponse) -> str:
    """The code of an error."""
    match = _ERROR.search(response.body)
    return match[1].decode() if match else ""
