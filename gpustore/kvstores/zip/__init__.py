"""The ``zip`` kvstore: the members of a zip archive, which lies in one key of another kvstore.

JSON ``{"driver": "zip", "base": "file:///data/a.zip", "path": "a/"}``, URL
``file:///data/a.zip|zip:a/``. Members that are stored without compression are read like parts of
the archive, straight to a device too; members compressed by deflate, bzip2, zstd or xz are decoded
on the host. Whole members are compared with their checksums, on the device if their bytes go
straight there; parts of members are not.

A write makes a new archive beside the old one and then replaces it: every batch of changes is one
such rewrite, and writers that wait for one another share it. The base's conditional writes exclude
other writers, also in other processes.

Members of the spec: `compression` of new members ("store", "deflate", "zstd", "xz"; data that do
not shrink are stored), and `duplicates`: two members of one name are an error, or ("last") the last
one counts. ``cache_pool`` keeps decoded members; ``limits`` has ``zip_entry_nbytes`` and
``zip_directory_nbytes``.

Source: TensorStore ``kvstore/zip``, https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from gpustore.errors import ConflictError, GpustoreError, InvalidKeyError
from gpustore.kvstores.adapter import AdapterKvStore, AdapterSpec, Part
from gpustore.kvstores.columns import (
    ABSENT,
    AtomicRequest,
    LocateColumns,
    ReadColumns,
    ReadRequest,
    ReadState,
    WriteColumns,
    WriteRequest,
    check_byte_range,
    check_nbytes,
    condition_holds,
)
from gpustore.kvstores.direct_reads import DirectReads
from gpustore.kvstores.zip.archive import Archive, Changed
from gpustore.kvstores.zip.directory import Directory, check_name
from gpustore.kvstores.zip.lost import find_lost
from gpustore.kvstores.zip.member import (
    ENCODE_METHODS,
    check_crc32,
    check_encoded_nbytes,
    decode,
    wrong_crc32,
)
from gpustore.kvstores.zip.writer import Writer
from gpustore.resources.cache_pool import cache_of
from gpustore.runtime.cache import Entry, Space
from gpustore.url import require_no_slashes

if TYPE_CHECKING:
    import builtins
    from collections.abc import Iterable, Mapping, Sequence

    from gpustore.kvstores.base import Base
    from gpustore.kvstores.spec import KvStoreSpec
    from gpustore.runtime.buffer import Buffer
    from gpustore.runtime.context import Context
    from gpustore.runtime.limits import Limits
    from gpustore.strict_json.parsing import JsonValue, Members
    from gpustore.url import UrlComponent


# Decoded bytes of chunks in a batch: each batch writes the whole archive. A thread holds so many.
_WRITE_NBYTES: Final = 32 << 20

# How often members are looked up anew because the archive was replaced meanwhile.
_ATTEMPTS: Final = 20


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Requested part of a member, for a row of a request."""

    row: int
    member: int
    start: int
    stop: int


class ZipKvStore(AdapterKvStore):
    """An opened zip kvstore.

    Parameters
    ----------
    base : Base
        The key that holds the archive.
    spec : ZipSpec
    resources : mapping of str to Context.Resource
    """

    id = "zip"
    write_nbytes = _WRITE_NBYTES

    def __init__(
        self, base: Base, *, spec: ZipSpec, resources: Mapping[str, Context.Resource]
    ) -> None:
        super().__init__(base, spec=spec, resources=resources)
        self.can_write = self.writes_together = base.driver.can_write
        self.batch_nbytes = base.driver.batch_nbytes
        self.atomic_single_key = base.driver.atomic_single_key
        self.locates_files = base.driver.locates_files
        self._limits: Limits = resources["limits"].value
        self._cache = cache_of(resources["cache_pool"].value)
        self._archive = Archive(base, limits=self._limits, last=spec.duplicates == "last")
        self._writer = Writer(self._archive, base, spec.compression, self._limits)

    def check_key(self, key: str) -> None:
        check_name(key)

    # ------------------------------------------------------------------ reading

    def read_many(self, request: ReadRequest) -> ReadColumns:
        result = ReadColumns.blank(len(request.keys))
        try:
            for _ in range(_ATTEMPTS):
                directory, is_recent = self._archive.recent(request.staleness_bound)
                try:
                    if self._read(directory, request, result) or is_recent:
                        return result
                    # No byte of the archive was read, so its generation has not been compared.
                    if self._archive.current() is directory:
                        return result
                except Changed:
                    self._archive.current()
                result = ReadColumns.blank(len(request.keys))
            raise self._always_replaced()
        except GpustoreError as error:
            result = ReadColumns.blank(len(request.keys))
            result.error.update(dict.fromkeys(range(len(request.keys)), error))
            return result

    def _read(self, directory: Directory, request: ReadRequest, result: ReadColumns) -> bool:
        """Read the whole request; return whether anything was read of the archive."""
        stored: list[_Wanted] = []
        compressed: list[_Wanted] = []
        for row, key in enumerate(request.keys):
            try:
                wanted = self._look_up(directory, row, key, request, result)
                if wanted is None:
                    continue
                # An empty member is looked at all the same: its size may be wrong.
                if wanted.start == wanted.stop and directory.decoded_nbytes[wanted.member]:
                    self._deliver(b"", row, request, result)
                elif directory.record["method"][wanted.member] == 0:
                    stored.append(wanted)
                elif not self._read_cached(directory, wanted, request, result):
                    compressed.append(wanted)
            except GpustoreError as error:
                result.error[row] = error
        lost = find_lost(self._archive, directory, request.keys, result.generation)
        for row in lost:
            self._fail(row, lost[row], request, result)
        everything = stored + compressed
        if not everything:
            return False
        members = list(dict.fromkeys(wanted.member for wanted in everything))
        whole = {wanted.member for wanted in compressed}
        whole |= {wanted.member for wanted in stored if self._is_whole(directory, wanted)}
        located = self._archive.locate(directory, members, whole)
        for wanted in everything:
            if wanted.member in located.error:
                self._fail(wanted.row, located.error[wanted.member], request, result)
        self._read_stored(directory, stored, located.encoded, request, result)
        self._read_compressed(directory, compressed, located.encoded, request, result)
        return True

    def _look_up(
        self,
        directory: Directory,
        row: int,
        key: str,
        request: ReadRequest,
        result: ReadColumns,
    ) -> _Wanted | None:
        """Return the part to read for a row; None if its result is known."""
        member = directory.rows.get(key)
        if member is None:
            self.check_key(key)
            directory.check_missing(key)
            result.generation[row] = ABSENT
            if request.if_equal is None or condition_holds(request.if_equal[row], ABSENT):
                result.state[row] = ReadState.MISSING
            return None
        generation = directory.generation_of(member)
        nbytes = int(directory.decoded_nbytes[member])
        result.generation[row] = generation
        result.total[row] = nbytes
        if request.if_equal is not None and not condition_holds(request.if_equal[row], generation):
            return None
        condition = b"" if request.if_not_equal is None else request.if_not_equal[row]
        if condition and condition == generation:
            return None
        try:
            self._check(directory, member)
            start = 0 if request.start is None else int(request.start[row])
            stop = None if request.stop is None else request.stop[row]
            start, end = check_byte_range(nbytes, start, stop, key)
            check_nbytes(end - start, request.max_nbytes, key)
        except GpustoreError as error:
            raise self._explained(error, key) from error.__cause__
        return _Wanted(row, member, start, int(end))

    def _check(self, directory: Directory, member: int) -> None:
        """Raise the error of a member that cannot be decoded, or is too large."""
        directory.check(member)
        nbytes = int(directory.decoded_nbytes[member])
        method = int(directory.record["method"][member])
        check_encoded_nbytes(method, int(directory.encoded_nbytes[member]), nbytes)
        if method:
            self._limits.check("zip_entry_nbytes", nbytes, "decoded member of the archive")

    def _read_stored(
        self,
        directory: Directory,
        stored: Sequence[_Wanted],
        encoded: Mapping[int, memoryview],
        request: ReadRequest,
        result: ReadColumns,
    ) -> None:
        """Read parts of members that are stored as they are."""
        parts = []
        rest: builtins.list[_Wanted] = []
        for wanted in stored:
            if wanted.row in result.error:
                continue
            if wanted.member in encoded:
                whole = encoded[wanted.member]
                part = whole[wanted.start : wanted.stop]
                self._checked(directory, wanted, part, request, result)
                continue
            start = int(directory.data_start[wanted.member])
            rest.append(wanted)
            parts.append(
                Part(
                    wanted.row,
                    self.base.path,
                    start + wanted.start,
                    start + wanted.stop,
                    directory.generation,
                )
            )
        if self.read_parts(parts, request, result):
            raise Changed
        for wanted, place in zip(rest, parts):
            value = result.value[wanted.row]
            if value is None:
                continue
            try:
                self._archive.check_received(value, place.start, place.stop)
                direct = None if request.into is None else request.into.direct
                if direct is None or not direct.holds(memoryview(value)):
                    self._check_crc32(directory, wanted, value)
                elif self._is_whole(directory, wanted):
                    key = request.keys[wanted.row]
                    self._expect_crc32(directory, wanted, memoryview(value), direct, key)
            except GpustoreError as error:
                self._fail(wanted.row, error, request, result)

    def _read_compressed(
        self,
        directory: Directory,
        compressed: Sequence[_Wanted],
        encoded: Mapping[int, memoryview],
        request: ReadRequest,
        result: ReadColumns,
    ) -> None:
        """Read parts of compressed members, each of which is decoded once."""
        members: dict[int, builtins.list[_Wanted]] = {}
        for wanted in compressed:
            if wanted.row not in result.error:
                members.setdefault(wanted.member, []).append(wanted)
        absent = [member for member in members if member not in encoded]
        ranges = []
        for member in absent:
            start = int(directory.data_start[member])
            ranges.append((start, start + int(directory.encoded_nbytes[member])))
        read = self._archive.read(ranges, directory.generation) if ranges else []
        data: dict[int, Buffer] = {**encoded, **dict(zip(absent, read))}
        for member, rows in members.items():
            try:
                decoded = self._decode(directory, member, rows, data[member], request)
            except GpustoreError as error:
                for wanted in rows:
                    self._fail(wanted.row, error, request, result)
                continue
            for wanted in rows:
                part = memoryview(decoded)[wanted.start : wanted.stop]
                self._deliver(part, wanted.row, request, result)

    def _decode(
        self,
        directory: Directory,
        member: int,
        rows: Iterable[_Wanted],
        encoded: Buffer,
        request: ReadRequest,
    ) -> bytes:
        """Decode as much of a member as its rows need; all of it if a cache can keep it."""
        nbytes = int(directory.decoded_nbytes[member])
        cache, key = self._cache, ""
        stop = max(wanted.stop for wanted in rows)
        if cache is not None and nbytes <= cache.limit:
            key = request.keys[next(iter(rows)).row]
            stop = nbytes
        decoded = decode(int(directory.record["method"][member]), encoded, nbytes, stop)
        if stop == nbytes:
            check_crc32(decoded, int(directory.record["crc32"][member]))
        if cache is not None and key:
            generation = directory.generation_of(member)
            (_, stamp), *_ = cache.find(self._space, [key], [None])
            if generation:
                entry = Entry(decoded, nbytes, generation, time.time())
                cache.put(self._space, key, None, entry, stamp)
        return decoded

    def _read_cached(
        self, directory: Directory, wanted: _Wanted, request: ReadRequest, result: ReadColumns
    ) -> bool:
        """Take a part of a member from the cache, if present."""
        if self._cache is None:
            return False
        (entry, _), *_ = self._cache.find(self._space, [request.keys[wanted.row]], [None])
        if entry is None or entry.generation != directory.generation_of(wanted.member):
            return False
        part = memoryview(entry.value)[wanted.start : wanted.stop]
        self._deliver(part, wanted.row, request, result)
        return True

    @property
    def _space(self) -> Space:
        return Space(self.identity, "zip")

    def _checked(
        self,
        directory: Directory,
        wanted: _Wanted,
        value: Buffer,
        request: ReadRequest,
        result: ReadColumns,
    ) -> None:
        try:
            self._check_crc32(directory, wanted, value)
        except GpustoreError as error:
            self._fail(wanted.row, error, request, result)
        else:
            self._deliver(value, wanted.row, request, result)

    @staticmethod
    def _is_whole(directory: Directory, wanted: _Wanted) -> bool:
        nbytes: int = directory.decoded_nbytes[wanted.member]
        return wanted.stop - wanted.start == nbytes

    def _check_crc32(self, directory: Directory, wanted: _Wanted, value: Buffer) -> None:
        """Compare a whole member with its checksum."""
        if self._is_whole(directory, wanted):
            check_crc32(value, int(directory.record["crc32"][wanted.member]))

    def _expect_crc32(
        self,
        directory: Directory,
        wanted: _Wanted,
        value: memoryview,
        direct: DirectReads,
        key: str,
    ) -> None:
        """Have the device compare a member that is only there with its checksum."""
        expected = int(directory.record["crc32"][wanted.member])

        def error(found: int) -> GpustoreError:
            return self._explained(wrong_crc32(found, expected), key)

        direct.expect(value, expected, error)

    @staticmethod
    def _deliver(value: Buffer, row: int, request: ReadRequest, result: ReadColumns) -> None:
        """Put bytes into the memory of the request."""
        if request.into is None:
            result.value[row] = bytes(value)
        else:
            out = request.into.take(len(value))
            out[:] = value
            result.value[row] = out
        result.state[row] = ReadState.VALUE

    def _fail(
        self, row: int, error: GpustoreError, request: ReadRequest, result: ReadColumns
    ) -> None:
        result.state[row] = ReadState.UNSPECIFIED
        result.value[row] = None
        result.error[row] = self._explained(error, request.keys[row])

    def _explained(self, error: GpustoreError, key: str) -> GpustoreError:
        """Return an error about a member with the member's name."""
        if error.key == key:
            return error
        explained = error.prefixed(f"Error reading {self.describe(key)}")
        explained.key = key
        explained.__cause__ = error.__cause__
        return explained

    def locate_many(self, keys: Sequence[str]) -> LocateColumns:
        """Return the places of stored members; compressed ones have a length, but no place."""
        for _ in range(_ATTEMPTS):
            directory = self._archive.current()
            try:
                result = self._locate(directory, keys)
            except Changed:
                continue
            if self._archive.current() is directory:
                return result
        raise self._always_replaced()

    def _always_replaced(self) -> ConflictError:
        return ConflictError(
            f"Error reading {self._archive.where}: it was replaced {_ATTEMPTS} times while being "
            f"read; retry when its writer is done",
            key=self.base.path,
        )

    def _locate(self, directory: Directory, keys: Sequence[str]) -> LocateColumns:
        result = LocateColumns.blank(len(keys))
        stored: dict[int, int] = {}
        for row, key in enumerate(keys):
            try:
                member = directory.rows.get(key)
                if member is None:
                    self.check_key(key)
                    directory.check_missing(key)
                    result.generation[row] = ABSENT
                    continue
                self._check(directory, member)
                result.generation[row] = directory.generation_of(member)
                result.nbytes[row] = int(directory.decoded_nbytes[member])
                result.crc32[row] = int(directory.record["crc32"][member])
                if directory.record["method"][member] == 0:
                    stored[row] = member
            except GpustoreError as error:
                result.error[row] = self._explained(error, key)
        lost = find_lost(self._archive, directory, keys, result.generation)
        for row in lost:
            result.error[row] = self._explained(lost[row], keys[row])
        located = self._archive.locate(directory, list(dict.fromkeys(stored.values())))
        parts = []
        for row, member in stored.items():
            if member in located.error:
                result.error[row] = self._explained(located.error[member], keys[row])
                continue
            start = int(directory.data_start[member])
            stop = start + result.nbytes[row]
            parts.append(Part(row, self.base.path, start, stop, directory.generation))
        self.locate_parts(parts, result)
        return result

    def list(self, inclusive_min: str = "", exclusive_max: str | None = None) -> builtins.list[str]:
        return self._archive.current().between(inclusive_min, exclusive_max)

    # ------------------------------------------------------------------ writing

    def write_many(self, request: WriteRequest) -> WriteColumns:
        result = WriteColumns.blank(len(request.keys))
        legal = []
        for row, key in enumerate(request.keys):
            try:
                self.check_key(key)
            except InvalidKeyError as error:
                result.error[row] = error
            else:
                legal.append(row)
        self._writer.write(request, legal, result)
        return result

    def write_together(self, request: AtomicRequest) -> builtins.list[str]:
        for key in request.keys:
            self.check_key(key)
        return self._writer.write_together(request)

    def delete_range(self, inclusive_min: str = "", exclusive_max: str | None = None) -> int:
        return self._writer.delete_range(inclusive_min, exclusive_max)


@dataclass(frozen=True, slots=True, kw_only=True)
class ZipSpec(AdapterSpec):
    """Spec of a zip kvstore.

    Attributes
    ----------
    compression : str
        Compression of new members.
    duplicates : str
        Treatment of several members with one name: ``"error"``, or ``"last"`` to use the last one.
    """

    compression: str = "deflate"
    duplicates: str = "error"

    id = "zip"
    resource_ids = ("cache_pool", "data_copy_concurrency", "limits")

    def own_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        json: dict[str, JsonValue] = {}
        if include_defaults or self.compression != "deflate":
            json["compression"] = self.compression
        if include_defaults or self.duplicates != "error":
            json["duplicates"] = self.duplicates
        return json

    def open_on(self, base: Base, resources: Mapping[str, Context.Resource]) -> ZipKvStore:
        return ZipKvStore(base, spec=self, resources=resources)


class _Kind:
    """Parses both forms of a zip spec."""

    id = "zip"
    is_adapter: Literal[True] = True
    schemes = ("zip",)

    def from_json(self, members: Members) -> ZipSpec:
        return ZipSpec(
            compression=members.take_str("compression", "deflate", choices=tuple(ENCODE_METHODS)),
            duplicates=members.take_str("duplicates", "error", choices=("error", "last")),
            **ZipSpec.take(members),
        )

    def from_url(self, component: UrlComponent, base: KvStoreSpec) -> tuple[ZipSpec, str]:
        require_no_slashes(component)
        return ZipSpec(base=base), component.path

    def check_path(self, path: str) -> None:
        if path:
            # A path may end anywhere: with a slash, or in the middle of a name.
            check_name(path.removesuffix("/"))


DRIVER = _Kind()
