"""One JSON document in a kvstore, changed by compare-and-swap.

Members that the caller does not know survive a change, since it is made on the JSON itself.
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
"""Each loser of a round lets a winner through: so many writers may meet at one document."""


@dataclass(frozen=True, slots=True)
class JsonFile:
    """A document and where it lies.

    Attributes
    ----------
    store : KvStoreDriver
    key : str
        Whole key.
    limits : Limits
    cache : Cache or None
        What keeps metadata: it forgets the document when that is changed.
    """

    store: KvStoreDriver
    key: str
    limits: Limits
    cache: Cache | None = None

    @property
    def where(self) -> str:
        """How messages name it."""
        return self.store.describe(self.key)

    def read(self) -> tuple[dict[str, JsonValue] | None, bytes]:
        """The document (None if there is none) and its generation.

        Raises
        ------
        MetadataError, LimitError, StoreIOError
            Naming the key.
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
        """Replace (None: delete) the document if it still has `generation`; whether it had."""
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
        """Replace the document by what `changed` makes of it, however many others do so too.

        Parameters
        ----------
        changed : callable
            Is given the document, None if there is none; called again whenever another writer was
            faster. Must return another object, or the one given: then nothing is written.

        Returns
        -------
        dict or None
            What is stored now.

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
    """The bytes of a document: as the v2 specification shows them, compact for other documents."""
    if key.endswith((".zgroup", ".zattrs")):
        return dump(value, indent=4, sort_keys=True, non_finite=True)
    return dump(value, non_finite=True)
