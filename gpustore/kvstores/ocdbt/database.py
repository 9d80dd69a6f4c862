"""Stored parts of an OCDBT database: its manifest and nodes, read from the base and checked.

Nodes never change, so decoded ones are cached without asking the base again. Only the manifest
changes.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from gpustore.errors import (
    CorruptChunkError,
    GpustoreError,
    LimitError,
    MismatchError,
    StoreIOError,
)
from gpustore.kvstores.base import prefix_end
from gpustore.kvstores.columns import ReadRequest
from gpustore.kvstores.ocdbt.config import Config
from gpustore.kvstores.ocdbt.manifest import Manifest, read_manifest
from gpustore.kvstores.ocdbt.node import MAX_ENTRIES, read_node
from gpustore.kvstores.ocdbt.version_tree import Version, read_version_node
from gpustore.runtime.cache import Entry, Space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpustore.kvstores.base import Base
    from gpustore.kvstores.columns import ReadColumns
    from gpustore.kvstores.ocdbt.config import ConfigConstraints
    from gpustore.kvstores.ocdbt.location import Location
    from gpustore.kvstores.ocdbt.node import Interior, Leaf
    from gpustore.kvstores.ocdbt.version import VersionSpec
    from gpustore.kvstores.ocdbt.version_tree import VersionNode, VersionSubtree
    from gpustore.runtime.buffer import Buffer
    from gpustore.runtime.cache import Cache


MANIFEST_KEY: Final = "manifest.ocdbt"
_NUMBERED: Final = re.compile(r"manifest\.([0-9a-f]{16})", re.ASCII)
# How often numbered manifests are listed anew because the newest was removed meanwhile.
_ATTEMPTS: Final = 100
# Encoded nodes that are asked for at once.
_REQUEST_NBYTES: Final = 64 << 20
# Columns of the largest node, besides its keys and paths.
_COLUMNS_NBYTES: Final = MAX_ENTRIES * 128


class _Cached(Protocol):
    @property
    def memory_nbytes(self) -> int: ...


N = TypeVar("N", bound=_Cached)


def numbered_key(generation: int) -> str:
    """Return the key of a numbered manifest, relative to the root.

    >>> numbered_key(26)
    'manifest.000000000000001a'
    """
    return f"manifest.{generation:016x}"


def numbered_of(key: str) -> int | None:
    """Return the generation of a numbered manifest from its relative key; None for another key."""
    match = _NUMBERED.fullmatch(key)
    return None if match is None else int(match[1], 16)


class Snapshot(NamedTuple):
    """The manifest as of some time.

    Attributes
    ----------
    generation : bytes
        Generation of ``manifest.ocdbt`` in the base; :data:`~gpustore.kvstores.columns.ABSENT` if
        missing.
    config : Config or None
        Configuration; None without ``manifest.ocdbt``.
    manifest : Manifest or None
        Manifest with versions; None if there is none.
    read_at : float
        Time at which the manifest was current, in seconds since the epoch.
    """

    generation: bytes
    config: Config | None
    manifest: Manifest | None
    read_at: float


class Database:
    """Reads a database. Thread-safe.

    Parameters
    ----------
    base : Base
        Root of the database; its path is empty or ends with a slash.
    manifests : Base
        Directory of the manifests.
    constraints : ConfigConstraints
        Constraints that its configuration must meet.
    cache : Cache or None
        Cache of decoded nodes.
    max_nbytes : int
        Largest decoded node, in bytes.
    read_base : callable, optional
        Function that reads the base, by default its own.
    """

    def __init__(
        self,
        base: Base,
        manifests: Base,
        *,
        constraints: ConfigConstraints,
        cache: Cache | None,
        max_nbytes: int,
        read_base: Callable[[ReadRequest], ReadColumns] | None = None,
    ) -> None:
        self.base = base
        self._read_base = read_base or base.driver.read_many
        self.manifests = manifests
        self._constraints = constraints
        self._cache = cache
        root = ("ocdbt", base.driver.identity, base.path)
        self._btree_nodes, self._version_nodes = Space(root, "btree"), Space(root, "version")
        self._max_nbytes = max_nbytes
        self._snapshot = Snapshot(b"", None, None, -math.inf)

    # ------------------------------------------------------------------ manifest

    @property
    def known_config(self) -> Config | None:
        """Configuration, if it has been read; otherwise None."""
        return self._snapshot.config

    def snapshot(self, staleness_bound: float | None = None) -> Snapshot:
        """Return the manifest, current now or at `staleness_bound` or later.

        Raises
        ------
        CorruptChunkError, LimitError
            If the manifest is damaged.
        MismatchError
            If the configuration does not meet the constraints.
        """
        known = self._snapshot
        if staleness_bound is not None and known.read_at >= staleness_bound:
            return known
        read_at = time.time()
        generation, data = self._read_manifest(MANIFEST_KEY, known.generation)
        config, manifest = known.config, known.manifest
        if generation != known.generation:
            config = manifest = None
        if data is not None:
            manifest = self._decode_manifest(MANIFEST_KEY, data)
            config = manifest.config
            self._constraints.check(config)
        if config is not None and config.manifest_kind == "numbered":
            manifest = self._newest_numbered(config, manifest)
        return self.remember(Snapshot(generation, config, manifest, read_at))

    def remember(self, snapshot: Snapshot) -> Snapshot:
        """Store a snapshot as the latest known one, unless another is later; return the latest."""
        if snapshot.read_at >= self._snapshot.read_at:
            self._snapshot = snapshot
        return snapshot

    def _read_manifest(self, name: str, known: bytes) -> tuple[bytes, Buffer | None]:
        """Return generation and bytes of a manifest; no bytes if it is missing or known."""
        key = self.manifests.path + name
        columns = self.manifests.driver.read_many(
            ReadRequest([key], if_not_equal=[known], max_nbytes=self._max_encoded_nbytes)
        )
        columns.raise_first()
        return columns.generation[0], columns.value[0]

    def _decode_manifest(self, name: str, data: Buffer) -> Manifest:
        key = self.manifests.path + name
        try:
            return read_manifest(data, max_nbytes=self._max_nbytes)
        except GpustoreError as error:
            where = self.manifests.driver.describe(key)
            raise error.prefixed(f"Error decoding {where}", key=key) from error.__cause__

    def _newest_numbered(self, config: Config, known: Manifest | None) -> Manifest | None:
        path = self.manifests.path
        first = f"{path}manifest."
        for _ in range(_ATTEMPTS):
            keys = self.manifests.driver.list(first, prefix_end(first))
            numbers = [number for key in keys if (number := numbered_of(key[len(path) :]))]
            if not numbers:
                return None
            newest = max(numbers)
            if known is not None and known.versions and known.latest.generation == newest:
                return known
            name = numbered_key(newest)
            _, data = self._read_manifest(name, b"")
            if data is None:
                continue  # It was removed, because there are much newer ones.
            manifest = self._decode_manifest(name, data)
            wrong = ""
            if not manifest.versions or manifest.latest.generation != newest:
                wrong = f"its last generation is not {newest}"
            elif manifest.config.uuid != config.uuid:
                wrong = f"it belongs to the database {manifest.config.uuid.hex()}"
            if wrong:
                raise CorruptChunkError(
                    f"Error decoding {self.manifests.driver.describe(path + name)}: {wrong}",
                    status="DATA_LOSS",
                    key=path + name,
                )
            return Manifest(config, manifest.versions, manifest.subtrees)
        raise StoreIOError(
            f"Error reading the manifests of {self.manifests.driver.describe(path)}: "
            f"the newest was removed {_ATTEMPTS} times before it was read",
            status="UNAVAILABLE",
        )

    # ------------------------------------------------------------------ nodes

    def nodes(
        self, wanted: Sequence[tuple[Location, int]]
    ) -> Iterator[Leaf | Interior | GpustoreError]:
        """Yield B+tree nodes, each given by location and height; errors take their place.

        Each node is decoded in its turn, because a small stored node can become large.
        """
        decode = partial(read_node, max_nbytes=self._max_nbytes)
        found = self._load(self._btree_nodes, [location for location, _ in wanted], decode)
        for (location, height), node in zip(wanted, found, strict=True):
            if isinstance(node, GpustoreError) or node.height == height:
                yield node
            else:
                yield self.wrong(
                    location, f"Expected height of {height} but received: {node.height}"
                )

    def check_path_nbytes(self, location: Location, nbytes: int) -> None:
        """Raise LimitError if nodes on a path from the root take too much memory.

        Parameters
        ----------
        location : Location
            Location of the lowest node.
        nbytes : int
            Memory of all nodes, in bytes.
        """
        if nbytes > 2 * self._max_nbytes + _COLUMNS_NBYTES:
            error = LimitError(
                f"nodes that lead to this one have {nbytes} bytes in memory, which exceeds what "
                f"the limit ocdbt_node_nbytes of {self._max_nbytes} allows"
            )
            raise self.wrong(location, error)

    def node(self, location: Location, height: int) -> Leaf | Interior:
        """Return one B+tree node."""
        (found,) = self.nodes([(location, height)])
        if isinstance(found, GpustoreError):
            raise found
        return found

    def any_node(self, location: Location) -> Leaf | Interior:
        """Return a B+tree node of any height."""
        decode = partial(read_node, max_nbytes=self._max_nbytes)
        return self._load_one(self._btree_nodes, location, decode)

    def any_version_node(self, location: Location) -> VersionNode:
        """Return a version node of any height."""
        decode = partial(read_version_node, max_nbytes=self._max_nbytes)
        return self._load_one(self._version_nodes, location, decode)

    def version_node(self, subtree: VersionSubtree, arity_log2: int) -> VersionNode:
        """Return a version node that agrees with the reference to it."""
        node = self.any_version_node(subtree.location)
        for what, expected, found in (
            ("version_tree_arity_log2", arity_log2, node.arity_log2),
            ("height", subtree.height, node.height),
            ("generation_number", subtree.generation, node.entries[-1].generation),
        ):
            if expected != found:
                raise self.wrong(
                    subtree.location, f"Expected {what} of {expected} but received: {found}"
                )
        return node

    def value(self, location: Location) -> Buffer:
        """Return the bytes of a range of a data file."""
        (found,) = self._read([location], None)
        if isinstance(found, GpustoreError):
            raise found
        return found

    def _load_one(
        self, space: Space, location: Location, decode: Callable[[Buffer, bytes], N]
    ) -> N:
        (found,) = self._load(space, [location], decode)
        if isinstance(found, GpustoreError):
            raise found
        return found

    def _load(
        self,
        space: Space,
        locations: Sequence[Location],
        decode: Callable[[Buffer, bytes], N],
    ) -> Iterator[N | GpustoreError]:
        """Decode the nodes at these locations one by one, or take them from the cache's `space`."""
        found: list[N | None] = [None] * len(locations)
        stamps = [0] * len(locations)
        names = [location.file.path for location in locations]
        parts = [_part(location) for location in locations]
        if self._cache is not None:
            for i, (entry, stamp) in enumerate(self._cache.find(space, names, parts)):
                stamps[i] = stamp
                if entry is not None:
                    found[i] = entry.value
        encoded = self._read_in_turn([locations[i] for i, one in enumerate(found) if one is None])
        for i, cached in enumerate(found):
            if cached is not None:
                yield cached
                continue
            data = next(encoded)
            if isinstance(data, GpustoreError):
                yield data
                continue
            try:
                node = decode(data, locations[i].file.base)
            except GpustoreError as error:
                yield self.wrong(locations[i], error)
                continue
            if self._cache is not None:
                entry = Entry(node, node.memory_nbytes, b"", math.inf)
                self._cache.put(space, names[i], parts[i], entry, stamps[i])
            yield node

    def _read_in_turn(self, locations: Sequence[Location]) -> Iterator[Buffer | GpustoreError]:
        """Yield the bytes at these locations, in requests of limited size."""
        start = nbytes = 0
        for i, location in enumerate(locations):
            if nbytes + location.nbytes > _REQUEST_NBYTES and i > start:
                yield from self._read(locations[start:i])
                start, nbytes = i, 0
            nbytes += location.nbytes
        yield from self._read(locations[start:])

    def keep(self, location: Location, node: Leaf | Interior) -> None:
        """Put a node that is being written into the cache."""
        if self._cache is not None:
            name, part = location.file.path, _part(location)
            ((_, stamp),) = self._cache.find(self._btree_nodes, [name], [part])
            entry = Entry(node, node.memory_nbytes, b"", math.inf)
            self._cache.put(self._btree_nodes, name, part, entry, stamp)

    def _read(
        self, locations: Sequence[Location], max_nbytes: int | None = -1
    ) -> list[Buffer | GpustoreError]:
        """Return the bytes at these locations, in one request."""
        if not locations:
            return []
        columns = self._read_base(
            ReadRequest(
                [self.base.path + location.file.path for location in locations],
                start=[location.offset for location in locations],
                stop=[location.offset + location.nbytes for location in locations],
                max_nbytes=self._max_encoded_nbytes if max_nbytes == -1 else max_nbytes,
            )
        )
        found: list[Buffer | GpustoreError] = []
        for i, location in enumerate(locations):
            value = columns.value[i]
            if value is not None and len(value) != location.nbytes:
                found.append(self.wrong(location, f"received {len(value)} bytes"))
            elif value is not None:
                found.append(value)
            else:
                found.append(self.damaged(location, columns.error.get(i)))
        return found

    def damaged(self, location: Location, error: GpustoreError | None) -> GpustoreError:
        """Return the error for a reference to missing data.

        Parameters
        ----------
        location : Location
        error : GpustoreError or None
            Error of the base; None for a missing data file.
        """
        if error is None:
            return self.wrong(location, "the data file does not exist", status="NOT_FOUND")
        if isinstance(error, MismatchError):  # A range that is not in the file.
            return self.wrong(location, error.text, status=error.status)
        return self.wrong(location, error)

    def wrong(
        self, location: Location, reason: str | GpustoreError, *, status: str = "DATA_LOSS"
    ) -> GpustoreError:
        """Return the error for damaged data at a location."""
        key = self.base.path + location.file.path
        stop = location.offset + location.nbytes
        where = (
            f"Error reading Byte range [{location.offset}, {stop}) of "
            f"{self.base.driver.describe(key)}"
        )
        if isinstance(reason, GpustoreError):
            return reason.prefixed(where, key=key)
        return CorruptChunkError(f"{where}: {reason}", status=status, key=key)

    @property
    def _max_encoded_nbytes(self) -> int:
        return self._max_nbytes + (1 << 16)

    # ------------------------------------------------------------------ versions

    def version(self, manifest: Manifest, wanted: VersionSpec) -> Version:
        """Return the version that a spec selects.

        Raises
        ------
        NotFoundError
            If there is no such version.
        """
        arity_log2 = manifest.config.version_tree_arity_log2
        entries: Sequence[Version | VersionSubtree] = (*manifest.subtrees, *manifest.versions)
        while True:
            entry = wanted.choose(entries)
            if entry is None:
                raise wanted.missing()
            if isinstance(entry, Version):
                if not wanted.is_met(entry):
                    raise wanted.missing()
                return entry
            entries = self.version_node(entry, arity_log2).entries


def _part(location: Location) -> tuple[int, int, int]:
    """Return the part of a data file that a location names, for the cache."""
    # The same bytes mean other files in a node that is reached by another base path.
    return location.offset, location.nbytes, len(location.file.base)
