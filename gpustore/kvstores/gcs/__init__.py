"""The ``gcs`` kvstore: objects of a bucket of Google Cloud Storage.

JSON ``{"driver": "gcs", "bucket": "name", "path": "x.zarr/"}``, URL ``gs://name/x.zarr/``. obstore
(extra ``cloud``) finds credentials and lists: those of ``GOOGLE_APPLICATION_CREDENTIALS``, of
``gcloud auth application-default login``, or of the machine, if it is Google's. Without any, or
with ``GOOGLE_SKIP_SIGNATURE=true``, requests are anonymous, as a public bucket allows it. All
requests are sent by our own client (:mod:`~gpustore.kvstores.buckets.bucket`).
``STORAGE_EMULATOR_HOST`` is another server, which gets no credentials. The context resource
``gcs_user_project`` says which project pays.

The generation is that of the object. Google compares and writes, or deletes, in one step.

Source: TensorStore ``kvstore/gcs/index.rst``.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import urlsplit

from gpustore.errors import InvalidKeyError, MetadataError, NotFoundError, UnsupportedError
from gpustore.kvstores.base import (
    references_json,
    require_slashes,
    take_references,
)
from gpustore.kvstores.buckets.authorization import Anonymous, Authorization, BearerToken
from gpustore.kvstores.buckets.bucket import CONFLICT_PASSES, Bucket, check_object_path, code_of
from gpustore.kvstores.buckets.google_account import GoogleAccount
from gpustore.kvstores.buckets.kvstore import BucketKvStore
from gpustore.kvstores.buckets.machine import is_made_by
from gpustore.kvstores.buckets.obstore import ObstoreBucket, require_obstore
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import HttpResponse, Origin
from gpustore.strict_json.parsing import quote
from gpustore.url import encode_path

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from gpustore.runtime.context import Context
    from gpustore.strict_json.parsing import JsonValue, Members
    from gpustore.url import UrlComponent


_RESOURCES: Final = (
    "data_copy_concurrency",
    "gcs_request_concurrency",
    "gcs_request_retries",
    "gcs_user_project",
    "http_request_timeouts",
)
GOOGLE: Final = Origin("https", "storage.googleapis.com", 443)
_WELL_KNOWN: Final = "~/.config/gcloud/application_default_credentials.json"
_FILES: Final = (
    *("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_PATH", "SERVICE_ACCOUNT"),
    "GOOGLE_APPLICATION_CREDENTIALS",
)
_PREFERRED: Final = ("GOOGLE_BEARER_TOKEN", "GOOGLE_SERVICE_ACCOUNT_KEY")
_VARIABLES: Final = (
    *(*_FILES, *_PREFERRED),
    # Machines of Google that hide their firmware.
    *("GCE_METADATA_HOST", "K_SERVICE", "CLOUD_RUN_JOB", "FUNCTION_TARGET", "GAE_ENV"),
)
_TYPES: Final = ("service_account", "authorized_user")
_ACCOUNT_NBYTES: Final = 1 << 20
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


class GcsKvStore(BucketKvStore["GcsSpec"]):
    """An opened gcs kvstore.

    Parameters
    ----------
    spec : GcsSpec
    resources : mapping
        Its context resources.
    """

    id = "gcs"
    atomic_single_key = True

    def __init__(self, spec: GcsSpec, resources: Mapping[str, Context.Resource]) -> None:
        super().__init__(spec, resources)
        require_obstore()
        project = resources["gcs_user_project"].value
        headers = {} if project is None else {"x-goog-user-project": project}
        origin = GOOGLE
        config: dict[str, Any] = {}
        emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
        if emulator:
            url = emulator if "://" in emulator else f"http://{emulator}"
            parts = urlsplit(url)
            origin = Origin.parse(parts.scheme, parts.netloc)
        signs = not emulator and _has_credentials()
        signed_in = _check_files() if signs else None
        retries = resources["gcs_request_retries"].value
        timeouts = resources["http_request_timeouts"].value
        client = HttpClient(
            origin,
            permits=resources["gcs_request_concurrency"].value,
            retries=retries,
            timeouts=timeouts,
            explain=partial(_explain, signs),
            passing=CONFLICT_PASSES,
        )
        if emulator:
            config["bearer_token"] = "emulator"  # Unsigned writes do not exist in obstore.
        elif signs and (token := os.environ.get("GOOGLE_BEARER_TOKEN", "").strip()):
            config["bearer_token"] = token
        config["skip_signature"] = not emulator and not signs
        who = hash((signs, config.get("bearer_token"), signed_in))
        self._identity = "gcs", emulator, spec.bucket, project, who
        keyless = "GOOGLE_SKIP_SIGNATURE=true"
        account = None if signed_in is None else GoogleAccount(signed_in, retries, timeouts).token
        obstore = ObstoreBucket("GCSStore", spec.bucket, config, client, keyless, headers, account)
        config["base_url"] = obstore.origin
        unsigned = Anonymous(f"/{spec.bucket}/", headers)
        authorization: Authorization = BearerToken(obstore, unsigned) if signs else unsigned
        self._opened = Bucket(
            client=client,
            authorization=authorization,
            obstore=obstore,
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


def _explain(signs: bool, response: HttpResponse) -> str:
    """What an error says, and what may be the reason."""
    anonymous = "; the request was anonymous, as no credentials were found"
    denied = response.status in (401, 403)
    return code_of(response) + (anonymous if denied and not signs else "")


def _has_credentials() -> bool:
    """Whether obstore finds some without asking in vain for those of the machine."""
    if os.environ.get("GOOGLE_SKIP_SIGNATURE", "").lower() in ("1", "true", "on", "yes", "y"):
        return False
    if any(os.environ.get(name) for name in _VARIABLES):
        return True
    return is_made_by("Google") or Path(_WELL_KNOWN).expanduser().exists()


def _check_files() -> Path | None:
    """Check the file that names who asks, as far as one is named; its path if somebody signed in.

    Raises
    ------
    NotFoundError
        If it cannot be read.
    UnsupportedError
        If it is of a type that obstore does not know.
    """
    names = [os.environ[name] for name in _FILES if os.environ.get(name)]
    path = Path(names[0] if names else _WELL_KNOWN).expanduser()
    if not names and not path.exists():
        return None
    try:
        with path.open("rb") as file:
            type = json.loads(file.read(_ACCOUNT_NBYTES))["type"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not JSON with a type"
        raise NotFoundError(f"no credentials of Google in {quote(str(path))}: {why}") from None
    if type not in _TYPES:
        raise UnsupportedError(
            f"credentials of Google in {quote(str(path))} are of the type "
            f"{quote(str(type)[:50])}; expected one of {', '.join(_TYPES)}"
        )
    preferred = any(os.environ.get(name) for name in _PREFERRED)
    return path if type == "authorized_user" and not preferred else None


@dataclass(frozen=True, slots=True)
class GcsSpec:
    """What a spec says about a gcs kvstore.

    Attributes
    ----------
    bucket : str
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

    def from_json(self, members: Members) -> GcsSpec:
        bucket = members.take_str("bucket")
        try:
            _check_bucket(bucket)
        except MetadataError as error:
            raise members.error(error, "bucket") from None
        return GcsSpec(bucket, take_references(members, _RESOURCES))

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
