"""Proxies of requests, from environment variables.

``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``, in capitals or not, are understood
as Python's ``urllib`` does, and so as most programs do.
"""

from __future__ import annotations

import base64
import os
import urllib.request
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes, urlsplit

from gpustore.errors import MetadataError, UnsupportedError
from gpustore.kvstores.http.message import Origin

_METADATA_HOSTS: Final = ("metadata.google.internal", "fd00:ec2::254", "fd00:ec2::23")
"""Hosts of metadata services: like link-local addresses, never asked through a proxy."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy.

    Attributes
    ----------
    origin : Origin
        Scheme (always ``"http"``), host and port of the proxy.
    headers : str
        Line ``Proxy-Authorization`` with its line end, a secret; empty without a user name.
    """

    origin: Origin
    headers: str

    def __repr__(self) -> str:
        return f"Proxy({self.origin})"


def proxy_for(origin: Origin) -> Proxy | None:
    """Find the proxy for requests to `origin`; None for a direct connection.

    Raises
    ------
    UnsupportedError
        If the scheme of the proxy's URL is not ``http``.
    MetadataError
        If the proxy's URL is malformed. The URL, which may hold a password, is not shown.
    """
    if origin.host.startswith("169.254.") or origin.host in _METADATA_HOSTS:
        return None
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return None
    proxies = urllib.request.getproxies_environment()
    url = proxies.get(origin.scheme) or proxies.get("all")
    if not url or urllib.request.proxy_bypass(f"{origin.host}:{origin.port}"):
        return None
    variable = f"{origin.scheme}_proxy" if proxies.get(origin.scheme) else "all_proxy"
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        user, _, authority = parts.netloc.rpartition("@")
        found = Origin.parse("http", authority)
    except ValueError as error:
        text = error.text if isinstance(error, MetadataError) else "it is not a URL"
        raise MetadataError(f"Invalid environment variable {variable}: {text}") from None
    if parts.scheme != "http":
        raise UnsupportedError(
            f"the environment variable {variable} names a proxy of the scheme {parts.scheme!r}; "
            "only http is supported"
        )
    if not user:
        return Proxy(found, "")
    secret = base64.b64encode(unquote_to_bytes(user)).decode()
    return Proxy(found, f"Proxy-Authorization: Basic {secret}\r\n")
