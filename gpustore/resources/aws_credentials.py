"""``aws_credentials``: source of the s3 kvstore's credentials. The resource holds none itself.

JSON: an object with a member ``type``:

===============  ================================================================================
``default``      the first of the others that has credentials; without any, no signature (default)
``anonymous``    requests are not signed
``environment``  ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``
``profile``      a ``profile`` of ``credentials_file`` and ``config_file``, by default
                 ``AWS_PROFILE`` in ``~/.aws/credentials`` and ``~/.aws/config``: keys, roles,
                 single sign-on, programs
``ecs``          the service of a container: ``endpoint`` and ``auth_token_file``, or the
                 environment variables ``AWS_CONTAINER_*``
``imds``         the metadata service of a virtual machine
===============  ================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from gpustore.errors import MetadataError, prefixing
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members, expect_str

_TYPES = ("default", "anonymous", "environment", "imds", "profile", "ecs")
_MEMBERS = {
    "default": ("profile",),
    "profile": ("profile", "config_file", "credentials_file"),
    "ecs": ("endpoint", "auth_token_file"),
}


@dataclass(frozen=True, slots=True)
class AwsCredentialsSource:
    """Source of AWS credentials.

    Attributes
    ----------
    type : str
        One of the types in the table of this module.
    profile, config_file, credentials_file, endpoint, auth_token_file : str
        Members of the JSON; empty where they are missing.
    """

    type: str = "default"
    profile: str = ""
    config_file: str = ""
    credentials_file: str = ""
    endpoint: str = ""
    auth_token_file: str = ""


class _AwsCredentialsType(ResourceType[AwsCredentialsSource, AwsCredentialsSource]):
    id = "aws_credentials"
    is_shared = False

    def parse(self, json: JsonValue) -> AwsCredentialsSource:
        members = Members(json)
        with prefixing("Failed to parse AWS credentials spec"):
            kind = members.take_with("type", expect_str)
            if kind not in _TYPES:
                raise MetadataError(
                    f"Failed to parse tag name, expected one of: {', '.join(_TYPES)}, but "
                    f"received: {kind}"
                )
        found = {name: members.take_str(name, "") for name in _MEMBERS.get(kind, ())}
        members.finish()
        if found.get("auth_token_file") and not found["endpoint"]:
            raise MetadataError(
                "Failed to parse AWS credentials spec: EcsRole must specify an endpoint when "
                "auth_token_file is specified."
            )
        return AwsCredentialsSource(kind, **found)

    def default(self) -> AwsCredentialsSource:
        return AwsCredentialsSource()

    def to_json(self, config: AwsCredentialsSource, *, include_defaults: bool) -> JsonValue:
        found = {name: getattr(config, name) for name in _MEMBERS.get(config.type, ())}
        return {"type": config.type, **{name: value for name, value in found.items() if value}}

    def make(self, config: AwsCredentialsSource) -> AwsCredentialsSource:
        return config


RESOURCE = _AwsCredentialsType()
