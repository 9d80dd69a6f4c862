"""Steps of opening and creating a scale of a Neuroglancer precomputed volume.

The document of a volume describes several arrays: opening selects one of its scales, creating adds
one, on condition that the document has not changed meanwhile.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from gpustore.drivers._precomputed_driver import PrecomputedDriver, TransactedPrecomputedDriver
from gpustore.drivers._remembered import described
from gpustore.drivers._steps import Steps
from gpustore.drivers.base import DriverSpec
from gpustore.drivers.chunked import ChunkedDriver
from gpustore.drivers.format import ArrayDescription
from gpustore.drivers.options import recheck_bound
from gpustore.errors import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    prefixing,
)
from gpustore.kvstores.columns import ABSENT
from gpustore.kvstores.neuroglancer_uint64_sharded.shards import Uint64Shards
from gpustore.metadata.precomputed import PrecomputedConstraints, PrecomputedMetadata
from gpustore.pipelines.chunked_array import ChunkedArray

_ATTEMPTS = 10


class PrecomputedSteps(Steps):
    """One call of opening a scale; see :class:`gpustore.drivers._steps.Steps`."""

    __slots__ = ()

    kind = PrecomputedDriver
    transacted = TransactedPrecomputedDriver

    @property
    def _constraints(self) -> PrecomputedConstraints:
        """Constraints of the spec, with the size of elements that its schema says."""
        constraints: PrecomputedConstraints = self.spec.metadata
        units = self.spec.constrained().dimension_units or (None,) * 4
        sizes = tuple(None if unit is None else unit.multiplier for unit in units[:3])
        return replace(constraints, units=sizes)  # type: ignore[arg-type]

    def _metadata(self) -> tuple[Any, ArrayDescription]:
        constraints, mode = self._constraints, self.mode
        if self.found is not None:
            return self._opened(self.file.of_value(self.found.value).select(constraints))
        if mode.assumes:
            return self._with_new_scale(None)
        anew = mode.delete_existing
        condition = self._delete_existing() if anew else ABSENT
        recheck = self.spec.options.get("recheck_cached_metadata", "open")
        bound = math.inf if recheck == "open" else recheck_bound(recheck, self.read_at)
        for _ in range(_ATTEMPTS):
            volume: PrecomputedMetadata | None = None
            if not anew:
                volume, condition = self.file.load(bound)
            if volume is None and not mode.create:
                raise self._nothing_there()
            if volume is not None and mode.open:
                try:
                    return self._opened(volume.select(constraints))
                except NotFoundError:
                    if not mode.create:
                        raise
            with prefixing(f"Error writing {self.file.name}"):
                metadata, description = self._with_new_scale(volume)
            generation = ABSENT if volume is None and not anew else condition
            if self.file.save(metadata, generation, anew=anew and condition != ABSENT):
                return metadata, description
            if anew:
                raise AlreadyExistsError(f"Error writing {self.file.name}", key=self.file.key)
        raise ConflictError(
            f"{self.file.name} was changed {_ATTEMPTS} times meanwhile", key=self.file.key
        )

    def _opened(self, found: PrecomputedMetadata) -> tuple[Any, ArrayDescription]:
        return found, self._checked(found)

    def _with_new_scale(
        self, volume: PrecomputedMetadata | None
    ) -> tuple[PrecomputedMetadata, ArrayDescription]:
        limits = self.setting.limits
        metadata = self.format.extended(volume, self.spec.metadata, self.spec.constrained(), limits)
        return metadata, described(self.format, metadata, limits)

    def _driver(self, metadata: Any, description: ArrayDescription) -> ChunkedDriver:
        driver = super()._driver(metadata, description)
        driver.recheck = -math.inf  # Bounds are fixed: nobody has to look at them again.
        return driver

    def respec(self, opened: ChunkedDriver, metadata: Any) -> DriverSpec:
        """Return the unopened spec with `metadata`; a minimal one tells the number of the scale."""
        spec: Any = super().respec(opened, metadata)
        if metadata is None:
            index = PrecomputedConstraints(scale_index=opened.metadata.index)
            spec = replace(spec, metadata=index)
        found: DriverSpec = spec
        return found

    def is_alike(self, other: Any) -> bool:
        """Return False: keys do not follow from the path alone."""
        del other
        return False

    def array(self, metadata: Any, description: ArrayDescription) -> ChunkedArray:
        """Return the array for the pipelines; keys of a scale may lead out of the volume."""
        array = super().array(metadata, description)
        parts: list[str] = []
        for part in array.key_prefix.split("/"):
            if part == ".." and parts:
                parts.pop()
            else:
                parts.append(part)
        prefix, sharding = "/".join(parts), metadata.scale.sharding
        if sharding is None:
            return replace(array, key_prefix=prefix)
        return replace(array, key_prefix=prefix, store=Uint64Shards(array.store, prefix, sharding))
