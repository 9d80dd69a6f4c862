"""One JSON document in a kvstore, changed by compare-and-swap.

Members that the caller does not know survive a change, because the change is made on the JSON
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpustore.errors import ConflictError
from gpustore.kvstores.base import KvStoreDriver
from gpustore.kvstores.columns import ReadRequest, WriteRequest
from gpustore.metadata.node import parse_document
from gpustore.runtime.cache import Cache, Space
from gpustore.runtime.limits import Limits
from gpustore.strict_json.parsing import JsonValue, dump

_ATTEMPTS = 1000
"""Number of attempts: each lost round lets another writer win, so that many writers may meet."""


@dataclass(frozen=True, slots=True)
class JsonFile:
    """One JSON document and its place.

    Attributes
    ----------
    store : KvStoreDriver
    key : str
        Key with its path.
    limits : Limits
    cache : Cache or None
        Cache of metadata; changes remove the document from it.
    """

    store: KvStoreDriver
    key: str
    limits: Limits
    cache: Cache | None = None

    @property
    def where(self) -> str:
        """Name of the document for messages."""
        return self.store.describe(self.key)

    def read(self) -> tuple[dict[str, JsonValue] | None, bytes]:
        """Return the document (None if there is none) and its generation.

        Raises
        ------
        MetadataError, LimitError, StoreIOError
            The message names the key.
        """
        request = ReadRequest([self.key], max_nbytes=self.limits.hierarchy_nbytes)
        columns = self.store.read_many(request)
        columns.raise_first()
        data, generation = columns.value[0], columns.generation[0]
        if data is None:
            return None, generation
        name = self.key.rpartition("/")[2]
        return parse_document(data, name=name, where=self.where, limits=self.limits), generation

    def write(self, value: dict[str, JsonValue] | None, generation: bytes) -> bool:
        """Replace (None: delete) the document of this `generation`; return whether it was that."""
        data = None if value is None else encode(self.key, value)
        try:
            columns = self.store.write_many(WriteRequest([self.key], [data], [generation]))
        finally:
            if self.cache is not None:
                self.cache.forget(Space(self.store.identity, "metadata"), [self.key])
        columns.raise_first()
        return bool(columns.generation[0])

    def change(
        self, changed: Callable[[dict[str, JsonValue] | None], dict[str, JsonValue] | None]
    ) -> dict[str, JsonValue] | None:
        """Replace the document by the result of `changed`, repeated while other writers are faster.

        Parameters
        ----------
        changed : callable
            Takes the document, None if there is none, and returns a new object; the same object
            means no change. Called again whenever another writer was faster.

        Returns
        -------
        dict or None
            The stored document.

        Raises
        ------
        ConflictError
            If others were faster a thousand times.
        """
        for _ in range(_ATTEMPTS):
            value, generation = self.read()
            wanted = changed(value)
            if wanted is value or self.write(wanted, generation):
                return wanted
        raise ConflictError(
            f"Error writing {self.where}: others were faster {_ATTEMPTS} times", key=self.key
        )


def encode(key: str, value: dict[str, JsonValue]) -> bytes:
    """Return the bytes of a document: indented for documents of Zarr v2, compact for others."""
    if key.endswith((".zgroup", ".zattrs")):
        return dump(value, indent=4, sort_keys=True, non_finite=True)
    return dump(value, non_finite=True)
