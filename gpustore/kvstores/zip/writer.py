"""Changes of a zip archive: threads that write at the same time share one rewrite.

A rewrite costs as much as the whole archive. A thread with a change therefore waits until no other
thread of the process rewrites the archive, and then writes the changes of all waiting threads.
Conditions are checked during the rewrite, in the order of the changes. The base's conditional write
detects changes by other processes, after which the rewrite is repeated
(:meth:`gpustore.kvstores.base.KvStoreDriver.replace`).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpustore.errors import ConflictError, GpustoreError, StoreIOError
from gpustore.kvstores.base import Base, Replacement
from gpustore.kvstores.columns import (
    ABSENT,
    AtomicRequest,
    WriteColumns,
    WriteRequest,
    condition_holds,
)
from gpustore.kvstores.zip.archive import Archive, Changed
from gpustore.kvstores.zip.directory import Directory
from gpustore.kvstores.zip.rewrite import NewMember, Rewrite
from gpustore.runtime.buffer import Buffer
from gpustore.runtime.group_commit import Change, GroupCommit
from gpustore.runtime.limits import Limits


@dataclass(slots=True, kw_only=True)
class _Change(Change):
    """Change of one caller: values of keys, or the deletion of a range.

    Attributes
    ----------
    rows : list of (int, str, NewMember or None, bytes)
        Row of `result`, key, new value, condition.
    ranges : sequence of (str, str or None)
        Ranges to delete first.
    together : AtomicRequest, optional
        Conditions without which nothing is changed.
    result : WriteColumns
    count : int
        Number of deleted keys of the ranges.
    failed : list of str
        Keys for which conditions of `together` failed.
    """

    result: WriteColumns
    rows: list[tuple[int, str, NewMember | None, bytes]] = field(default_factory=list)
    ranges: Sequence[tuple[str, str | None]] = ()
    together: AtomicRequest | None = None
    count: int = 0
    failed: list[str] = field(default_factory=list)

    def apply(self, directory: Directory, changes: dict[str, NewMember | None]) -> None:
        """Add the changes to `changes` whose conditions hold."""
        if self.together is not None:
            expected = self.together.expected
            found_now = {key: _generation(key, directory, changes) for key in expected}
            self.failed = self.together.failed(found_now)
            if self.failed:
                return
        self.count = 0
        for low, high in self.ranges:
            found = directory.between(low, high)
            present = {key for key in found if changes.get(key, key) is not None}
            present |= {
                key
                for key, member in changes.items()
                if member is not None and low <= key and (high is None or key < high)
            }
            changes.update(dict.fromkeys(present))
            self.count += len(present)
        for row, key, member, condition in self.rows:
            generation = _generation(key, directory if condition else None, changes)
            if member is not None and generation == member.generation:
                # A write whose answer was lost; another writer has changed other members since.
                self.result.generation[row] = generation
                continue
            if not condition_holds(condition, generation):
                self.result.generation[row] = b""
                continue
            changes[key] = member
            self.result.generation[row] = ABSENT if member is None else member.generation

    @property
    def only_deletes(self) -> bool:
        """Whether the change writes no value."""
        return all(member is None for _, _, member, _ in self.rows)


def _generation(
    key: str, directory: Directory | None, changes: dict[str, NewMember | None]
) -> bytes:
    """Return the generation of a key after `changes` of what a directory has."""
    if key in changes:
        now = changes[key]
        return ABSENT if now is None else now.generation
    if directory is None or key not in directory.rows:
        return ABSENT
    return directory.generation_of(directory.rows[key])


class Writer(GroupCommit[_Change]):
    """Writes changes of one archive. Thread-safe.

    Parameters
    ----------
    archive : Archive
    base : Base
        Key of the base that holds the archive.
    compression : str
        Compression of new members.
    limits : Limits
        The limit ``host_in_flight_nbytes`` applies to archives that must be in memory to be
        written.
    """

    def __init__(self, archive: Archive, base: Base, compression: str, limits: Limits) -> None:
        self._archive = archive
        self._base = base
        self._compression = compression
        self._limits = limits
        super().__init__()

    def write(self, request: WriteRequest, rows: Sequence[int], result: WriteColumns) -> None:
        """Write the given rows of a request, whose keys are legal."""
        if not rows:
            return
        change = _Change(result=result)
        for row in rows:
            member = self._member(request.keys[row], request.values[row])
            condition = b"" if request.if_equal is None else request.if_equal[row]
            change.rows.append((row, request.keys[row], member, condition))
        try:
            self._run(change)
        except GpustoreError as error:
            for row in rows:
                result.error[row] = error
                result.generation[row] = b""

    def _member(self, key: str, value: Buffer | None) -> NewMember | None:
        return None if value is None else NewMember.of(key, value, self._compression)

    def write_together(self, request: AtomicRequest) -> list[str]:
        """Make all changes in one rewrite, or none; return the keys whose conditions failed."""
        change = _Change(result=WriteColumns.blank(len(request.keys)), together=request)
        change.ranges = request.deleted
        change.rows = [
            (row, key, self._member(key, request.values[row]), b"")
            for row, key in enumerate(request.keys)
        ]
        self._run(change)
        return change.failed

    def delete_range(self, inclusive_min: str, exclusive_max: str | None) -> int:
        """Delete the keys of a range and return their number."""
        change = _Change(result=WriteColumns.blank(0), ranges=[(inclusive_min, exclusive_max)])
        self._run(change)
        return change.count

    def _commit(self, changes: Sequence[_Change]) -> None:
        if all(one.only_deletes for one in changes) and self._plan(changes)[1] is None:
            return  # The base shall not make directories for an archive that is not there.
        made: list[tuple[Rewrite, float]] = []

        def make() -> Replacement | None:
            directory, rewrite = self._plan(changes)
            if rewrite is None:
                return None
            made[:] = [(rewrite, time.time())]  # Later than the old directory was current.
            pieces = self._pieces(directory, rewrite)
            return Replacement(directory.generation, rewrite.nbytes, pieces)

        try:
            generation = self._base.driver.replace(self._base.path, make)
        except StoreIOError as error:  # All may be there: none is tried again alone.
            for one in changes:
                one.error = error
            return
        if generation:
            rewrite, began = made[0]
            directory = rewrite.directory(generation, last=self._archive.last)
            self._archive.remember(directory, began)

    def _plan(self, together: Sequence[_Change]) -> tuple[Directory, Rewrite | None]:
        """Return the current directory and its changes; None if there are none."""
        directory = self._archive.current()
        changes: dict[str, NewMember | None] = {}
        for one in together:
            one.apply(directory, changes)
        effective = {
            key: member
            for key, member in changes.items()
            if member is not None or key in directory.rows
        }
        if not effective:
            return directory, None
        try:
            rewrite = Rewrite(directory, effective)
            if not self._base.driver.replaces_in_pieces:
                what = "the archive, which is written as a whole"
                self._limits.check("host_in_flight_nbytes", rewrite.nbytes, what)
        except GpustoreError as error:
            where = f"Error writing {self._archive.where}"
            raise error.prefixed(where, key=self._base.path) from error.__cause__
        return directory, rewrite

    def _pieces(self, directory: Directory, rewrite: Rewrite) -> Iterator[Buffer]:
        """Yield the new archive; ConflictError if the old one no longer exists."""

        def read(start: int, stop: int) -> Buffer:
            try:
                return self._archive.read([(start, stop)], directory.generation)[0]
            except Changed:
                raise ConflictError(f"{self._archive.where} was replaced") from None

        return rewrite.pieces(read)
