"""The keys in a profile of ``~/.aws``, which obstore does not read.

Only keys are taken: what a profile says about roles, programs and signing in is not followed.

Source: https://docs.aws.amazon.com/sdkref/latest/guide/file-format.html.
"""

from __future__ import annotations

import configparser
import os
from pathlib import Path

from gpustore.errors import NotFoundError
from gpustore.resources.aws_credentials import AwsCredentialsSource
from gpustore.strict_json.parsing import quote

_KEYS = ("access_key_id", "secret_access_key", "session_token")


def profile_name(source: AwsCredentialsSource) -> str:
    """The profile that is meant."""
    return source.profile or os.environ.get("AWS_PROFILE", "") or "default"


def profile_keys(source: AwsCredentialsSource) -> dict[str, str]:
    """Keys by obstore's names; empty if the profile has none."""
    for section in _sections(source):
        keys = {name: section.get(f"aws_{name}", "").strip() for name in _KEYS}
        if keys["access_key_id"] and keys["secret_access_key"]:
            return {name: value for name, value in keys.items() if value}
    return {}


def region_of(source: AwsCredentialsSource) -> str:
    """The region that the profile says, empty if it says none."""
    if source.type not in ("default", "profile"):
        return ""
    return next((one["region"] for one in _sections(source) if one.get("region")), "")


def _sections(source: AwsCredentialsSource) -> list[dict[str, str]]:
    """What the two files say about the profile."""
    name = profile_name(source)
    titled = name if name == "default" else f"profile {name}"
    files = (
        (source.credentials_file, "AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
        (source.config_file, "AWS_CONFIG_FILE", "config", titled),
    )
    found = []
    for given, variable, usual, title in files:
        path = Path(given or os.environ.get(variable, "") or f"~/.aws/{usual}").expanduser()
        parser = configparser.RawConfigParser(strict=False, default_section="")
        try:
            parser.read_string(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        except (OSError, ValueError, configparser.Error):
            raise NotFoundError(
                f"aws_credentials: local file {quote(str(path))} cannot be read as profiles"
            ) from None  # The text of the error may hold a line of it.
        if parser.has_section(title):
            found.append(dict(parser[title]))
    return found
