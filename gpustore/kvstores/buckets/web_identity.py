"""Credentials of Amazon for who has a token of somebody else, as pods of Kubernetes have.

obstore would ask for them too, but it takes as much memory for an answer as its head announces, and
what it sends encrypted cannot be looked at.

Source: AWS Security Token Service API reference, AssumeRoleWithWebIdentity.
"""

from __future__ import annotations

import html
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from gpustore.errors import MetadataError, StoreIOError
from gpustore.kvstores.buckets.bucket import code_of
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import HttpRequest, Origin
from gpustore.resources._request_concurrency import Permits
from gpustore.resources._retries import Retries
from gpustore.resources.http_request_timeouts import Timeouts
from gpustore.strict_json.parsing import quote

_NBYTES = 1 << 16


class WebIdentity:
    """A role that the token in a file allows to take on, as the environment says.

    ``AWS_WEB_IDENTITY_TOKEN_FILE``, ``AWS_ROLE_ARN``, ``AWS_ROLE_SESSION_NAME`` and
    ``AWS_ENDPOINT_URL_STS`` are read when it is made, the file for each request.

    Parameters
    ----------
    region : str
        Whose service is asked, unless the environment names one.
    retries : Retries
    timeouts : Timeouts

    Raises
    ------
    MetadataError
        If the endpoint is not a URL.
    """

    def __init__(self, region: str, retries: Retries, timeouts: Timeouts) -> None:
        self._path = Path(os.environ["AWS_WEB_IDENTITY_TOKEN_FILE"])
        self._role = {
            "Action": "AssumeRoleWithWebIdentity",
            "Version": "2011-06-15",
            "RoleArn": os.environ["AWS_ROLE_ARN"],
            "RoleSessionName": os.environ.get("AWS_ROLE_SESSION_NAME") or "gpustore",
        }
        domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
        url = os.environ.get("AWS_ENDPOINT_URL_STS") or f"https://sts.{region}.{domain}"
        try:
            parts = urlsplit(url)
            self._origin = Origin.parse(parts.scheme, parts.netloc)
        except ValueError as error:
            text = error.text if isinstance(error, MetadataError) else "it is not a URL"
            raise MetadataError(f"Invalid URL of the service sts: {text}") from None
        self._target = f"{parts.path.rstrip('/')}/"
        self._client = HttpClient(
            self._origin, permits=Permits(1), retries=retries, timeouts=timeouts, explain=code_of
        )

    @staticmethod
    def is_in_environment() -> bool:
        """Whether there is one."""
        names = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN")
        return all(os.environ.get(name) for name in names)

    def credential(self) -> dict[str, Any]:
        """New credentials, in obstore's form.

        Raises
        ------
        StoreIOError
            If there are none, or no token.
        """
        try:
            with self._path.open("rb") as file:
                token = file.read(_NBYTES).decode().strip()
        except (OSError, ValueError):
            raise StoreIOError(
                f"{quote(str(self._path))} cannot be read", status="FAILED_PRECONDITION"
            ) from None
        form = urlencode({**self._role, "WebIdentityToken": token}).encode()
        fields = {"Content-Type": "application/x-www-form-urlencoded"}
        response = self._client.send_one(HttpRequest("POST", self._target, fields, form))
        if response.status != 200:
            raise self._client.refusal(response).prefixed(str(self._origin))
        body = bytes(response.body)
        try:
            return {
                "access_key_id": _text(body, "AccessKeyId"),
                "secret_access_key": _text(body, "SecretAccessKey"),
                "token": _text(body, "SessionToken"),
                "expires_at": datetime.fromisoformat(_text(body, "Expiration")),
            }
        except ValueError:
            raise StoreIOError(
                f"{self._origin}: the answer holds no credentials", status="UNKNOWN"
            ) from None


def _text(xml: bytes, name: str) -> str:
    """What the element of that name contains; ValueError if there is none."""
    match = re.search(f"<{name}>([!-;=-~]+)</{name}>".encode(), xml)
    if match is None:
        raise ValueError
    return html.unescape(match[1].decode())
