"""Addresses of S3 buckets: origin, path and region.

Source: Amazon S3 user guide, "Virtual hosting of general purpose buckets".
"""

from __future__ import annotations

import ipaddress
import os
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from gpustore.errors import GpustoreError, MetadataError, UnsupportedError
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import HttpRequest, Origin
from gpustore.resources._request_concurrency import Permits
from gpustore.resources._retries import Retries
from gpustore.resources.http_request_timeouts import Timeouts
from gpustore.strict_json.parsing import quote

USUAL_REGION: Final = "us-east-1"

AMAZON: Final = Origin("https", "s3.amazonaws.com", 443)
"""Server that tells the region of every bucket."""

_NUMBER: Final = re.compile("[0-9]+|0[xX][0-9a-fA-F]*")
_PATH: Final = re.compile("[!-~]*")
_REGION: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Names of regions, of servers other than Amazon too; they are part of hosts and header fields."""

_RETRIES: Final = Retries(1, 0.1, 1.0)
_TIMEOUTS: Final = Timeouts(5.0, 5.0, 10.0, 5.0)


@dataclass(frozen=True, slots=True)
class S3Address:
    """Address of a bucket.

    Attributes
    ----------
    origin : Origin
    path : str
        Path of the endpoint, without a slash at its end.
    bucket : str
        Name of the bucket; empty if the endpoint is the URL of the bucket.
    is_own_host : bool
        Whether the host names the bucket, so that request paths do not (virtual-hosted style).
    """

    origin: Origin
    path: str
    bucket: str
    is_own_host: bool

    @classmethod
    def at_amazon(cls, bucket: str, region: str) -> S3Address:
        """Make the address of a bucket at Amazon: virtual-hosted style if its name allows it."""
        # Certificates of Amazon are valid for a single component before its host.
        dotted = "." in bucket or bucket != bucket.lower() or "_" in bucket
        host = f"s3.{region}.amazonaws.com"
        return cls(
            Origin("https", host if dotted else f"{bucket}.{host}", 443), "", bucket, not dotted
        )

    @classmethod
    def at_endpoint(cls, endpoint: str, bucket: str) -> S3Address:
        """Make the address of a bucket at another server.

        Raises
        ------
        MetadataError
            If `endpoint` is not a URL, or has a query, a fragment or a path that programs rewrite.
        UnsupportedError
            If its host is an IP address in a form that programs rewrite, which breaks signatures.
        """
        try:
            parts = urlsplit(endpoint)
            origin = Origin.parse(parts.scheme, parts.netloc)
        except (MetadataError, ValueError) as error:
            text = error.text if isinstance(error, MetadataError) else str(error)
            raise MetadataError(f'Invalid "endpoint": {text}') from error
        if not _is_canonical(origin.host):
            raise UnsupportedError(
                f"{origin}: an address in another form than the usual one is not supported"
            )
        # Proxies might change such a path, and the signature would be wrong.
        components = parts.path.strip("/").split("/")
        strange = not {".", "..", ""}.isdisjoint(components) and components != [""]
        if strange or not _PATH.fullmatch(parts.path):
            raise MetadataError(
                f'Invalid "endpoint": the path {quote(parts.path)} is not supported'
            )
        if parts.query or parts.fragment:
            raise MetadataError('Invalid "endpoint": a query or fragment is not supported')
        return cls(origin, parts.path.rstrip("/"), bucket, not bucket)

    @property
    def root(self) -> str:
        """Prefix of keys in request paths, with a slash at its end."""
        return f"{self.path}/" if self.is_own_host else f"{self.path}/{self.bucket}/"


def _is_canonical(host: str) -> bool:
    """Whether `host` is a name, or an IP address in its canonical form."""
    if ":" not in host and not _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2]):
        return True
    try:
        return str(ipaddress.ip_address(host)) == host
    except ValueError:
        return False


def check_region(region: str) -> str:
    """Return `region`; MetadataError unless it is the name of a region or empty."""
    if region and not _REGION.fullmatch(region):
        raise MetadataError(f"Invalid AWS region: {quote(region)}")
    return region


def environment_endpoint() -> str | None:
    """Return the endpoint that the environment names; None for Amazon's own."""
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return next((os.environ[name] for name in names if os.environ.get(name)), None)


_REGIONS: dict[str, str] = {}
"""Regions of buckets, by name; a bucket never moves."""


def region_of_bucket(bucket: str) -> str:
    """Look up the region of a bucket at Amazon; empty if it is unknown.

    The first call for a bucket sends one anonymous request, ``HeadBucket`` of the Amazon S3 API
    reference; later ones use its result.
    """
    if bucket not in _REGIONS:
        client = HttpClient(AMAZON, permits=Permits(1), retries=_RETRIES, timeouts=_TIMEOUTS)
        try:
            response = client.send_one(HttpRequest("HEAD", f"/{bucket}"))
        except GpustoreError:  # Without a network, the first request says so.
            return ""
        region = response.headers.get("x-amz-bucket-region", "")
        if not _REGION.fullmatch(region):
            return ""
        _REGIONS[bucket] = region
    return _REGIONS[bucket]
