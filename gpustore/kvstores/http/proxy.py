"""Which proxy a request goes through, as the environment says.

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

_OF_MACHINE: Final = ("metadata.google.internal", "fd00:ec2::254", "fd00:ec2::23")
"""They and link-local addresses know the machine's own secrets, and no proxy is to see them."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy.

    Attributes
    ----------
    origin : Origin
        Where it is; its scheme is ``"http"``.
    headers : str
        Lines that it wants to see, each with its end: who asks. They are a secret.
    """

    origin: Origin
    headers: str

    def __repr__(self) -> str:
        return f"Proxy({self.origin})"


def proxy_for(origin: Origin) -> Proxy | None:
    """The proxy for requests to `origin`; None to ask it directly.

    Raises
    ------
    UnsupportedError
        If it is not one that is spoken to with HTTP in the clear.
    MetadataError
        If its URL is malformed. The URL, which may hold a password, is not shown.
    """
    if origin.host.startswith("169.254.") or origin.host in _OF_MACHINE:
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
        if parts.scheme != "http":
            raise UnsupportedError(
                f"the environment variable {variable} names a proxy of the scheme "
                f"{parts.scheme!r}; only http is supported"
            )
        found = Origin.parse(parts.scheme, authority)
    except ValueError as error:
        text = error.text if isinstance(error, MetadataError) else "it is not a URL"
        raise MetadataError(f"Invalid environment variable {variable}: {text}") from None
    if not user:
        return Proxy(found, "")
    secret = base64.b64encode(unquote_to_bytes(user)).decode()
    return Proxy(found, f"Proxy-Authorization: Basic {secret}\r\n")
