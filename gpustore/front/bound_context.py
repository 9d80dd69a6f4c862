"""Context resources of specs that are bound to a context: :func:`bound`, :func:`defining`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpustore.drivers.base import METADATA_POOL, DriverSpec
from gpustore.drivers.options import RESOURCES, without_resources
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.spec import all_by_reference, unbound_json
from gpustore.runtime.context import Context, definitions


def bound(driver: DriverSpec, scope: Context) -> DriverSpec:
    """Return the spec of a driver with kvstores that have their resources in `scope` for good."""
    return _with_kvstores(driver, scope, lambda kvstore, scope: kvstore.update(context=scope))


def released(driver: DriverSpec) -> DriverSpec:
    """Return the spec with kvstores that define resources equal to those they were bound to."""
    return _with_kvstores(
        driver, Context(), lambda kvstore, scope: kvstore.update(unbind_context=True)
    )


def _with_kvstores(
    driver: DriverSpec, scope: Context, change: Callable[[KvStore.Spec, Context], None]
) -> DriverSpec:
    """Return the spec with a changed copy of each kvstore, which is called with its context."""
    if driver.base is not None:
        base = _with_kvstores(driver.base, _within(driver, scope), change)
        return _replaced(driver, base=base)
    if hasattr(driver, "layers"):
        layers = [
            layer._replace(driver=_with_kvstores(layer.driver, _within(layer, scope), change))
            for layer in driver.layers
        ]
        return _replaced(driver, layers=tuple(layers))
    if driver.kvstore is None:
        return driver
    kvstore = driver.kvstore.copy()
    change(kvstore, scope)
    return _replaced(driver, kvstore=kvstore)


def _within(part: Any, scope: Context) -> Context:
    """Return the context of the base of an adapter, or of a layer."""
    own: Context.Spec | None = getattr(part, "context", None)
    return scope if own is None else Context(own, scope)


def defining(driver: DriverSpec, scope: Context) -> tuple[DriverSpec, Context.Spec]:
    """Return the spec of a driver, and a context that defines the resources it has in `scope`.

    Raises
    ------
    MetadataError
        If the spec refers to a resource that `scope` does not define.
    """
    driver, found = defined(driver, scope)
    return driver, Context.Spec(definitions(found))


def defined(driver: DriverSpec, scope: Context) -> tuple[DriverSpec, dict[str, Context.Resource]]:
    """Return the spec of a driver, and the resources it has in `scope`; see :func:`defining`."""
    found: dict[str, Context.Resource] = {}
    return _defining(driver, scope, found), found


def _defining(driver: DriverSpec, scope: Context, found: dict[str, Context.Resource]) -> DriverSpec:
    """Return the spec with what no context can define, and add what one can define to `found`."""
    if driver.base is not None:
        if getattr(driver, "context", None) is None:
            return _replaced(driver, base=_defining(driver.base, scope, found))
        base, own = defining(driver.base, _within(driver, scope))
        return _replaced(driver, base=base, context=own)
    if hasattr(driver, "layers"):
        layers = []
        for layer in driver.layers:
            if layer.context is None:
                layers.append(layer._replace(driver=_defining(layer.driver, scope, found)))
            else:
                inner, own = defining(layer.driver, _within(layer, scope))
                layers.append(layer._replace(driver=inner, context=own))
        return _replaced(driver, layers=tuple(layers))
    options, names = _references(driver)
    for name in names:
        reference = options.get(name, name)
        if isinstance(reference, str):
            found.setdefault(reference, scope[reference])
    kvstore = driver.kvstore
    if kvstore is None or not kvstore.has_json:
        return driver
    opened = kvstore.open_driver(scope)
    for name, resource in all_by_reference(opened).items():
        found.setdefault(name, resource)
    return _replaced(driver, kvstore=KvStore(opened, kvstore.path).spec_within(found))


def shown(json: dict[str, Any], driver: DriverSpec, scope: Context) -> dict[str, Any]:
    """Return the JSON of a spec with lists of the resources it has in `scope`, which no spec may
    have: TensorStore prints resources in use so.
    """
    _, found = defined(driver, scope)
    return _shown(json, driver, scope, found)


def _shown(
    json: dict[str, Any], driver: DriverSpec, scope: Context, found: dict[str, Context.Resource]
) -> dict[str, Any]:
    if driver.base is not None:
        return {**json, "base": _shown_within(json["base"], driver, driver.base, scope, found)}
    if hasattr(driver, "layers"):
        layers = zip(json["layers"], driver.layers, strict=True)
        return {
            **json,
            "layers": [_shown_within(one, part, part.driver, scope, found) for one, part in layers],
        }
    options, names = _references(driver)
    known = definitions(found)
    json = dict(json)
    for name in names:
        reference = options.get(name, name)
        if not isinstance(reference, str) or reference in known:
            json[name] = [reference]
    kvstore = driver.kvstore
    if kvstore is not None and kvstore.has_json:
        opened = kvstore.open_driver(scope)
        json["kvstore"] = unbound_json(opened, kvstore.path, found, shows_bound=True)
    return json


def _shown_within(
    json: Any, part: Any, driver: DriverSpec, scope: Context, found: dict[str, Context.Resource]
) -> dict[str, Any]:
    """Return the JSON of the base of an adapter, or of a layer."""
    if getattr(part, "context", None) is None:
        return _shown(json, driver, scope, found)
    return shown(json, driver, _within(part, scope))


def _references(driver: DriverSpec) -> tuple[Mapping[str, Any], Sequence[str]]:
    """Return the options of a driver, and the names of those that are context resources."""
    options = getattr(driver, "references" if driver.id == "auto" else "options", {})
    names = ("data_copy_concurrency",) if driver.kvstore is None else RESOURCES
    return options, (*names, *(name for name in options if name == METADATA_POOL))


def stripped(driver: DriverSpec) -> DriverSpec:
    """Return the spec of a driver with the default context resources."""
    changed: dict[str, Any] = {}
    if driver.base is not None:
        changed["base"] = stripped(driver.base)
        if getattr(driver, "context", None) is not None:
            changed["context"] = None
    elif hasattr(driver, "layers"):
        changed["layers"] = tuple(
            layer._replace(driver=stripped(layer.driver), context=None) for layer in driver.layers
        )
    else:
        if driver.id == "auto":
            changed["references"] = {}
        elif hasattr(driver, "options"):
            changed["options"] = without_resources(driver.options)
        if driver.kvstore is not None:
            changed["kvstore"] = driver.kvstore.without_context()
    return _replaced(driver, **changed)


def _replaced(driver: DriverSpec, **changes: Any) -> DriverSpec:
    given: Any = driver
    changed: DriverSpec = replace(given, **changes)
    return changed
