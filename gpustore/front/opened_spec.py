"""Specs of opened stores: :func:`opened_spec`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from gpustore.drivers.base import METADATA_POOL, Driver, DriverSpec, latest_of, placed_again
from gpustore.front.spec import Spec
from gpustore.index_space import IndexTransform
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context, definitions

if TYPE_CHECKING:
    from gpustore.drivers.array import ArrayDriver


def opened_spec(
    driver: Driver,
    transform: IndexTransform,
    *,
    minimal: bool,
    retain_context: bool,
    unbind_context: bool,
) -> Spec:
    """Return the spec that opens a driver again.

    Parameters
    ----------
    driver : Driver
    transform : IndexTransform
        Transform from the domain of the spec to the driver's.
    minimal : bool
        Leave out the metadata.
    retain_context : bool
        Use the same kvstore and the same context resources when the spec is opened.
    unbind_context : bool
        Include the definitions of the driver's context resources.
    """
    if driver.id == "array":
        driver, transform = cast("ArrayDriver", driver).narrowed(transform)
    latest = latest_of(driver)
    if latest is not driver:
        transform = placed_again(transform, latest)
    spec = driver.spec(minimal=minimal)
    kvstore = driver.kvstore
    if not (retain_context or unbind_context):
        return Spec._make(spec, transform, driver.open_mode, None)
    spec = _with_layers(spec, driver, minimal, retain_context)
    if kvstore is not None:
        within = kvstore.spec_within(driver.resources)
        spec = _over(spec, within.retaining(kvstore.driver.plain) if retain_context else within)
    pool = driver.resources.get(METADATA_POOL)
    if pool is not None:
        spec = spec.updated(**{METADATA_POOL: pool.to_json()})
    resources = _shared_resources(driver)
    context = Context.Spec(definitions(resources))
    if retain_context:
        scope = Context._of(context, resources)
        return Spec._make(spec, transform, driver.open_mode, None, scope)
    return Spec._make(spec, transform, driver.open_mode, context)


def _with_layers(
    spec: DriverSpec, driver: Driver, minimal: bool, retain_context: bool
) -> DriverSpec:
    """Return the spec of a stack, or of an adapter of one, in which opened layers have their own
    resources.
    """
    given: Any = spec
    if spec.base is not None and driver.base is not None:
        base = _with_layers(spec.base, driver.base, minimal, retain_context)
        return spec if base is spec.base else dataclasses.replace(given, base=base)
    layers = []
    for one, layer in zip(getattr(spec, "layers", ()), getattr(driver, "layers", ())):
        if layer.driver is not None:
            found = opened_spec(
                layer.driver,
                layer.transform,
                minimal=minimal,
                retain_context=retain_context,
                unbind_context=True,
            )
            driver_spec, context = found._defined()
            one = one._replace(driver=driver_spec, context=context)
        layers.append(one)
    return dataclasses.replace(given, layers=tuple(layers)) if layers else spec


def pickled_resources(driver: Driver, spec: Spec) -> dict[str, Context.Resource]:
    """Return the resources of a driver that the context of its spec defines: stores that are
    pickled together share them afterwards.
    """
    defined = {} if spec._context is None else spec._context.to_json()
    return {name: one for name, one in _shared_resources(driver).items() if name in defined}


def _shared_resources(driver: Driver) -> dict[str, Context.Resource]:
    # The pool is a member of the spec itself, others are members of the kvstore.
    resources = driver.resources.items()
    return {name: one for name, one in resources if name != METADATA_POOL and one.is_shared}


def _over(driver: DriverSpec, kvstore: KvStore.Spec) -> DriverSpec:
    """A driver's spec with another kvstore."""
    spec: Any = driver
    if spec.base is not None:
        kept: DriverSpec = dataclasses.replace(spec, base=_over(spec.base, kvstore))
    else:
        kept = dataclasses.replace(spec, kvstore=kvstore)
    return kept
