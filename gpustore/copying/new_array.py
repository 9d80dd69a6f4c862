"""Arrays to be made: :class:`Target`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gpustore


@dataclass(slots=True)
class Target:
    """Array to be made.

    Attributes
    ----------
    driver : str
    kvstore : dict
        JSON of the kvstore.
    metadata : dict
        Zarr metadata, whole or in part.
    schema : dict
        Keywords of :func:`gpustore.open` for properties that `metadata` leave open.
    as_void : bool
        Whether elements are written as their bytes.
    attributes : bytes, optional
        Contents of the document ``.zattrs`` of Zarr v2.
    notes : list of str
        Properties of the source that are lost.
    context : Context
        Context of the array.
    """

    driver: str
    kvstore: dict[str, Any]
    metadata: dict[str, Any]
    schema: dict[str, Any] = field(default_factory=dict)
    as_void: bool = False
    attributes: bytes | None = None
    notes: list[str] = field(default_factory=list)
    context: gpustore.Context = field(default_factory=gpustore.Context)

    def make(
        self, *, delete_existing: bool = False, may_exist: bool = False
    ) -> gpustore.TensorStore:
        """Make the array; `may_exist` if an interrupted run may have made it before."""
        store = self._open(
            self.kvstore, delete_existing=delete_existing, open=may_exist, context=self.context
        )
        if self.attributes is not None and store.kvstore is not None:
            store.kvstore.write(".zattrs", self.attributes).result()
        return store

    def reopen(self, device: str | None = "cpu") -> gpustore.TensorStore:
        """Open the array that :meth:`make` has made."""
        spec = {"driver": self.driver, "kvstore": self.kvstore}
        return gpustore.open(
            {**spec, "open_as_void": True} if self.as_void else spec,
            device=device,
            context=self.context,
        ).result()

    def check(self) -> None:
        """Make the array in memory, so that errors appear before the disk is touched."""
        self._open("memory://", context=gpustore.Context())

    def _open(self, kvstore: Any, **keywords: Any) -> gpustore.TensorStore:
        spec = {"driver": self.driver, "kvstore": kvstore, "metadata": self.metadata}
        return gpustore.open(
            {**spec, "open_as_void": True} if self.as_void else spec,
            create=True,
            device="cpu",
            **self.schema,
            **keywords,
        ).result()
