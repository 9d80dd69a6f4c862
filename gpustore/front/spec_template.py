"""Specs that are alike but for the path of their kvstore: the rest is parsed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from gpustore import registry
from gpustore.drivers.base import DriverKind, DriverSpec, OpenMode
from gpustore.errors import GpustoreError
from gpustore.index_space import IndexTransform
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context
from gpustore.strict_json.parsing import JsonValue, from_python
from gpustore.strict_json.spelled import REMEMBERED_NBYTES

Parts: TypeAlias = tuple[DriverSpec, IndexTransform | None, OpenMode, Context.Spec | None]
"""Driver, transform, open mode and context of a spec."""

_MOST: Final = 64
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_TEXT: Final = frozenset({str})


class _Template(NamedTuple):
    """Parts of specs that differ in the path of their kvstore alone.

    Attributes
    ----------
    driver : DriverSpec
        Spec without a kvstore.
    transform : IndexTransform or None
    mode : OpenMode
    kvstore : KvStore.Spec
        Kvstore with the path of the first of them.
    """

    driver: DriverSpec
    transform: IndexTransform | None
    mode: OpenMode
    kvstore: KvStore.Spec


_templates: dict[str, _Template] = {}
"""By the text of the spec with an empty path, which tells ``1``, ``1.0`` and ``true`` apart."""


def parse(json: object, parse_all: Callable[[JsonValue], Parts]) -> Parts:
    """Return the parts of a spec.

    Parameters
    ----------
    json : object
        JSON, or an object that stands for it in Python.
    parse_all : callable
        Parses the JSON of a spec.

    Raises
    ------
    GpustoreError, TypeError
        If the spec is wrong.
    """
    if not _is_flat(json):
        json = from_python(json)
    kvstore = json.get("kvstore") if isinstance(json, dict) else None
    path = kvstore.get("path") if isinstance(kvstore, dict) else None
    if isinstance(json, dict) and isinstance(kvstore, dict) and isinstance(path, str):
        text = repr({**json, "kvstore": {**kvstore, "path": ""}})
        template = _templates.get(text)
        # After an error, parsing the whole raises it with all that is wrong.
        try:
            if template is None and _may_differ(json, kvstore) and len(text) <= REMEMBERED_NBYTES:
                template = _template_of(json, kvstore, parse_all)
                if len(_templates) >= _MOST:
                    _templates.clear()
                _templates[text] = template
            if template is not None:
                driver = template.driver.updated(kvstore=template.kvstore.at(path))
                return driver, template.transform, template.mode, None
        except GpustoreError:
            pass
    return parse_all(json)


def _is_flat(json: object) -> bool:
    """Whether nothing but the kvstore of a spec needs conversion to JSON, and that has no objects
    within.
    """
    if type(json) is not dict or not _TEXT.issuperset(map(type, json)):
        return False
    kvstore = json.get("kvstore")
    if type(kvstore) is not dict or not _TEXT.issuperset(map(type, kvstore)):
        return False
    types = [*map(type, json.values())]
    types.remove(dict)
    return _PLAIN.issuperset(types) and _PLAIN.issuperset(map(type, kvstore.values()))


def _may_differ(json: dict[str, Any], kvstore: dict[str, Any]) -> bool:
    """Whether the path of the kvstore says nothing about the other parts of a spec."""
    if "path" in json or "context" in json or not isinstance(json.get("driver"), str):
        return False
    if "context" in kvstore or not isinstance(kvstore.get("driver"), str):
        return False
    kind: DriverKind | None = registry.find("drivers", json["driver"])
    store: Any = registry.find("kvstores", kvstore["driver"])
    return kind is not None and kind.shares_members and not hasattr(store, "joined")


def _template_of(
    json: dict[str, Any], kvstore: dict[str, Any], parse_all: Callable[[JsonValue], Parts]
) -> _Template:
    rest = {name: value for name, value in json.items() if name != "kvstore"}
    driver, transform, mode, _ = parse_all(rest)
    return _Template(driver, transform, mode, KvStore.Spec.from_json(kvstore))
