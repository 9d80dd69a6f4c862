"""The ``gcs`` kvstore: objects of a bucket of Google Cloud Storage.

JSON ``{"driver": "gcs", "bucket": "name", "path": "x.zarr/"}``, URL ``gs://name/x.zarr/``.
Credentials are Google's application default credentials, found by google-auth (extra ``cloud``,
:mod:`~gpustore.kvstores.gcs.credentials`), or the token in ``GOOGLE_BEARER_TOKEN``. Without
credentials, or with ``GOOGLE_SKIP_SIGNATURE=true``, requests are anonymous, which is enough for a
public bucket. ``STORAGE_EMULATOR_HOST`` names another server, which gets no credentials. The
context resource ``gcs_user_project`` names the project that pays.

The generation is the object's own (``x-goog-generation``). Google compares and writes, or deletes,
in one step.

Source: TensorStore ``kvstore/gcs/index.rst``.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import urlsplit

from gpustore.errors import InvalidKeyError, MetadataError
from gpustore.kvstores.base import (
    references_json,
    take_references,
)
from gpustore.kvstores.buckets.authorization import SameFields
from gpustore.kvstores.buckets.bucket import CONFLICT_PASSES, Bucket, check_object_path, code_of
from gpustore.kvstores.buckets.credential_service import CredentialServices
from gpustore.kvstores.buckets.kvstore import BucketKvStore
from gpustore.kvstores.gcs.credentials import GoogleCredentials
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import HttpResponse, Origin
from gpustore.strict_json.parsing import quote
from gpustore.url import encode_path, require_slashes

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from gpustore.runtime.context import Context
    from gpustore.strict_json.parsing import JsonValue, Members
    from gpustore.url import UrlComponent

_RATE_LIMITER: Final = "experimental_gcs_rate_limiter"
_RESOURCES: Final = (
    "data_copy_concurrency",
    "gcs_request_concurrency",
    "gcs_request_retries",
    "gcs_user_project",
    "http_request_timeouts",
)
GOOGLE: Final = Origin("https", "storage.googleapis.com", 443)
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


class GcsKvStore(BucketKvStore["GcsSpec"]):
    """An opened gcs kvstore.

    Parameters
    ----------
    spec : GcsSpec
    resources : mapping
        Resolved context resources, by identifier.
    """

    id = "gcs"
    atomic_single_key = True

    def __init__(self, spec: GcsSpec, resources: Mapping[str, Context.Resource]) -> None:
        super().__init__(spec, resources)
        project = resources["gcs_user_project"].value
        fields = {} if project is None else {"x-goog-user-project": project}
        retries = resources["gcs_request_retries"].value
        timeouts = resources["http_request_timeouts"].value
        origin, credentials = GOOGLE, None
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        if emulator:
            origin = _emulator_origin(emulator)
        else:
            services = CredentialServices(retries, timeouts, "GOOGLE_SKIP_SIGNATURE=true")
            credentials = GoogleCredentials(services)
        anonymous = credentials is None or credentials.is_anonymous
        client = HttpClient(
            origin,
            permits=resources["gcs_request_concurrency"].value,
            retries=retries,
            timeouts=timeouts,
            explain=partial(_explain, anonymous),
            passing=CONFLICT_PASSES,
        )
        who = None if credentials is None else credentials.who
        self._identity = "gcs", emulator, spec.bucket, project, who
        self._opened = Bucket(
            client=client,
            authorization=SameFields(
                anonymous, lambda: fields if credentials is None else credentials.fields() | fields
            ),
            root=f"/{spec.bucket}/",
            generation="x-goog-generation",
            describe=self.describe,
        )

    @property
    def _bucket(self) -> Bucket:
        return self._opened

    @property
    def identity(self) -> Hashable:
        return self._identity

    def describe(self, key: str) -> str:
        return quote(f"gs://{self._spec.bucket}/{key}")


def _emulator_origin(emulator: str) -> Origin:
    """Parse ``STORAGE_EMULATOR_HOST``: a URL, or a host and perhaps a port."""
    try:
        parts = urlsplit(emulator if "://" in emulator else f"http://{emulator}")
        return Origin.parse(parts.scheme, parts.netloc)
    except ValueError as error:
        text = error.text if isinstance(error, MetadataError) else str(error)
        raise MetadataError(
            f"Invalid environment variable STORAGE_EMULATOR_HOST: {text}"
        ) from error


def _explain(anonymous: bool, response: HttpResponse) -> str:
    """Return the code of an error response, with a likely reason."""
    why = "; the request was anonymous, as no credentials were found"
    denied = response.status in (401, 403)
    return code_of(response) + (why if denied and anonymous else "")


@dataclass(frozen=True, slots=True)
class GcsSpec:
    """Parsed spec of a gcs kvstore.

    Attributes
    ----------
    bucket : str
        Name of the bucket.
    references : mapping
        Context resources that are not the default ones, by identifier.
    """

    bucket: str
    references: Mapping[str, JsonValue] = field(default_factory=dict)

    id = "gcs"
    base = None

    def without_references(self) -> GcsSpec:
        return replace(self, references={})

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        json = references_json(_RESOURCES, self.references, include_defaults=include_defaults)
        return {**json, "bucket": self.bucket}

    def to_url(self, path: str) -> str:
        return f"gs://{self.bucket}/{encode_path(path)}"

    def open(self, context: Context, path: str) -> GcsKvStore:
        del path
        if _RATE_LIMITER in self.references:
            # Raises UnsupportedError for a rate.
            context.resource(_RATE_LIMITER, self.references[_RATE_LIMITER]).value  # noqa: B018
        resources = {id: context.resource(id, self.references.get(id)) for id in _RESOURCES}
        return GcsKvStore(self, resources)


def _check_bucket(bucket: str) -> str:
    parts = bucket.split(".")
    long = len(parts) == 1 and len(bucket) > 63
    wrong = long or any(not part or len(part) > 63 for part in parts)
    if not _BUCKET.fullmatch(bucket) or wrong:
        raise MetadataError(f"Invalid GCS bucket name: {quote(bucket)}")
    return bucket


class _Kind:
    """Parses both forms of a gcs spec."""

    id = "gcs"
    is_adapter: Literal[False] = False
    schemes = ("gs",)

    def from_json(self, members: Members) -> GcsSpec:
        bucket = members.take_str("bucket")
        try:
            _check_bucket(bucket)
        except MetadataError as error:
            raise members.error(error, "bucket") from None
        return GcsSpec(bucket, take_references(members, _RESOURCES, (_RATE_LIMITER,)))

    def from_url(self, component: UrlComponent) -> tuple[GcsSpec, str]:
        require_slashes(component)
        bucket, _, path = component.path.partition("/")
        try:
            return GcsSpec(_check_bucket(bucket)), path
        except MetadataError as error:
            raise component.error("kvstore", error.text) from None

    def check_path(self, path: str) -> None:
        if {"\r", "\n"} & set(path) or path in (".", "..") or path.startswith(".well-known/acme-"):
            raise InvalidKeyError(f"Invalid GCS path: {quote(path)}", key=path)
        check_object_path(path)


DRIVER = _Kind()
