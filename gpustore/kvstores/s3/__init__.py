"""The ``s3`` kvstore: objects of a bucket of Amazon S3, or of a server with its protocol.

JSON ``{"driver": "s3", "bucket": "name", "path": "x.zarr/"}``, URL ``s3://name/x.zarr/``. The
member ``endpoint`` (or ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``) names another server. The
context resource ``aws_credentials`` names the source of the credentials; those that are not keys of
the environment are found by botocore (extra ``cloud``, :mod:`~gpustore.kvstores.s3.credentials`).

The generation is the ``ETag``, which for most objects is a digest of the bytes: writing the same
bytes again does not change it. Amazon compares and writes (or deletes) in one step. Other servers
may ignore a condition; for them the generation is also read and compared before the write, and a
deletion is sent without the condition. ``use_conditional_write`` selects one of the two: true, the
condition is only sent; false, the generation is only read and compared before, which does not
exclude other writers.

Source: TensorStore ``kvstore/s3/index.rst``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from gpustore.errors import MetadataError, UnsupportedError
from gpustore.kvstores.base import (
    references_json,
    take_references,
)
from gpustore.kvstores.buckets.bucket import CONFLICT_PASSES, Bucket, check_object_path, code_of
from gpustore.kvstores.buckets.credential_service import CredentialServices
from gpustore.kvstores.buckets.kvstore import BucketKvStore
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import HttpResponse
from gpustore.kvstores.s3.address import (
    USUAL_REGION,
    S3Address,
    check_region,
    environment_endpoint,
    region_of_bucket,
)
from gpustore.kvstores.s3.credentials import AwsCredentials
from gpustore.kvstores.s3.signature import SignedFields
from gpustore.strict_json.parsing import quote
from gpustore.url import encode_path, require_slashes

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from gpustore.runtime.context import Context
    from gpustore.strict_json.parsing import JsonValue, Members
    from gpustore.url import UrlComponent

_RATE_LIMITER: Final = "experimental_s3_rate_limiter"
_RESOURCES: Final = (
    "aws_credentials",
    "data_copy_concurrency",
    "http_request_timeouts",
    "s3_request_concurrency",
    "s3_request_retries",
)


class S3KvStore(BucketKvStore["S3Spec"]):
    """An opened s3 kvstore.

    Parameters
    ----------
    spec : S3Spec
    resources : mapping
        Resolved context resources, by identifier.
    """

    id = "s3"

    def __init__(self, spec: S3Spec, resources: Mapping[str, Context.Resource]) -> None:
        super().__init__(spec, resources)
        source = resources["aws_credentials"].value
        services = CredentialServices(
            resources["s3_request_retries"].value,
            resources["http_request_timeouts"].value,
            "aws_credentials of the type anonymous",
        )
        said = os.environ.get("AWS_REGION", "") or os.environ.get("AWS_DEFAULT_REGION", "")
        region = check_region(spec.aws_region or said)
        self._credentials = AwsCredentials(source, services, region)
        check_region(self._credentials.region)  # That of a profile.
        self._endpoint = spec.endpoint or environment_endpoint()
        if self._endpoint is not None:
            S3Address.at_endpoint(self._endpoint, spec.bucket)  # Checks it.
        who = self._credentials.who
        self._where = self._endpoint, spec.bucket, spec.requester_pays, source, who
        relied_on = spec.use_conditional_write
        self.atomic_single_key = self._endpoint is None if relied_on is None else relied_on
        self._found: Bucket | None = None

    @property
    def _bucket(self) -> Bucket:
        if self._found is None:  # Two threads may find it at once.
            self._found = self._find()
        return self._found

    def _find(self) -> Bucket:
        """Open the bucket; its region may be looked up by a request."""
        spec, resources = self._spec, self._resources
        usual = self._credentials.region or USUAL_REGION
        if self._endpoint is None:
            region = spec.aws_region or region_of_bucket(spec.bucket) or usual
            address = S3Address.at_amazon(spec.bucket, region)
        else:
            region = spec.aws_region or usual
            address = S3Address.at_endpoint(self._endpoint, spec.bucket)
        authorization = SignedFields(
            self._credentials.keys,
            region,
            address.origin.authority,
            {"x-amz-request-payer": "requester"} if spec.requester_pays else {},
        )
        client = HttpClient(
            address.origin,
            permits=resources["s3_request_concurrency"].value,
            retries=resources["s3_request_retries"].value,
            timeouts=resources["http_request_timeouts"].value,
            explain=partial(_explain, region, authorization),
            passing=CONFLICT_PASSES,
        )
        return Bucket(
            client=client,
            authorization=authorization,
            root=address.root,
            generation="etag",
            describe=self.describe,
            looks=not self.atomic_single_key,
            sends=spec.use_conditional_write is not False,
        )

    @property
    def identity(self) -> Hashable:
        return "s3", *self._where

    def describe(self, key: str) -> str:
        bucket = self._spec.bucket
        if self._endpoint is None:
            return quote(f"s3://{bucket}/{key}")
        parts = [self._endpoint.rstrip("/"), bucket, key]
        return quote("/".join(part for part in parts if part or part is key))


def _explain(region: str, authorization: SignedFields, response: HttpResponse) -> str:
    """Return the code of an error response, with a likely reason."""
    code = code_of(response)
    if response.status in (301, 307, 400):
        return f'{code}; is the bucket in another region than {region}? Set "aws_region"'
    if response.status in (401, 403) and authorization.is_anonymous:
        return f"{code}; the request was anonymous: see the context resource aws_credentials"
    return code


# The older naming rule of us-east-1, which includes the newer one.
_BUCKET: Final = re.compile(r"[A-Za-z0-9._-]{3,255}")
_ADDRESS: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")


def _check_bucket(bucket: str) -> str:
    wrong = not _BUCKET.fullmatch(bucket) or ".." in bucket or _ADDRESS.fullmatch(bucket)
    if wrong or ".-" in bucket or "-." in bucket:
        raise MetadataError(f"Invalid S3 bucket name: {quote(bucket)}")
    return bucket


@dataclass(frozen=True, slots=True)
class S3Spec:
    """Parsed spec of an s3 kvstore.

    Attributes
    ----------
    bucket : str
        Name of the bucket; empty if `endpoint` is the URL of the bucket.
    requester_pays : bool
        Whether requests carry ``x-amz-request-payer: requester``.
    aws_region : str
        Region of the bucket; empty to look it up at Amazon, or for another endpoint in the
        environment and the profile.
    endpoint : str or None
        URL of another server.
    host_header : str
        Value of the field ``Host``; empty for the host of `endpoint`.
    use_conditional_write : bool or None
        True to send conditions of writes only, false to compare them before the write only, None
        for the default of the server; see :mod:`gpustore.kvstores.s3`.
    references : mapping
        Context resources that are not the default ones, by identifier.
    """

    bucket: str
    requester_pays: bool = False
    aws_region: str = ""
    endpoint: str | None = None
    host_header: str | None = None
    use_conditional_write: bool | None = None
    references: Mapping[str, JsonValue] = field(default_factory=dict)

    id = "s3"
    base = None

    def without_references(self) -> S3Spec:
        return replace(self, references={})

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        json = references_json(_RESOURCES, self.references, include_defaults=include_defaults)
        if include_defaults or self.bucket:
            json["bucket"] = self.bucket
        for name in ("requester_pays", "aws_region"):
            if include_defaults or getattr(self, name):
                json[name] = getattr(self, name)
        if self.endpoint is not None:
            json["endpoint"] = self.endpoint
        if self.host_header is not None:
            json["host_header"] = self.host_header
        if self.use_conditional_write is not None:
            json["use_conditional_write"] = self.use_conditional_write
        return json

    def to_url(self, path: str) -> str:
        if self.endpoint is not None:
            raise UnsupportedError("S3 URL syntax not supported with explicit endpoint")
        return f"s3://{self.bucket}/{encode_path(path)}"

    def open(self, context: Context, path: str) -> S3KvStore:
        del path
        if self.host_header:
            raise UnsupportedError('"host_header" is not supported: the client sends its own')
        if _RATE_LIMITER in self.references:
            # Raises UnsupportedError for a rate.
            context.resource(_RATE_LIMITER, self.references[_RATE_LIMITER]).value  # noqa: B018
        resources = {id: context.resource(id, self.references.get(id)) for id in _RESOURCES}
        return S3KvStore(self, resources)


class _Kind:
    """Parses both forms of an s3 spec."""

    id = "s3"
    is_adapter: Literal[False] = False
    schemes = ("s3",)

    def from_json(self, members: Members) -> S3Spec:
        endpoint = members.take_str("endpoint", None)
        bucket = members.take_str("bucket", "")
        if endpoint is None and not bucket:
            raise MetadataError('"bucket" must be specified when "endpoint" is not set')
        if bucket:
            _check_bucket(bucket)
        if endpoint is not None and re.match(r"[^/?#]*//[^/?#]*@", endpoint):
            raise members.error("a user name and password are not allowed in it", "endpoint")
        host_header = members.take_str("host_header", None)
        if host_header and endpoint is None:
            raise MetadataError('"host_header" cannot be set without also setting "endpoint"')
        if host_header and not re.fullmatch(r"[A-Za-z0-9._:\[\]-]+", host_header):
            raise members.error(f"expected a host, but received: {host_header!r}", "host_header")
        return S3Spec(
            bucket,
            members.take_bool("requester_pays", False),
            members.take_str("aws_region", ""),
            endpoint,
            host_header,
            members.take_bool("use_conditional_write", None),
            take_references(members, _RESOURCES, (_RATE_LIMITER,)),
        )

    def from_url(self, component: UrlComponent) -> tuple[S3Spec, str]:
        require_slashes(component)
        bucket, _, path = component.path.partition("/")
        try:
            return S3Spec(_check_bucket(bucket)), path
        except MetadataError as error:
            raise component.error("kvstore", error.text) from None

    def check_path(self, path: str) -> None:
        check_object_path(path)


DRIVER = _Kind()
