"""The ``s3`` kvstore: objects of a bucket of Amazon S3, or of what speaks its protocol.

JSON ``{"driver": "s3", "bucket": "name", "path": "x.zarr/"}``, URL ``s3://name/x.zarr/``; with the
member ``endpoint`` (or ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL``) another server. obstore
(extra ``cloud``) finds credentials, signs and lists; all requests are sent by our own client
(:mod:`~gpustore.kvstores.buckets.bucket`). The context resource ``aws_credentials`` says where the
credentials are.

The generation is the ``ETag``, which for most objects is a digest of the bytes: writing the same
bytes again does not change it. Amazon compares and writes (or deletes) in one step. Other servers
may ignore a condition, so there it is looked at before as well, and with a deletion it is not sent;
``use_conditional_write`` says otherwise: true, it is only sent; false, only looked at. What is only
looked at does not exclude other writers.

Source: TensorStore ``kvstore/s3/index.rst``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from gpustore.errors import MetadataError, NotFoundError, UnsupportedError
from gpustore.kvstores.base import (
    references_json,
    require_slashes,
    take_references,
)
from gpustore.kvstores.buckets.authorization import Anonymous, Authorization, SignedUrls
from gpustore.kvstores.buckets.aws_profile import profile_keys, profile_name, region_of
from gpustore.kvstores.buckets.bucket import CONFLICT_PASSES, Bucket, check_object_path, code_of
from gpustore.kvstores.buckets.kvstore import BucketKvStore
from gpustore.kvstores.buckets.machine import is_made_by
from gpustore.kvstores.buckets.obstore import ObstoreBucket, require_obstore
from gpustore.kvstores.buckets.web_identity import WebIdentity
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import HttpResponse
from gpustore.kvstores.s3.address import (
    USUAL_REGION,
    S3Address,
    environment_endpoint,
    region_of_bucket,
)
from gpustore.strict_json.parsing import quote
from gpustore.url import encode_path

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from gpustore.resources.aws_credentials import AwsCredentialsSource
    from gpustore.runtime.context import Context
    from gpustore.strict_json.parsing import JsonValue, Members
    from gpustore.url import UrlComponent


_RESOURCES: Final = (
    "aws_credentials",
    "data_copy_concurrency",
    "http_request_timeouts",
    "s3_request_concurrency",
    "s3_request_retries",
)


_KEYS: Final = ("access_key_id", "secret_access_key", "session_token")
_PREFERRED: Final = {
    "ecs": ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    "imds": ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_"),
}
"""What obstore takes from the environment instead, if it is there."""


class S3KvStore(BucketKvStore["S3Spec"]):
    """An opened s3 kvstore.

    Parameters
    ----------
    spec : S3Spec
    resources : mapping
        Its context resources.
    """

    id = "s3"

    def __init__(self, spec: S3Spec, resources: Mapping[str, Context.Resource]) -> None:
        super().__init__(spec, resources)
        require_obstore()
        source = resources["aws_credentials"].value
        self._credentials = _credentials(source)
        self._endpoint = spec.endpoint or environment_endpoint()
        if self._endpoint is not None:
            S3Address.at_endpoint(self._endpoint, spec.bucket)  # Checks it.
        region = os.environ.get("AWS_REGION", "") or os.environ.get("AWS_DEFAULT_REGION", "")
        self._usual_region = region or region_of(source) or USUAL_REGION
        who = hash(frozenset(self._credentials.items()))
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
        """The bucket, whose region may have to be asked for."""
        spec, resources = self._spec, self._resources
        region = spec.aws_region
        config: dict[str, Any] = {"request_payer": spec.requester_pays}
        config["disable_bulk_delete"] = True  # Not every server has it.
        if self._endpoint is None:
            region = region or region_of_bucket(spec.bucket) or self._usual_region
            address = S3Address.at_amazon(spec.bucket, region)
        else:
            region = region or self._usual_region
            address = S3Address.at_endpoint(self._endpoint, spec.bucket)
        signs = "skip_signature" not in self._credentials
        client = HttpClient(
            address.origin,
            permits=resources["s3_request_concurrency"].value,
            retries=resources["s3_request_retries"].value,
            timeouts=resources["http_request_timeouts"].value,
            explain=partial(_explain, region, signs),
            passing=CONFLICT_PASSES,
        )
        known = "access_key_id" in self._credentials
        if signs:
            config |= {**_services(), **self._credentials}
        config["skip_signature"] = not signs  # Whatever the environment says.
        provider = self._provider(config, region) if signs else None
        config["region"] = region
        config["virtual_hosted_style_request"] = address.is_own_host
        # The second name wins over the environment.
        config["endpoint"] = config["aws_endpoint_url_s3"] = address.endpoint
        obstore = ObstoreBucket(
            "S3Store",
            spec.bucket or "bucket",
            config,
            client,
            "aws_credentials of the type anonymous",
            provider=provider,
        )
        authorization: Authorization = Anonymous(address.root)
        if signs:
            authorization = SignedUrls(obstore, fetches=not known)
        return Bucket(
            client=client,
            authorization=authorization,
            obstore=obstore,
            generation="etag",
            describe=self.describe,
            looks=not self.atomic_single_key,
            sends=spec.use_conditional_write is not False,
        )

    def _provider(
        self, config: dict[str, Any], region: str
    ) -> Callable[[], Mapping[str, Any]] | None:
        """Who is asked for credentials instead of obstore; keys are taken out of `config`."""
        resources = self._resources
        keys = {name: config.pop(name, None) for name in _KEYS}
        if keys["access_key_id"] is not None:
            return partial(_credential, keys)
        usual = resources["aws_credentials"].value.type == "default"
        if not usual or not WebIdentity.is_in_environment():
            return None
        retries = resources["s3_request_retries"].value
        return WebIdentity(region, retries, resources["http_request_timeouts"].value).credential

    @property
    def identity(self) -> Hashable:
        return "s3", *self._where

    def describe(self, key: str) -> str:
        bucket = self._spec.bucket
        if self._endpoint is None:
            return quote(f"s3://{bucket}/{key}")
        parts = [self._endpoint.rstrip("/"), bucket, key]
        return quote("/".join(part for part in parts if part or part is key))


def _explain(region: str, signs: bool, response: HttpResponse) -> str:
    """What an error says, and what may be the reason."""
    code = code_of(response)
    if response.status in (301, 307, 400):
        return f'{code}; is the bucket in another region than {region}? Set "aws_region"'
    if response.status in (401, 403) and not signs:
        return f"{code}; the request was anonymous: see the context resource aws_credentials"
    return code


def _credentials(source: AwsCredentialsSource) -> dict[str, Any]:
    """What obstore is told about credentials: to find them itself, unless there is more to say."""
    match source.type:
        case "anonymous":
            return {"skip_signature": True}
        case "environment":
            return _environment_keys()
        case "profile":
            keys = profile_keys(source)
            if not keys:
                raise NotFoundError(
                    f"aws_credentials: there are no keys in profile {quote(profile_name(source))}"
                )
            return keys
        case "ecs" | "imds":
            for name in os.environ:
                if os.environ[name] and name.startswith(_PREFERRED[source.type]):
                    raise UnsupportedError(
                        f'aws_credentials: obstore prefers {name} to "{source.type}"; unset that '
                        "environment variable"
                    )
            named = {
                "container_credentials_full_uri": source.endpoint,
                "container_authorization_token_file": source.auth_token_file,
            }
            return {name: value for name, value in named.items() if value}
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return _environment_keys()
    keys = profile_keys(source)
    services = _PREFERRED["imds"][1:]
    if keys or any(name.startswith(services) for name in os.environ):
        return keys
    disabled = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
    return {} if is_made_by("Amazon EC2") and not disabled else {"skip_signature": True}


def _environment_keys() -> dict[str, str]:
    """Those that are there now: a store does not change its keys with the environment."""
    keys = {name: os.environ.get(f"AWS_{name.upper()}", "").strip() for name in _KEYS}
    if not keys["access_key_id"] or not keys["secret_access_key"]:
        raise NotFoundError(
            "aws_credentials: there are none in the environment variables "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return {name: key for name, key in keys.items() if key}


def _credential(keys: Mapping[str, str | None]) -> dict[str, str | None]:
    """Keys that are known as obstore wants them.

    To those in its configuration it would add a token of the environment.
    """
    named = {"token": keys["session_token"], "expires_at": None}
    return {name: keys[name] for name in _KEYS[:2]} | named


def _services() -> dict[str, str]:
    """Who may be asked for credentials, as the environment says."""
    found = {
        name: os.environ.get(f"AWS_{name.upper()}", "")
        for name in ("container_credentials_full_uri", "metadata_endpoint")
    }
    return {name: url for name, url in found.items() if url}


# The older rule of us-east-1, which contains the newer one.
_BUCKET: Final = re.compile(r"[A-Za-z0-9._-]{3,255}")
_ADDRESS: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}")


def _check_bucket(bucket: str) -> str:
    wrong = not _BUCKET.fullmatch(bucket) or ".." in bucket or _ADDRESS.fullmatch(bucket)
    if wrong or ".-" in bucket or "-." in bucket:
        raise MetadataError(f"Invalid S3 bucket name: {quote(bucket)}")
    return bucket


@dataclass(frozen=True, slots=True)
class S3Spec:
    """What a spec says about an s3 kvstore.

    Attributes
    ----------
    bucket : str
        Empty if the endpoint is that of the bucket.
    requester_pays : bool
    aws_region : str
        Empty: as Amazon says of the bucket; at another endpoint as the environment or the profile
        says.
    endpoint : str or None
        URL of another server.
    host_header : str
        Sent instead of the host of `endpoint`; empty for that.
    use_conditional_write : bool or None
        See above.
    references : mapping
        Context resources that are not the default ones, by identifier.
    """

    bucket: str
    requester_pays: bool = False
    aws_region: str = ""
    endpoint: str | None = None
    host_header: str = ""
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
        if self.host_header:
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
            raise UnsupportedError('"host_header" is not supported: obstore sends its own')
        resources = {id: context.resource(id, self.references.get(id)) for id in _RESOURCES}
        return S3KvStore(self, resources)


class _Kind:
    """Parses both forms of an s3 spec."""

    id = "s3"
    is_adapter: Literal[False] = False

    def from_json(self, members: Members) -> S3Spec:
        endpoint = members.take_str("endpoint", None)
        bucket = members.take_str("bucket", "")
        if endpoint is None and not bucket:
            raise MetadataError('"bucket" must be specified when "endpoint" is not set')
        if bucket:
            _check_bucket(bucket)
        if endpoint is not None and "@" in urlsplit(endpoint).netloc:
            raise members.error("a user name and password are not allowed in it", "endpoint")
        host_header = members.take_str("host_header", "")
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
            take_references(members, _RESOURCES),
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
