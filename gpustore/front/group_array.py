"""Arrays in a hierarchy: :class:`MemberArray`, opened and made with the access of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpustore import registry
from gpustore.drivers.base import DriverSpec, OpenMode, OpenRequest
from gpustore.errors import MetadataError, MismatchError
from gpustore.front.array_words import (
    DIMENSIONS_V2,
    are_names,
    array_of,
    check_data,
    with_shape_of,
    write_all,
)
from gpustore.front.group_access import GroupAccess
from gpustore.front.spec import Spec
from gpustore.front.store import TensorStore
from gpustore.hierarchy.attributes import json_attributes
from gpustore.hierarchy.nodes import Hierarchy, exists_error
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.logical_path import ancestors, check_node_names
from gpustore.metadata.node import Node


@dataclass(frozen=True, slots=True)
class MemberArray:
    """An array at a path of a hierarchy, existing or not.

    Attributes
    ----------
    hierarchy : Hierarchy
    access : GroupAccess
    base : KvStore.Spec
        Kvstore of the root.
    path : str
        Normalised path from the root.
    """

    hierarchy: Hierarchy
    access: GroupAccess
    base: KvStore.Spec
    path: str

    def spec(self, mode: OpenMode, constraints: Mapping[str, Any], metadata: Any = None) -> Spec:
        """Return the spec that opens the array, or makes it under these constraints.

        Raises
        ------
        MetadataError, MismatchError, TypeError
            If they contradict each other.
        """
        kind = registry.find("drivers", f"zarr{self.hierarchy.zarr_format}")
        driver: DriverSpec = kind.from_url(self.base, self.path)
        if metadata is not None:
            driver = replace(driver, metadata=kind.format.constraints(metadata))  # type: ignore[type-var]
        spec = Spec._make(driver, None, mode, None)
        given = {name: value for name, value in constraints.items() if value is not None}
        spec.update(**given, device=self.access.device)
        return spec

    def opened(self, spec: Spec, node: Node | None = None) -> TensorStore:
        """Open or make the array. Blocks; the document of a given `node` is not read again."""
        access = self.access
        request = OpenRequest(
            spec._mode,
            access.context,
            access.readable,
            access.writable,
            spec._transform,
            self.hierarchy,
            node,
        )
        return TensorStore._of(*spec._driver.open(request).run())

    def making(
        self,
        mode: OpenMode,
        attributes: Mapping[str, Any] | None,
        metadata: Any,
        constraints: Mapping[str, Any],
        data: Any = None,
    ) -> Callable[[], TensorStore]:
        """Return a function that makes the array and the groups above it, or opens it if `mode`
        allows. A new array gets the elements `data`, if given.

        Raises
        ------
        MetadataError, MismatchError, TypeError
            Immediately, if the arguments contradict each other.
        AlreadyExistsError, MismatchError, MetadataError, StoreIOError
            From calls of the function.
        """
        path, hierarchy = self.path, self.hierarchy
        if not path:
            raise MetadataError("an array needs a path below the root of its hierarchy")
        check_node_names(path, hierarchy.zarr_format)
        if data is not None:
            data = array_of(data, constraints.get("dtype"))
            constraints = with_shape_of(data, constraints)
        given = json_attributes(attributes or {})
        names = given.get(DIMENSIONS_V2)
        if hierarchy.zarr_format == 3 and constraints.get("dims") is None and are_names(names):
            constraints = {**constraints, "dims": names}
            del given[DIMENSIONS_V2]
        spec = self.spec(mode, constraints, metadata)
        domain = spec.domain
        if data is not None:
            check_data(data, spec.dtype, domain)
        if hierarchy.zarr_format == 2 and domain is not None and any(domain.labels):
            given = {DIMENSIONS_V2: [label or None for label in domain.labels], **given}
        made = spec
        if given and hierarchy.zarr_format == 3:
            stored = {**(metadata or {}).get("attributes", {}), **given}
            made = self.spec(mode, constraints, {**(metadata or {}), "attributes": stored})

        def run() -> TensorStore:
            node = None if mode.delete_existing else hierarchy.read(path)
            if node is None:
                hierarchy.invalidate(ancestors(path))
                # What consolidated metadata did not tell.
                node = None if mode.delete_existing else hierarchy.read(path)
            if node is not None and not mode.open:
                raise exists_error(hierarchy, path)
            if node is not None and node.is_group:
                raise MismatchError(f"{node.where} is a group, not an array", key=path)
            if node is not None:
                return self.opened(spec, node)
            store = self.opened(made)
            if given and hierarchy.zarr_format == 2:
                file = hierarchy.file(path, ".zattrs")
                file.change(lambda stored: {**(stored or {}), **given})
            if data is not None:
                write_all(store, data)
            return store

        return run
