"""The file that holds the metadata of an array: read, remembered, replaced."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from gpustore.backends.native.job import NOT_DONE
from gpustore.backends.native.short_files import read_short_file, store_short_file
from gpustore.drivers._remembered import decoded, encoded
from gpustore.drivers._resizes import Resized, resized_since, set_resized
from gpustore.drivers.format import Format
from gpustore.errors import GpustoreError, naming_key
from gpustore.kvstores.base import KvStoreDriver
from gpustore.kvstores.columns import ABSENT, ReadRequest, WriteRequest
from gpustore.metadata.node import Node
from gpustore.runtime.cache import Cache, Entry, Space
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.limits import Limits
from gpustore.strict_json.spelled import REMEMBERED_NBYTES


@dataclass(slots=True)
class MetadataFile:
    """The stored metadata document of an array, and its format.

    Handles with the same `pool` know of each other's resizes (:mod:`gpustore.drivers._resizes`).
    """

    format: Format
    store: KvStoreDriver
    key: str
    limits: Limits
    constraints: Any
    cache: Cache | None
    pool: object

    @property
    def name(self) -> str:
        """Name of the document for messages."""
        return self.store.describe(self.key)

    def load(self, bound: float = math.inf) -> tuple[Any, bytes]:
        """Return the metadata (None if there are none) and their generation.

        Parameters
        ----------
        bound : float
            Time in seconds since the epoch; metadata cached at this time or later are accepted.

        Raises
        ------
        MetadataError, UnsupportedError, LimitError, StoreIOError
            The error names the file.
        """
        if self.cache is None:
            data, generation = self._read()
        else:
            now = time.time()
            space = Space(self.store.identity, "metadata")
            [(entry, stamp)] = self.cache.find(space, [self.key], [None])
            if entry is not None and entry.read_at >= bound:
                data, generation = entry.value, entry.generation
            else:
                data, generation = self._read()
                if data is not None:
                    entry = Entry(data, len(data), generation, now)
                    self.cache.put(space, self.key, None, entry, stamp)
        if data is None:
            return None, generation
        return self._metadata(data), generation

    def resized(self, since: float) -> Resized | None:
        """Return the last resize of the array in this context, if it was later than `since`."""
        return resized_since(self.pool, self.store, self.key, since)

    def set_resized(self, metadata: Any, at: float) -> None:
        """Tell other handles of the array that it is known to have these metadata since `at`."""
        set_resized(self.pool, (self.store.identity, self.key), metadata, at)

    def look(self) -> bytes | int:
        """Return the stored document if that is plain: a short file; else the status of the native
        core, after which :meth:`load` is to be asked. Nothing is cached.
        """
        name = None if self.cache is not None else self.store.plain_file(self.key)
        return NOT_DONE if name is None else read_short_file(name, self.limits.metadata_nbytes)

    def of_node(self, node: Node) -> Any:
        """Return the metadata of a node that a hierarchy has read; raises the errors of
        :meth:`load`.
        """
        return self._metadata(node.encoded(), node.described)

    def of_value(self, data: bytes) -> Any:
        """Return the metadata in a document that was read before; raises the errors of
        :meth:`load`.
        """
        return self._metadata(data)

    def _metadata(self, data: bytes, where: str | None = None) -> Any:
        """Return the metadata in a document; `where` names it for messages unless its key does."""
        try:
            return self.format.completed(self.constraints, self._decoded(data, where))
        except GpustoreError:
            with self.blamed():
                raise

    def _read(self) -> tuple[bytes | None, bytes]:
        columns = self.store.read_many(
            ReadRequest([self.key], max_nbytes=self.limits.metadata_nbytes)
        )
        columns.raise_first()
        data = columns.value[0]
        return None if data is None else bytes(data), columns.generation[0]

    def _decoded(self, data: bytes, where: str | None) -> Any:
        if len(data) <= REMEMBERED_NBYTES:
            # After an error, decoding once more raises it with the name of this file.
            with suppress(GpustoreError):
                return decoded(self.format.metadata_class, data, self.limits)
        kind = self.format.metadata_class
        return kind.decode(data, where=where or self.name, limits=self.limits)

    def blamed(self) -> naming_key:
        """Return a context manager that attaches the key to errors about the contents of the
        document.
        """
        return naming_key(self.key)

    def save(self, metadata: Any, generation: bytes, *, anew: bool = False) -> bool:
        """Replace the metadata if their generation is still `generation`; return whether it was.

        With `anew` the old ones count as deleted.
        """
        value = encoded(metadata)
        is_new = generation == ABSENT or anew
        try:
            if is_new and self._store_plainly(value, generation):
                return True
            columns = self.store.write_many(
                WriteRequest([self.key], [value], [generation], anew=anew)
            )
        finally:
            if self.cache is not None:
                self.cache.forget(Space(self.store.identity, "metadata"), [self.key])
        columns.raise_first()
        return bool(columns.generation[0])

    def _store_plainly(self, value: bytes, generation: bytes) -> bool:
        """Let the native core store a document that is new, or replaces one that counts as deleted;
        return whether it did.

        Raises
        ------
        StoreIOError
            If the document may not have reached the disk.
        """
        directories = self.store.write_directories()
        if directories is None:
            return False
        stored = False
        try:
            descriptor = directories.open(0, self.key)
            CancelToken.current().check()
            if descriptor is not None and descriptor >= 0:
                version = directories.version(generation)
                syncs = directories.syncs
                stored = store_short_file(descriptor, self.key, value, version, syncs=syncs)
            if stored:
                directories.changed([0], [self.key])
        finally:
            errors = directories.close()
        if stored and errors:
            raise errors[0]
        return stored
