"""The ``auto`` driver: opens what is there.

A directory is detected by the files in it: ``.zarray`` is Zarr v2, ``zarr.json`` Zarr v3. All are
looked for in one batch. Exactly one format must be found; the opened store's spec names it, so it
re-opens without detection.

JSON example::

    {"driver": "auto", "kvstore": "file:///data/x.zarr/"}

Source: TensorStore's auto driver page, single-step detection of directory formats.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gpustore import registry
from gpustore._json import JsonValue, Members
from gpustore.drivers.base import (
    Driver,
    DriverSpec,
    Opening,
    OpenRequest,
    open_kvstore,
    schema_members,
)
from gpustore.errors import MetadataError, MismatchError, prefixing
from gpustore.executor import Executor
from gpustore.index_space import IndexTransform
from gpustore.kvstore import KvStore
from gpustore.kvstores.base import ReadRequest, ReadState
from gpustore.schema import Schema

__all__ = ["DRIVER", "AutoSpec"]

_DIRECTORY_FORMATS = {".zarray": "zarr2", "zarr.json": "zarr3"}
"""File in a directory -> driver it stands for."""


@dataclass(frozen=True)
class AutoSpec:
    """Something to be opened, format unknown."""

    kvstore: KvStore.Spec | None
    constraints: Schema
    options: tuple[tuple[str, Any], ...] = ()

    id = "auto"

    @property
    def schema(self) -> Schema:
        """What the caller said."""
        return self.constraints

    @property
    def url(self) -> str:
        if self.kvstore is None:
            raise MetadataError("Invalid kvstore spec")
        return f"{self.kvstore.url}|auto:"

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Members of the driver."""
        members: dict[str, JsonValue] = {}
        if self.kvstore is not None:
            members["kvstore"] = self.kvstore.to_json(include_defaults)
        members.update(schema_members(self.constraints))
        return members

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """The spec with more constraints, for the driver that will be found."""
        spec = self
        if kvstore is not None:
            if self.kvstore is not None:
                raise MetadataError('"kvstore" is already specified')
            spec = replace(spec, kvstore=kvstore)
        if schema is not None:
            merged = self.constraints.copy()
            merged.update(schema=schema)
            spec = replace(spec, constraints=merged)
        return replace(spec, options=(*spec.options, *options.items()))

    def open(self, request: OpenRequest) -> Opening:
        """Detect the format, then open it."""
        mode = request.mode
        if mode.delete_existing or mode.assumes or (mode.create and not mode.open):
            raise MetadataError(
                "create mode not compatible with format auto-detection; name the format after the "
                'path, e.g. "x.zarr|zarr3:" or "x.zarr|zarr2:"'
            )
        if self.kvstore is None:
            raise MetadataError('Error opening "auto" driver: "kvstore" must be specified')
        store = open_kvstore(self.kvstore, request.context)
        executor: Executor = request.context.resource("data_copy_concurrency").value
        spec = self.kvstore

        def run() -> tuple[Driver, IndexTransform]:
            found: DriverSpec = registry.find("drivers", _detect(store)).from_url(spec, "")
            with prefixing('Error opening "auto" driver'):
                found = found.updated(schema=self.constraints, **dict(self.options))
                return found.open(request).run()

        return Opening(executor, run, may_defer=store.driver.is_local)


def _detect(store: KvStore) -> str:
    """The driver of what lies at the store's path.

    Raises
    ------
    MismatchError
        If there is no known format, or more than one; says what was looked for.
    """
    path = store.path
    directory = path if not path or path.endswith("/") else path + "/"
    keys = [directory + name for name in _DIRECTORY_FORMATS]
    columns = store.driver.read_many(ReadRequest(keys, start=[0] * len(keys), stop=[0] * len(keys)))
    for error in columns.error.values():
        raise error.prefixed('Error opening "auto" driver')
    candidates = sorted(
        driver
        for driver, state in zip(_DIRECTORY_FORMATS.values(), columns.state)
        if state is ReadState.VALUE
    )
    where = store.driver.describe(path)
    if not candidates:
        names = " or ".join(f'"{name}"' for name in _DIRECTORY_FORMATS)
        raise MismatchError(
            f'Error opening "auto" driver: Failed to detect format for {where}: '
            f"looked for {names} in it and found neither",
            key=path,
        )
    if len(candidates) > 1:
        raise MismatchError(
            f'Error opening "auto" driver: Multiple possible formats detected for {where}: '
            f'{{{", ".join(candidates)}}}; name one, e.g. "...|{candidates[-1]}:"',
            key=path,
        )
    return candidates[0]


class _AutoKind:
    id = "auto"
    is_adapter = False

    def from_json(self, members: Members, schema: Schema) -> AutoSpec:
        """Take ``kvstore``."""
        return AutoSpec(members.take_with("kvstore", KvStore.Spec, None), schema)

    def from_url(self, base: KvStore.Spec, path: str) -> AutoSpec:
        """``<kvstore>|auto:``."""
        if path:
            raise MetadataError(
                f'Invalid TensorStore URL component "auto:{path}": Path not supported'
            )
        return AutoSpec(base, Schema())

    def merge_codec(self, a: JsonValue, b: JsonValue) -> JsonValue:
        """Unknown before the format is."""
        raise MetadataError('driver "auto" has no codec')


DRIVER = _AutoKind()
