"""Commits: steps from changes to a new version of an OCDBT database.

1. Read the manifest, and with it the latest version.
2. Check the conditions of the writes, and make the tree with the changes
   (:mod:`~gpustore.kvstores.ocdbt.rewrite`).
3. Write values and nodes to data files, which have no references yet.
4. Replace the manifest on condition that it is still the one read. If it is not, begin again:
   written values stay in their place.

With numbered manifests step 4 writes ``manifest.<generation>`` on condition that it is missing, and
then checks that the newest manifest has the new version, because not every base applies such a
condition reliably.

Threads that commit to one opened database at the same time share a commit: the first commits for
all waiting threads.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from gpustore.errors import (
    ConflictError,
    GpustoreError,
    LimitError,
    MismatchError,
    NotFoundError,
)
from gpustore.kvstores.columns import ABSENT, AtomicRequest, WriteColumns, WriteRequest
from gpustore.kvstores.ocdbt.columns import UINT64_MAX
from gpustore.kvstores.ocdbt.config import MAX_INLINE_NBYTES
from gpustore.kvstores.ocdbt.data_file import DataFiles
from gpustore.kvstores.ocdbt.database import MANIFEST_KEY, Snapshot, numbered_key, numbered_of
from gpustore.kvstores.ocdbt.location import ABSENT_ROOT
from gpustore.kvstores.ocdbt.manifest import Manifest, encode_config
from gpustore.kvstores.ocdbt.node import Totals
from gpustore.kvstores.ocdbt.rewrite import Changes, KeyRange, Rewrite, Stored, Tree
from gpustore.kvstores.ocdbt.time import format_time
from gpustore.kvstores.ocdbt.tree import find, generation_of, leaves
from gpustore.kvstores.ocdbt.version import Generation
from gpustore.kvstores.ocdbt.version_tree import Version, advance, max_generation
from gpustore.kvstores.result import as_bytes
from gpustore.runtime.group_commit import Change, GroupCommit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpustore.kvstores.ocdbt.config import Config, ConfigConstraints
    from gpustore.kvstores.ocdbt.database import Database
    from gpustore.runtime.buffer import Buffer


_ATTEMPTS: Final = 1000
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.05
# Numbered manifests that much older than the newest are removed.
_KEPT_MANIFESTS: Final = 128


@dataclass(slots=True, eq=False)
class _Operation(Change):
    """An operation that waits for a commit, and its result.

    Attributes
    ----------
    request : WriteRequest or None
    deleted : KeyRange or None
        Range to delete in place of a request.
    together : AtomicRequest or None
        Changes to make in place of a request, all or none.
    stored : dict of int to Stored
        Stored values by position, once they are written.
    given : dict of int to Stored
        Those that others have written.
    columns : WriteColumns
        The result of a request.
    num_deleted : int
        The result of a deletion.
    failed : list of str
        The result of `together`.
    """

    request: WriteRequest | None = None
    deleted: KeyRange | None = None
    together: AtomicRequest | None = None
    stored: dict[int, Stored] = field(default_factory=dict)
    given: dict[int, Stored] = field(default_factory=dict)
    columns: WriteColumns = field(default_factory=lambda: WriteColumns.blank(0))
    num_deleted: int = 0
    failed: list[str] = field(default_factory=list)


class Committer(GroupCommit[_Operation]):
    """Commits to a database. Thread-safe.

    Parameters
    ----------
    database : Database
    constraints : ConfigConstraints
        Configuration of a new database.
    assume_config : bool
        Whether a new database is made by the first commit itself.
    prefixes : tuple of str
        Prefixes of data files with values, B+tree nodes, and version nodes.
    target_nbytes : int
        Size of a data file in bytes after which another begins.
    """

    def __init__(
        self,
        database: Database,
        *,
        constraints: ConfigConstraints,
        assume_config: bool,
        prefixes: tuple[str, str, str],
        target_nbytes: int,
    ) -> None:
        self._database = database
        self._constraints = constraints
        self._assume_config = assume_config
        self._prefixes = prefixes
        self._target_nbytes = target_nbytes
        self._assumed: Config | None = None
        super().__init__()

    def write(self, request: WriteRequest) -> WriteColumns:
        """Write a batch in one commit, or none if no condition holds."""
        operation = _Operation(request)
        try:
            self._run(operation)
        except GpustoreError as error:
            count = len(request.keys)
            return WriteColumns([b""] * count, dict.fromkeys(range(count), error))
        return operation.columns

    def refer(self, keys: Sequence[str], values: Sequence[Stored]) -> None:
        """Let keys have values that are stored already, in one commit."""
        if not keys:
            return
        operation = _Operation(WriteRequest(keys, [b""] * len(keys)))
        operation.given = dict(enumerate(values))
        self._run(operation)

    def write_together(self, request: AtomicRequest) -> list[str]:
        """Make all changes in one commit, or none; return the keys whose conditions failed."""
        operation = _Operation(together=request)
        self._run(operation)
        return operation.failed

    def delete_range(self, deleted: KeyRange) -> int:
        """Delete a range in one commit, or none if it is empty."""
        operation = _Operation(deleted=deleted)
        self._run(operation)
        return operation.num_deleted

    # ------------------------------------------------------------------ one commit

    def _groups(self, changes: list[_Operation]) -> list[list[_Operation]]:
        """Return lists of one deletion, one set of changes together, or consecutive writes."""
        groups: list[list[_Operation]] = []
        for one in changes:
            if groups and one.request is not None and groups[-1][-1].request is not None:
                groups[-1].append(one)
            else:
                groups.append([one])
        return groups

    def _commit(self, changes: Sequence[_Operation]) -> None:
        files = DataFiles(self._database.base, self._target_nbytes)
        for one in changes:
            # What an attempt that failed has put into files may not be there.
            one.stored = dict(one.given)
        pause_s = _FIRST_PAUSE_S
        mine: Version | None = None
        for _ in range(_ATTEMPTS):
            snapshot = self._database.snapshot()
            if mine is not None and self._contains(snapshot.manifest, mine):
                return  # It was committed, although the base said otherwise.
            if snapshot.manifest is None and not self._assume_config:
                self._create(snapshot)
                continue
            mine = self._attempt(changes, snapshot, files)
            if mine is None:
                return
            time.sleep(random.uniform(0, pause_s))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise ConflictError(
            f"Commit to {self._where} was overtaken by other writers {_ATTEMPTS} times; "
            "nothing was written"
        )

    def _attempt(
        self, group: Sequence[_Operation], snapshot: Snapshot, files: DataFiles
    ) -> Version | None:
        """Try once; return None on success, else the version that was not accepted."""
        manifest = snapshot.manifest
        latest = None if manifest is None else manifest.latest
        config = self._config(snapshot)
        changes = self._changes(group, latest, config, files)
        if not changes.writes and changes.deleted is None:
            return None
        level = config.compression.level
        _, node_prefix, version_prefix = self._prefixes
        rewrite = Rewrite(
            self._database,
            max_node_nbytes=config.max_decoded_node_bytes,
            level=level,
            write=lambda data: files.add(node_prefix, data),
        )
        tree = rewrite.apply(latest, changes)
        if changes.deleted is not None:
            group[0].num_deleted = rewrite.num_deleted
            if not rewrite.num_deleted:
                return None
        version = self._next_version(latest, tree, config)
        versions, subtrees = advance(
            () if manifest is None else manifest.versions,
            () if manifest is None else manifest.subtrees,
            version,
            config.version_tree_arity_log2,
            read=lambda one: self._database.version_node(one, config.version_tree_arity_log2),
            write=lambda node: files.add(version_prefix, node.encode(level)),
        )
        files.flush()
        if self._publish(snapshot, Manifest(config, versions, subtrees)):
            return None
        return version

    def _changes(
        self, group: Sequence[_Operation], latest: Version | None, config: Config, files: DataFiles
    ) -> Changes:
        """Return the changes of the operations, with their results if the commit succeeds."""
        if group[0].deleted is not None:
            return Changes((), group[0].deleted)
        if group[0].together is not None:
            return self._together(group[0], group[0].together, latest, config, files)
        conditional = sorted(
            {
                as_bytes(key)
                for one in group
                if one.request is not None and one.request.if_equal is not None
                for key, condition in zip(one.request.keys, one.request.if_equal, strict=True)
                if condition
            }
        )
        current: dict[bytes, Stored | GpustoreError | None] = {}
        if conditional and latest is not None:
            found = find(self._database, latest, conditional)
            current = dict(zip(conditional, found, strict=True))
        writes: dict[bytes, Stored | None] = {}
        for one in group:
            if one.request is not None:
                self._resolve(one, one.request, current, writes, config, files)
        return Changes(sorted(writes.items(), key=_first))

    def _resolve(
        self,
        operation: _Operation,
        request: WriteRequest,
        current: dict[bytes, Stored | GpustoreError | None],
        writes: dict[bytes, Stored | None],
        config: Config,
        files: DataFiles,
    ) -> None:
        columns = operation.columns = WriteColumns.blank(len(request.keys))
        for i, name in enumerate(request.keys):
            key = as_bytes(name)
            if request.if_equal is not None and request.if_equal[i]:
                now = writes[key] if key in writes else current.get(key)
                if isinstance(now, GpustoreError):
                    columns.error[i] = now
                    continue
                if generation_of(now) != request.if_equal[i]:
                    continue
            stored = self._stored(operation, i, request.values[i], config, files)
            writes[key] = stored
            columns.generation[i] = generation_of(stored)

    def _together(
        self,
        operation: _Operation,
        request: AtomicRequest,
        latest: Version | None,
        config: Config,
        files: DataFiles,
    ) -> Changes:
        """Return all changes of a request, or none if a condition fails."""
        names = sorted(request.expected, key=as_bytes)
        found: Sequence[Stored | GpustoreError | None] = [None] * len(names)
        if latest is not None and names:
            found = find(self._database, latest, list(map(as_bytes, names)))
        generations: dict[str, bytes] = {}
        for name, now in zip(names, found, strict=True):
            if isinstance(now, GpustoreError):
                raise now
            generations[name] = generation_of(now)
        operation.failed = request.failed(generations)
        if operation.failed:
            return Changes(())
        writes: dict[bytes, Stored | None] = {}
        for low, high in request.deleted if latest is not None else ():
            assert latest is not None
            end = None if high is None else as_bytes(high)
            for rows in leaves(self._database, latest, as_bytes(low), end):
                keys = rows.leaf.keys.tolist_after(rows.prefix, rows.low, rows.high)
                writes.update(dict.fromkeys(keys))
        for i, name in enumerate(request.keys):
            value = self._stored(operation, i, request.values[i], config, files)
            writes[as_bytes(name)] = value
        return Changes(sorted(writes.items(), key=_first))

    def _stored(
        self,
        operation: _Operation,
        i: int,
        value: Buffer | None,
        config: Config,
        files: DataFiles,
    ) -> Stored | None:
        """Return value `i` of an operation as it is stored: in the node, or in a data file."""
        if value is None:
            return None
        stored = operation.stored.get(i)
        if stored is None:
            nbytes = memoryview(value).nbytes
            if nbytes <= min(config.max_inline_value_bytes, MAX_INLINE_NBYTES):
                stored = bytes(value)
            else:
                stored = files.add(self._prefixes[0], memoryview(value).cast("B"))
            operation.stored[i] = stored
        return stored

    def _config(self, snapshot: Snapshot) -> Config:
        if snapshot.config is not None:
            if self._assumed is not None and self._assumed != snapshot.config:
                raise MismatchError(
                    f"{self._where} was made by somebody else meanwhile, with another "
                    "configuration than was assumed; open it again"
                )
            return snapshot.config
        if self._assumed is None:
            self._assumed = self._constraints.make(self._kind)
        return self._assumed

    @property
    def _kind(self) -> str:
        return "single" if self._database.manifests.driver.atomic_single_key else "numbered"

    @property
    def _where(self) -> str:
        base = self._database.base
        return f"the OCDBT database {base.driver.describe(base.path)}"

    # ------------------------------------------------------------------ manifests

    def _create(self, snapshot: Snapshot) -> None:
        """Begin a new database with a version without keys, unless another writer does."""
        config = snapshot.config or self._constraints.make(self._kind)
        version = self._next_version(None, Tree(0, ABSENT_ROOT, Totals(0, 0, 0)), config)
        self._publish(snapshot, Manifest(config, (version,), ()))

    def _next_version(self, latest: Version | None, tree: Tree, config: Config) -> Version:
        now = time.time_ns()
        generation = 1
        if latest is not None:
            generation = latest.generation + 1
            now = max(now, latest.commit_time + 1)
        if generation > max_generation(config.version_tree_arity_log2) or now > UINT64_MAX:
            raise LimitError(
                f"No version can follow generation {generation - 1} of {self._where}, which was "
                f"committed at {format_time(now - 1)}: copy its keys to a new database"
            )
        return Version(generation, tree.height, tree.root, tree.totals, now)

    def _publish(self, snapshot: Snapshot, manifest: Manifest) -> bool:
        """Replace the manifest if it is still that of the snapshot."""
        read_at = time.time()
        config, latest = manifest.config, manifest.latest
        if config.manifest_kind == "single":
            generation = self._write(MANIFEST_KEY, manifest.encode(), snapshot.generation, latest)
            if generation:
                self._database.remember(Snapshot(generation, config, manifest, read_at))
            return generation != b""
        if snapshot.config is None and not self._write(
            MANIFEST_KEY, encode_config(config), ABSENT, None
        ):
            return False
        name = numbered_key(latest.generation)
        if self._write(name, manifest.encode(), ABSENT, latest) == b"":
            return False
        if not self._contains(self._database.snapshot().manifest, latest):
            return False
        self._remove_older(latest.generation)
        return True

    def _write(
        self, name: str, data: bytes, if_equal: bytes, version: Version | None
    ) -> bytes | None:
        """Write a manifest conditionally.

        Returns its generation, ``b""`` if it was not written, None if it was, but nobody knows
        whether it is still there.
        """
        manifests = self._database.manifests
        columns = manifests.driver.write_many(
            WriteRequest([manifests.path + name], [data], [if_equal])
        )
        if not columns.error:
            return columns.generation[0]
        failure = columns.error[0]
        # The manifest may have been written all the same; the database tells.
        try:
            snapshot = self._database.snapshot()
        except GpustoreError:
            snapshot = None
        if snapshot is None:
            raise failure.suffixed(
                "; whether the commit happened is not known, since the manifest cannot be read"
            )
        if version is not None and self._contains(snapshot.manifest, version):
            return None
        raise failure

    def _contains(self, manifest: Manifest | None, version: Version) -> bool:
        """Return whether a version has become part of the database."""
        if manifest is None:
            return False
        try:
            return self._database.version(manifest, Generation(version.generation)) == version
        except NotFoundError:
            return False

    def _remove_older(self, generation: int) -> None:
        manifests = self._database.manifests
        last = numbered_key(max(0, generation - _KEPT_MANIFESTS))
        first = numbered_key(0)
        keys = [
            key
            for key in manifests.driver.list(manifests.path + first, manifests.path + last)
            if numbered_of(key[len(manifests.path) :]) is not None
        ]
        if keys:
            # Old manifests do no harm; the next commit removes those that are left.
            manifests.driver.write_many(WriteRequest(keys, [None] * len(keys)))


def _first(write: tuple[bytes, Stored | None]) -> bytes:
    return write[0]
