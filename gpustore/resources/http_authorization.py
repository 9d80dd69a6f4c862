"""``http_authorization``: source of the http kvstore's authorization. The resource holds no secret.

JSON: ``{"environment": "NAME"}``, a variable of the environment, or ``{"file": "PATH"}``, a file
of one line; its content is the whole header field ``Authorization``, for instance ``Bearer abc``.
With ``"as": "X-Api-Key"`` it is that field instead, and with ``"as": "query"`` text that is added
to the query of each request, for instance ``sig=abc``. ``{}``, the default, sends none. TensorStore
has no such resource: it takes secrets in the ``headers`` of a spec and in URLs.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpustore.errors import MetadataError, NotFoundError
from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members, quote

_MAX_NBYTES = 16384
_NAME = re.compile("[!-<>-~]*")
_USUAL = "Authorization"
_FIELD = re.compile("[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")


@dataclass(frozen=True, slots=True)
class AuthorizationSource:
    """Source of an authorization: an environment variable or a file.

    Attributes
    ----------
    environment, file : str
        Name of the variable and path of the file; at most one is not empty.
    sent_as : str
        Name of the header field, or ``"query"``.
    """

    environment: str = ""
    file: str = ""
    sent_as: str = _USUAL

    def read(self) -> str:
        """Return the current text of the field or query, empty without a variable or file.

        Raises
        ------
        NotFoundError
            If the variable or file does not exist, or holds no line of visible ASCII.
        """
        if self.environment:
            where = f"environment variable {self.environment}"
            value = os.environ.get(self.environment, "")
        elif self.file:
            where = f"local file {quote(self.file)}"
            try:
                with Path(self.file).open("rb") as stream:
                    value = stream.read(_MAX_NBYTES).decode("ascii", "replace")
            except (OSError, ValueError):  # ValueError: a path with NUL.
                value = ""
        else:
            return ""
        value = value.strip()
        if not value or not (value.isascii() and value.isprintable()):
            raise NotFoundError(f"http_authorization: {where} holds no authorization")
        return value


class _HttpAuthorizationType(ResourceType[AuthorizationSource, AuthorizationSource]):
    id = "http_authorization"

    may_be_secret = True

    def parse(self, json: JsonValue) -> AuthorizationSource:
        if not isinstance(json, dict):
            raise MetadataError('Expected object with "environment" or "file", not the secret')
        members = Members(json)
        source = AuthorizationSource(
            members.take_str("environment", ""),
            members.take_str("file", ""),
            members.take_str("as", _USUAL),
        )
        if not _FIELD.fullmatch(source.sent_as):
            raise members.error('expected "query" or the name of a header field', "as")
        members.finish()
        if source.environment and source.file:
            raise MetadataError('Expected only one of "environment" and "file"')
        if not _NAME.fullmatch(source.environment):
            raise MetadataError('Expected the name of a variable as "environment", not its value')
        return source

    def default(self) -> AuthorizationSource:
        return AuthorizationSource()

    def to_json(self, config: AuthorizationSource, *, include_defaults: bool) -> JsonValue:
        members = {"environment": config.environment, "file": config.file}
        members["as"] = "" if config.sent_as == _USUAL else config.sent_as
        return {name: value for name, value in members.items() if value}

    def make(self, config: AuthorizationSource) -> AuthorizationSource:
        return config


RESOURCE = _HttpAuthorizationType()
