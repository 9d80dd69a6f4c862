"""Keys for S3, from environment variables or by botocore.

botocore follows profiles, roles, single sign-on, programs, web identity, containers and machines;
its requests are sent by :mod:`~gpustore.kvstores.buckets.credential_service`. It is imported only
if the environment, a file or the machine hints at credentials that it can find.

Source: AWS SDKs and Tools reference guide, "Standardized credential providers".
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
from typing import Any, Final

from gpustore import registry
from gpustore.errors import NotFoundError, StoreIOError
from gpustore.kvstores.buckets.credential_service import CredentialServices
from gpustore.kvstores.buckets.machine import is_made_by
from gpustore.kvstores.s3.address import USUAL_REGION
from gpustore.kvstores.s3.signature import AwsKeys
from gpustore.resources.aws_credentials import AwsCredentialsSource
from gpustore.runtime.executor import reset_after_fork
from gpustore.strict_json.parsing import quote

_HINTS: Final = (
    *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    *("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
)
_FILES: Final = (
    ("credentials_file", "AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    ("config_file", "AWS_CONFIG_FILE", "~/.aws/config"),
)
_KEY: Final = re.compile("[!-~]{1,16384}")
_PROGRAM_S: Final = 60.0
"""Seconds after which a ``credential_process`` is ended."""


class AwsCredentials:
    """Credentials of one opened s3 kvstore. Thread-safe; a forked child finds them again.

    Parameters
    ----------
    source : AwsCredentialsSource
        Value of the context resource ``aws_credentials``.
    services : CredentialServices
        Sends the requests of botocore.
    region : str
        Region whose services are asked; empty for that of the profile.

    Attributes
    ----------
    region : str
        Region in `region` or the profile; empty if neither has one.
    who : int
        Hash of all settings that select the credentials.

    Raises
    ------
    NotFoundError
        If the environment has no keys, the profile does not exist, or a file cannot be parsed.
    UnsupportedError
        If botocore is needed and not installed.
    """

    def __init__(
        self, source: AwsCredentialsSource, services: CredentialServices, region: str
    ) -> None:
        self._source = source
        self._services = services
        self._lock = threading.Lock()
        self._found: Any = None
        self._keys: AwsKeys | None = None
        kind = source.type
        if kind == "environment" or (kind == "default" and os.environ.get("AWS_ACCESS_KEY_ID")):
            self._keys = _environment_keys()
        self._on_machine = is_made_by("Amazon EC2") and not _is_machine_disabled()
        hinted = self._on_machine or any(os.environ.get(name) for name in _HINTS)
        hinted = hinted or _has_files(source)
        self._is_asked = kind not in ("anonymous", "environment") and self._keys is None
        self._is_asked = self._is_asked and (hinted or kind != "default")
        configured: Any = {}
        if self._is_asked:
            services.require("botocore")
            configured = self._profile()
            if not configured and (kind == "profile" or (kind == "default" and self._name())):
                name = quote(self._name() or "default")
                raise NotFoundError(f"aws_credentials: there are no keys in profile {name}")
        elif kind == "default" and _has_files(source) and registry.is_installed("botocore"):
            configured = self._profile()
        said = configured.get("region") if kind in ("default", "profile") else None
        self.region = region or (said if isinstance(said, str) else "")
        variables = sorted((n, v) for n, v in os.environ.items() if n.startswith("AWS_"))
        self.who = hash((self._keys, repr(configured), repr(variables)))
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Forget the credentials of the parent: a lock in them may be held."""
        self._lock = threading.Lock()
        self._found = None

    def keys(self) -> AwsKeys | None:
        """Return the present keys; None if requests are anonymous.

        Raises
        ------
        StoreIOError
            If keys are missing or cannot be fetched.
        """
        return self._services.ask("botocore", self._present) if self._is_asked else self._keys

    def _present(self) -> AwsKeys | None:
        with self._lock:
            if self._found is None:
                self._found = self._find() or False
            found = self._found
        if found:
            frozen = found.get_frozen_credentials()
            return _checked(frozen.access_key, frozen.secret_key, frozen.token)
        if self._source.type != "default" or self._on_machine:
            raise LookupError
        return None

    # ------------------------------------------------------------------ botocore

    def _session(self) -> Any:
        """Make a session with the files and profile of the source; it sends nothing itself."""
        import botocore.config
        import botocore.session

        source = self._source
        session = botocore.session.Session(profile=source.profile or None)
        for name, _, _ in _FILES:
            if getattr(source, name):
                session.set_config_variable(name, getattr(source, name))
        # The client of gpustore retries, and the mode "auto" would ask the metadata service.
        config = botocore.config.Config(retries={"total_max_attempts": 1}, defaults_mode="legacy")
        session.set_default_client_config(config)
        session.register("before-send", self._answer)
        return session

    def _name(self) -> str:
        """Return the name of the profile; empty if none is named."""
        return str(self._session().get_config_variable("profile") or "")

    def _profile(self) -> Any:
        """Return the settings of the profile in the files; empty if it does not exist."""
        from botocore.exceptions import ConfigParseError, ProfileNotFound

        try:
            return self._session().get_scoped_config()
        except ProfileNotFound:
            return {}
        except (ConfigParseError, UnicodeDecodeError) as error:
            path = quote(str(getattr(error, "kwargs", {}).get("path", "")))
        # The text of the error may hold a line of the file.
        raise NotFoundError(f"aws_credentials: local file {path} cannot be read as profiles")

    def _find(self) -> Any:
        """Ask the providers in botocore's order; None if none has credentials."""
        from botocore.credentials import CredentialResolver

        return CredentialResolver(self._providers()).load_credentials()

    def _providers(self) -> list[Any]:
        from botocore import credentials, utils

        sender, source = self, self._source

        class Machine(utils.InstanceMetadataFetcher):  # type: ignore[misc]
            def __init__(self, session: Any) -> None:
                names = ("ec2_metadata_service_endpoint", "ec2_metadata_v1_disabled")
                config = {name: session.get_config_variable(name) for name in names}
                mode = utils.resolve_imds_endpoint_mode(session)
                config["ec2_metadata_service_endpoint_mode"] = mode
                super().__init__(config=config)
                self._session = sender

        class Profiles(credentials.ProfileProviderBuilder):  # type: ignore[misc]
            def providers(self, profile_name: str, disable_env_vars: bool = False) -> list[Any]:
                program = credentials.ProcessProvider(
                    profile_name, lambda: session.full_config, popen=_Program
                )
                found = super().providers(profile_name, disable_env_vars)
                return [program if one.METHOD == program.METHOD else one for one in found]

        session = self._session()
        environ = dict(os.environ)
        if source.type == "ecs" and source.endpoint:
            environ = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": source.endpoint}
            if source.auth_token_file:
                environ["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = source.auth_token_file
        fetcher = utils.ContainerMetadataFetcher(session=self, sleep=lambda seconds: None)
        container = credentials.ContainerProvider(environ, fetcher)
        machine = credentials.InstanceMetadataProvider(Machine(session))
        if source.type in ("ecs", "imds"):
            return [container if source.type == "ecs" else machine]
        profile = session.get_config_variable("profile") or "default"
        region = self.region or USUAL_REGION
        cache: dict[str, Any] = {}
        builder = Profiles(session, cache=cache, region_name=region)
        sources = [credentials.EnvProvider(), container, machine]
        role = credentials.AssumeRoleProvider(
            load_config=lambda: session.full_config,
            client_creator=lambda name, **kwargs: session.create_client(
                name, **{"region_name": region, **kwargs}
            ),
            cache=cache,
            profile_name=profile,
            prompter=_nobody,
            credential_sourcer=credentials.CanonicalNameCredentialSourcer(sources),
            profile_provider_builder=builder,
        )
        named = source.type == "profile"
        found = [role, *builder.providers(profile, disable_env_vars=named)]
        if not named:
            found += [container, *([machine] if self._on_machine else [])]
        return found

    def send(self, request: Any) -> Any:
        """Send a request of botocore and return its response as an ``AWSResponse``."""
        from botocore.awsrequest import AWSResponse

        response = self._services.send(
            request.method, request.url, dict(request.headers), request.body
        )
        answer = AWSResponse(request.url, response.status, response.headers, None)
        answer._content = bytes(response.body)
        return answer

    def _answer(self, request: Any, **kwargs: Any) -> Any:
        """Send a request of botocore's event ``before-send``."""
        return self.send(request)


class _Program(subprocess.Popen[bytes]):
    """A ``credential_process`` with bounded running time, whose standard error is dropped."""

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        try:
            return super().communicate(input, _PROGRAM_S)[0], b""
        except subprocess.TimeoutExpired:
            self.kill()
            super().communicate()
            raise StoreIOError(
                f"the program that credential_process names has not ended within {_PROGRAM_S:g} s",
                status="DEADLINE_EXCEEDED",
            ) from None


def _nobody(prompt: str) -> str:
    """Refuse botocore's prompt for the code of an MFA device."""
    raise StoreIOError(
        "the profile wants the code of a device (mfa_serial), which cannot be asked for",
        status="FAILED_PRECONDITION",
    )


def _environment_keys() -> AwsKeys:
    """Read keys from the environment, once for a store; NotFoundError if it has none."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    access, secret, token = (os.environ.get(name, "").strip() for name in names)
    if not access or not secret:
        raise NotFoundError(
            "aws_credentials: there are none in the environment variables "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    return _checked(access, secret, token)


def _checked(access: Any, secret: Any, token: Any) -> AwsKeys:
    """Make keys; StoreIOError unless they are visible ASCII, as header fields require."""
    keys = AwsKeys(access, secret, token or "")
    if not all(
        isinstance(one, str) and _KEY.fullmatch(one) for one in (access, secret, token or "x")
    ):
        raise StoreIOError("a key is not visible ASCII", status="FAILED_PRECONDITION")
    return keys


def _has_files(source: AwsCredentialsSource) -> bool:
    """Whether one of the files of profiles exists."""
    paths = [
        getattr(source, name) or os.environ.get(variable) or usual
        for name, variable, usual in _FILES
    ]
    # pathlib raises errors where there is no home, or another user's: then there are no files.
    return any(os.path.isfile(os.path.expanduser(path)) for path in paths)  # noqa: PTH111, PTH113


def _is_machine_disabled() -> bool:
    return os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
