"""Specs of drivers, from URLs and paths: :func:`driver_from_url`."""

from __future__ import annotations

from gpustore import registry
from gpustore.drivers.base import DriverSpec, UrlKind
from gpustore.errors import GpustoreError, MetadataError
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.spec import (
    KVSTORE_ADAPTER,
    KVSTORE_BASED,
    TENSORSTORE_ADAPTER,
    adapted,
    find_scheme,
    refuse_password,
    root_spec,
    unknown_scheme,
)
from gpustore.strict_json.parsing import quote
from gpustore.url import about_url, parse_pipeline


def detecting(kvstore: KvStore.Spec) -> DriverSpec:
    """Return the spec of an array of which the format is to be detected."""
    kind: UrlKind = registry.find("drivers", "auto")
    return kind.from_url(kvstore, "")


def driver_from_url(url: str) -> DriverSpec:
    """Return the driver's spec of a URL pipeline: a kvstore, its adapters, a driver, and adapters
    of that.

    Raises
    ------
    GpustoreError
        If the URL is wrong; the message names it.
    """
    refuse_password(url)
    try:
        root, *applied = parse_pipeline(url, registry.is_kvstore)
        kvstore = root_spec(root)
        driver: DriverSpec | None = None
        for component in applied:
            role, kind = find_scheme(component.scheme)
            if role == KVSTORE_ADAPTER and driver is None:
                kvstore = adapted(kind, component, kvstore)
            elif role == KVSTORE_BASED and driver is None:
                component.require_path_only("TensorStore")
                driver = kind.from_url(kvstore, component.path)
            elif role == TENSORSTORE_ADAPTER:
                component.require_path_only("TensorStore")
                driver = kind.from_url(driver or detecting(kvstore), component.path)
            elif not role:
                raise unknown_scheme(component)
            else:
                before = "KvStore" if driver is None else "TensorStore"
                raise MetadataError(
                    f"{role} URL scheme in {quote(component.raw)} is not valid following a "
                    f"{before} URL pipeline component"
                )
    except GpustoreError as error:
        if not url:
            raise
        raise about_url(error, url) from error.__cause__
    return driver or detecting(kvstore)
