"""Credentials for Google Cloud Storage, found by google-auth.

Application default credentials are in a file that the environment or ``gcloud`` names (service
accounts, signed-in users, external accounts, impersonation), or come from the metadata service of a
machine of Google. Requests of google-auth are sent by
:mod:`~gpustore.kvstores.buckets.credential_service`. The package is imported when it is needed.

Source: Google Cloud documentation, "How Application Default Credentials works".
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpustore.errors import NotFoundError, StoreIOError, UnsupportedError
from gpustore.kvstores.buckets.credential_service import CredentialServices
from gpustore.kvstores.buckets.machine import is_made_by
from gpustore.runtime.executor import reset_after_fork
from gpustore.strict_json.parsing import quote

_SCOPES: Final = ("https://www.googleapis.com/auth/devstorage.full_control",)
_MACHINE: Final = (
    *("GCE_METADATA_HOST", "GCE_METADATA_ROOT"),
    # Machines of Google that hide their firmware.
    *("K_SERVICE", "CLOUD_RUN_JOB", "FUNCTION_TARGET", "GAE_ENV"),
)
_TYPES: Final = (
    *("authorized_user", "service_account", "external_account"),
    *("external_account_authorized_user", "impersonated_service_account"),
)
_FILE_NBYTES: Final = 1 << 20
_TOKEN: Final = re.compile("[!-~]{1,16384}")
VARIABLES: Final = (
    *("GOOGLE_BEARER_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SKIP_SIGNATURE"),
    *(*_MACHINE, "CLOUDSDK_CONFIG", "GOOGLE_CLOUD_QUOTA_PROJECT"),
)
"""Environment variables that select the credentials."""


class GoogleCredentials:
    """Credentials of one opened gcs kvstore. Thread-safe; a forked child finds them again.

    Parameters
    ----------
    services : CredentialServices
        Sends the requests of google-auth.

    Attributes
    ----------
    is_anonymous : bool
        Whether requests carry no credentials.
    who : int
        Hash of all settings that select the credentials.

    Raises
    ------
    NotFoundError
        If the file of credentials cannot be read.
    UnsupportedError
        If the file is of an unknown type, or google-auth is needed and not installed.
    """

    def __init__(self, services: CredentialServices) -> None:
        self._services = services
        self._lock = threading.Lock()
        self._found: Any = None
        self._token = os.environ.get("GOOGLE_BEARER_TOKEN", "")
        skip = os.environ.get("GOOGLE_SKIP_SIGNATURE", "").lower()
        self._file: dict[str, Any] = {}
        self.is_anonymous = skip in ("1", "true", "on", "yes", "y")
        if not self.is_anonymous and not self._token:
            self._read_file()
            on_machine = is_made_by("Google") or any(os.environ.get(name) for name in _MACHINE)
            self.is_anonymous = not self._file and not on_machine
            if not self.is_anonymous:
                services.require("google.auth")
        variables = [os.environ.get(name) for name in VARIABLES]
        self.who = hash((self.is_anonymous, json.dumps(self._file), *variables))
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Forget the credentials of the parent: a lock in them may be held."""
        self._lock = threading.Lock()
        self._found = None

    def fields(self) -> dict[str, str]:
        """Make the header fields that hold the credentials; none if anonymous.

        Raises
        ------
        StoreIOError
            If the token is missing or cannot be fetched.
        """
        if self.is_anonymous:
            return {}
        if self._token:
            token = self._token.strip()
            return self._services.ask(
                "GOOGLE_BEARER_TOKEN", lambda: _checked({"Authorization": f"Bearer {token}"})
            )
        return self._services.ask("google.auth", self._present)

    def _present(self) -> dict[str, str]:
        from google.auth.credentials import TokenState

        lock = self._lock
        with lock:
            if self._found is None:
                self._found = self._find()
            found = self._found
        state = found.token_state
        # A token that ends in some minutes is renewed by one thread, and used by the others.
        if state is not TokenState.FRESH and lock.acquire(blocking=state is TokenState.INVALID):
            try:
                if found.token_state is not TokenState.FRESH:
                    found.refresh(self._send)
            except Exception:
                if found.token_state is TokenState.INVALID:
                    raise
            finally:
                lock.release()
        fields: dict[str, str] = {}
        found.apply(fields)
        return _checked(fields)

    def _read_file(self) -> None:
        """Read the file of application default credentials, if there is one."""
        named = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS", "")
        folder = os.environ.get("CLOUDSDK_CONFIG") or "~/.config/gcloud"
        # pathlib raises errors where there is no home, or another user's: then there is no file.
        path = os.path.expanduser(named or f"{folder}/application_default_credentials.json")  # noqa: PTH111
        if not named and not os.path.exists(path):  # noqa: PTH110
            return
        try:
            with Path(path).open("rb") as file:
                found = json.loads(file.read(_FILE_NBYTES))
            type = found["type"]
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is not JSON with a type"
            raise NotFoundError(f"no credentials of Google in {quote(path)}: {why}") from None
        if type not in _TYPES:
            raise UnsupportedError(
                f"credentials of Google in {quote(path)} are of the type "
                f"{quote(str(type)[:50])}; expected one of {', '.join(_TYPES)}"
            )
        self._file = found

    # ------------------------------------------------------------------ google-auth

    def _find(self) -> Any:
        """Make google-auth's credentials, which have no token yet."""
        found = self._of_file() if self._file else self._of_machine()
        if isinstance(quota := os.environ.get("GOOGLE_CLOUD_QUOTA_PROJECT"), str) and quota:
            found = found.with_quota_project(quota)
        return found

    def _of_machine(self) -> Any:
        from google.auth.compute_engine import Credentials

        return Credentials(scopes=_SCOPES)

    def _of_file(self) -> Any:
        info = self._file
        type = info["type"]
        if type == "service_account":
            from google.oauth2.service_account import Credentials as Account

            account = Account.from_service_account_info(info, scopes=_SCOPES)
            return account.with_always_use_jwt_access(True)  # Signs its tokens itself.
        if type == "authorized_user":
            from google.oauth2.credentials import Credentials as User

            return User.from_authorized_user_info(info)
        if type == "impersonated_service_account":
            from google.auth.impersonated_credentials import Credentials as Impersonated

            return Impersonated.from_impersonated_service_account_info(info, scopes=_SCOPES)
        if type == "external_account_authorized_user":
            from google.auth.external_account_authorized_user import Credentials as External

            return External.from_info(info)
        from google.auth import aws, identity_pool, pluggable

        source = info.get("credential_source") or {}
        kind: Any = identity_pool
        if info.get("subject_token_type") == "urn:ietf:params:aws:token-type:aws4_request":
            kind = aws
        elif "executable" in source:
            kind = pluggable
        return kind.Credentials.from_info(info, scopes=_SCOPES)

    def _send(
        self,
        url: str,
        method: str = "GET",
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> _Answer:
        """Send a request of google-auth; the timeouts are those of the store."""
        return _Answer(self._services.send(method, url, headers or {}, body))


class _Answer:
    """Response with the attributes of google-auth's ``transport.Response``."""

    def __init__(self, response: Any) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self.data = bytes(response.body)


def _checked(fields: dict[str, str]) -> dict[str, str]:
    """Return `fields`; StoreIOError unless they and their token are visible ASCII."""
    token = fields.get("Authorization", fields.get("authorization", "")).removeprefix("Bearer ")
    others = "".join(value for name, value in fields.items() if name.lower() != "authorization")
    if not others.isascii() or not others.isprintable():
        raise StoreIOError("a field is not visible ASCII", status="FAILED_PRECONDITION")
    if not _TOKEN.fullmatch(token):
        raise StoreIOError("the token is empty or not visible ASCII", status="FAILED_PRECONDITION")
    return fields
