"""``gcs_user_project``: project that pays for requests to Google Cloud Storage.

JSON: ``{"project_id": "my-project"}``; by ``{}``, the default, the owner of the bucket pays. The
value is the identifier of the project or None.
"""

from __future__ import annotations

from gpustore.runtime.context import ResourceType
from gpustore.strict_json.parsing import JsonValue, Members


class _GcsUserProjectType(ResourceType[str | None, str | None]):
    id = "gcs_user_project"

    def parse(self, json: JsonValue) -> str | None:
        members = Members(json)
        project = members.take_str("project_id", None)
        members.finish()
        return project

    def default(self) -> str | None:
        return None

    def to_json(self, config: str | None, *, include_defaults: bool) -> JsonValue:
        return {} if config is None else {"project_id": config}

    def make(self, config: str | None) -> str | None:
        return config


RESOURCE = _GcsUserProjectType()
