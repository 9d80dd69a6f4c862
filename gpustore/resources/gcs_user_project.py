"""``gcs_user_project``: project that pays for requests to Google Cloud Storage.

JSON: ``{"project_id": "my-project"}``; by ``{}``, the default, the owner of the bucket pays. The
value is the identifier of the project or None.
"""

from __future__ import annotations

import re

from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members

_PROJECT = re.compile("[!-~]*")
"""Identifiers that a header field can hold."""


class _GcsUserProjectType(ResourceType[str | None, str | None]):
    id = "gcs_user_project"
    is_shared = False

    def parse(self, json: JsonValue) -> str | None:
        members = Members(json)
        project = members.take_str("project_id", None)
        if project is not None and not _PROJECT.fullmatch(project):
            raise members.error("expected the identifier of a project", "project_id")
        members.finish()
        return project

    def default(self) -> str | None:
        return None

    def to_json(self, config: str | None, *, include_defaults: bool) -> JsonValue:
        return {} if config is None else {"project_id": config}

    def make(self, config: str | None) -> str | None:
        return config


RESOURCE = _GcsUserProjectType()
