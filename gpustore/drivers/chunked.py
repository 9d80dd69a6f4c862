"""An opened array of chunks: metadata, a kvstore, and the two pipelines between them."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from gpustore.backends.base import NEW, Backend, Output
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.json_array import object_array
from gpustore.data_types.unit import Unit
from gpustore.drivers._explained import explained_crops, explained_read, explained_write
from gpustore.drivers._metadata_file import MetadataFile
from gpustore.drivers._remembered import described
from gpustore.drivers._resizes import Latest, Resized
from gpustore.drivers.base import Driver, DriverSpec, OpenMode
from gpustore.drivers.format import ArrayDescription
from gpustore.errors import (
    ConflictError,
    MetadataError,
    MismatchError,
    NotFoundError,
    UnsupportedError,
    prefixing,
)
from gpustore.hierarchy.attributes import Attributes
from gpustore.hierarchy.nodes import Hierarchy
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.resize import ResizeRequest
from gpustore.kvstores.base import prefix_end
from gpustore.kvstores.columns import WriteRequest
from gpustore.kvstores.json_file import JsonFile
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.logical_path import ancestors
from gpustore.metadata.object_type import is_object
from gpustore.pipelines.chunked_array import ChunkedArray
from gpustore.pipelines.preload import preload
from gpustore.pipelines.read import StridedReads, planned_read, read
from gpustore.pipelines.read_batch import read_in_batch
from gpustore.pipelines.read_many import read_many
from gpustore.pipelines.reads_under_way import wait_with_others
from gpustore.pipelines.stored_chunks import stored_chunks
from gpustore.pipelines.write import write
from gpustore.planning.stored_chunks import StoredChunks
from gpustore.runtime.batch import Batch
from gpustore.runtime.cached_attribute import cached_attribute
from gpustore.runtime.cancel_token import CancelToken
from gpustore.runtime.context import Context
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future
from gpustore.runtime.progress import Progress
from gpustore.runtime.promise import Promise
from gpustore.runtime.transaction import Transaction
from gpustore.runtime.write_futures import WriteFutures
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.codec_spec import CodecSpec
from gpustore.strict_json.parsing import JsonValue, quote

if TYPE_CHECKING:
    from gpustore.explain.explanation import Explanation
    from gpustore.explain.write_explanation import WriteExplanation

_ATTEMPTS = 100

_DELETE_BATCH = 4096

_MOST_ENUMERATED = 100_000
"""Largest number of chunks that are deleted by name; with more, the existing ones are
listed first.
"""

_INDEX = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


class Origin(Protocol):
    """Setting from which an opened driver was made."""

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        """Context resources of the driver and its kvstore, by identifier."""

    def array(self, metadata: Any, description: ArrayDescription, /) -> ChunkedArray:
        """Return the argument of the pipelines."""

    def is_alike(self, other: Any, /) -> bool:
        """Whether :meth:`array` makes the same of one description, but for store and prefix."""

    def respec(self, opened: ChunkedDriver, metadata: Any, /) -> DriverSpec:
        """Return the unopened spec with `metadata`, or with None a minimal one."""

    def bound(self, opened: ChunkedDriver, transaction: Transaction | None, /) -> ChunkedDriver:
        """Return the opened array with all operations in a transaction, or in none."""


@dataclass(eq=False)
class ChunkedDriver:
    """An opened array of chunks. Not to be changed: a resized one is another object. (Attributes of
    a frozen dataclass take three times as long to set.)

    Attributes
    ----------
    file : MetadataFile
    metadata : object
        Stored metadata, of the format's metadata class.
    description : ArrayDescription
    origin : Origin
    assumed : bool
        Whether the metadata are those of the spec, regardless of the stored ones.
    recheck : float
        Metadata read before this time are read again by each operation; infinite for all.
    read_at : float
        Time at which the metadata were read or assumed, in seconds since the epoch.
    hierarchy : Hierarchy or None
        The array's hierarchy, if known: changes remove its consolidated metadata.
    zattrs : mapping of str to JsonValue, optional
        The attributes document ``.zattrs`` of Zarr v2, if it was read before.
    """

    file: MetadataFile
    metadata: Any
    description: ArrayDescription
    origin: Origin
    kvstore: KvStore
    readable: bool
    writable: bool
    assumed: bool
    recheck: float
    read_at: float
    hierarchy: Hierarchy | None = None
    zattrs: Mapping[str, JsonValue] | None = None

    base = None

    # The order of writes, and what reads share, go by the identity of these two: all threads get
    # the one that was made first.
    @cached_attribute
    def array(self) -> ChunkedArray:
        """Argument of the pipelines for writing."""
        return self.origin.array(self.metadata, self.description)

    @cached_attribute
    def reader(self) -> ChunkedArray:
        """Argument of the pipelines for reading."""
        return self.array.reader()

    @cached_attribute
    def strided_reads(self) -> StridedReads | None:
        """What makes the reads that the native core plans."""
        return StridedReads.of(self.reader)

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        return self.origin.resources

    @property
    def id(self) -> str:
        return self.file.format.json_id

    @property
    def key_prefix(self) -> str:
        """Prefix of the keys of chunks."""
        return self.kvstore.path + self.description.key_prefix

    def is_alike(self, other: ChunkedDriver) -> bool:
        """Whether both differ for reads in their kvstores and the prefixes of their keys alone."""
        same = self.description is other.description
        return same and self.origin.is_alike(other.origin)

    @property
    def backend(self) -> Backend:
        return self.array.backend

    @property
    def device(self) -> str:
        return self.array.backend.device

    @property
    def dtype(self) -> dtype_:
        return self.description.dtype

    @property
    def domain(self) -> IndexDomain:
        return self.description.domain

    @property
    def chunk_layout(self) -> ChunkLayout:
        return self.description.chunk_layout

    @property
    def codec(self) -> CodecSpec:
        return self.description.codec

    @property
    def fill_value(self) -> Any:
        return self.description.fill_value

    @property
    def dimension_units(self) -> tuple[Unit | None, ...]:
        return self.description.units

    @cached_attribute
    def attributes(self) -> Attributes:
        """Attributes in the metadata, or for Zarr v2 in the document ``.zattrs`` beside them."""
        file = self.file
        place = file.format.attributes_place
        values = getattr(self.metadata, place.field) if place.field else self.zattrs
        key = self.kvstore.path + place.key if place.key else file.key
        return Attributes(
            JsonFile(file.store, key, file.limits, file.cache),
            place.member,
            self.executor,
            values=values,
            reserved=place.reserved,
            writable=self.writable and not self.assumed,
            before=self._invalidate,
        )

    def _invalidate(self) -> None:
        """Take away the consolidated metadata that tell of the array."""
        if self.hierarchy is not None:
            self.hierarchy.invalidate(ancestors(self.hierarchy.path_of(self.kvstore.path)))

    @property
    def open_mode(self) -> OpenMode:
        return OpenMode(assume_metadata=self.assumed)

    def spec(self, *, minimal: bool) -> DriverSpec:
        """Return a spec that opens or creates the array again."""
        if minimal:
            return self.origin.respec(self, None)
        metadata = self.latest.metadata  # A spec with an old shape would not match.
        field = self.file.format.attributes_place.field
        if field and "attributes" in vars(self):
            # As changed through the array.
            metadata = replace(metadata, **{field: self.attributes.asdict()})
        return self.origin.respec(self, metadata)

    @property
    def is_outdated(self) -> bool:
        """Whether operations use the bounds stored now, in place of those of :attr:`metadata`."""
        read_at = self.read_at
        return self.recheck > read_at or (read_at < Latest.at and self._resized() is not None)

    @property
    def latest(self) -> ChunkedDriver:
        """The array with the shape that it was given last in its context; no I/O."""
        if self.read_at >= Latest.at or self._resized() is None:
            return self
        return self.resolve(-math.inf)

    def _resized(self) -> Resized | None:
        """Return the shape that the array was given later in its context, by another object."""
        found = self.file.resized(self.read_at)
        if found is None or self.assumed or not self.metadata.same_array(found.metadata):
            return None
        return found

    def read(
        self, transform: IndexTransform, output: Output, batch: Batch | None = None
    ) -> Future[Any]:
        """Read through :mod:`gpustore.pipelines.read`, or ``read_batch`` in a batch."""
        # A read for a stream is not kept waiting for others.
        wait = wait_with_others if output is NEW or output.stream is None else None
        read_at = self.read_at
        # Small reads are many, and most arrays are not: calling a property takes longer than this.
        if (self.recheck > read_at or read_at < Latest.at) and self.is_outdated:
            output = self._from_here(output)
            start = self._rechecked(transform, partial(read, output=output, wait=wait))
            if batch is None:
                return start()
            return batch._later(start, lambda: self.explain(transform))
        strided = self.strided_reads
        one = None if strided is None else strided.one(transform, output)
        if batch is not None:
            return read_in_batch(self.reader, transform, batch, output, one)
        return planned_read(self.reader, transform, output, wait) if one is None else one.ask()

    def read_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...], output: Output
    ) -> Future[Any]:
        """Read through :mod:`gpustore.pipelines.read_many`."""
        if self.is_outdated:
            output = self._from_here(output)
            crops = partial(read_many, starts=starts, extent=shape, output=output)
            return self._rechecked(transform, crops)()
        return read_many(self.reader, transform, starts, shape, output)

    def preload(self, transform: IndexTransform, progress: Progress) -> Future[None]:
        """Fill the cache of the device through :mod:`gpustore.pipelines.preload`."""
        if self.is_outdated:
            return self._rechecked(transform, partial(preload, progress=progress))()
        return preload(self.reader, transform, progress)

    def stored_chunks(self, transform: IndexTransform) -> Future[StoredChunks]:
        """Look up which chunks are stored through :mod:`gpustore.pipelines.stored_chunks`."""
        if self.is_outdated:
            return self._rechecked(transform, stored_chunks)()
        return stored_chunks(self.array, transform)

    def _from_here(self, output: Output) -> Output:
        """Fix the caller's current stream in the output of a read that begins on another thread."""
        return output._replace(stream=self.array.backend.caller_stream(output.stream))

    def explain(self, transform: IndexTransform) -> Explanation:
        """Explain the plan of the read, with the bounds that it will use."""
        driver, transform = self._with_bounds(transform)
        return explained_read(driver.reader, transform)

    def explain_write(self, transform: IndexTransform) -> WriteExplanation:
        """Explain the plan of the write, with the bounds that it will use."""
        driver, transform = self._with_bounds(transform)
        return explained_write(driver.array, transform)

    def explain_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...]
    ) -> Explanation:
        """Explain the plan of the crops, with the bounds that they will use."""
        driver, transform = self._with_bounds(transform)
        return explained_crops(driver.reader, transform, starts, shape)

    def _with_bounds(self, transform: IndexTransform) -> tuple[ChunkedDriver, IndexTransform]:
        """Return the array that is used, with the bounds stored now if that is asked for."""
        if self.is_outdated:
            driver = self.resolve(self.recheck)
            return driver, IndexTransform(driver.domain)[transform]
        return self, transform

    def write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        """Write through :mod:`gpustore.pipelines.write`.

        Raises
        ------
        UnsupportedError
            If the metadata have unknown extensions, which reads ignore.
        """
        if self.description.passed_over:
            names = ", ".join(map(quote, self.description.passed_over))
            raise UnsupportedError(
                f"{self.file.name} has extensions that are not known: {names}; they are marked "
                f'{{"must_understand": false}}, so the array can be read without them, but what is '
                f"written without them might not be what others read"
            )
        if is_object(self.dtype):
            source = object_array(source, self.dtype, max_rank=transform.domain.rank)
        if self.is_outdated:
            return self._write_rechecked(transform, source)
        return self._write(transform, source)

    def _write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        return write(self.array, transform, source)

    def _rechecked(
        self, transform: IndexTransform, begin: Callable[..., Future[Any]]
    ) -> Callable[[], Future[Any]]:
        """Wrap a read so that it uses the bounds stored when it runs."""

        def run() -> Future[Any]:
            driver = self.resolve(self.recheck)
            return begin(driver.reader, IndexTransform(driver.domain)[transform])

        return lambda: self.executor.submit(run)

    def _write_rechecked(self, transform: IndexTransform, source: Any) -> WriteFutures:
        copied: Promise[None]
        copied, copy = Promise.new()
        begun = False

        def run() -> Future[None]:
            nonlocal begun
            begun = True
            try:
                wanted = CancelToken.current()
                wanted.check()
                driver = self.resolve(self.recheck)
                wanted.check()
                bounded = IndexTransform(driver.domain)[transform]
                futures = driver._write(bounded, source)
            except BaseException:
                copied.set_result(None)
                raise
            copied.follow(futures.copy)
            return futures.commit

        def skipped(_: Future[None]) -> None:
            if not begun:
                copied.set_result(None)

        commit: Future[None] = self.executor.submit(run, drain=True)
        commit.add_done_callback(skipped)
        return WriteFutures(copy, commit)

    def with_metadata(self, metadata: Any, read_at: float) -> ChunkedDriver:
        """Return the same array with other metadata, read at the time `read_at`."""
        description = described(self.file.format, metadata, self.file.limits)
        changed = replace(
            self, metadata=metadata, description=description, read_at=read_at, zattrs=None
        )
        vars(changed)["array"] = replace(self.array, shape=description.shape)
        return changed

    @property
    def executor(self) -> Executor:
        return self.array.executor

    @property
    def transaction(self) -> Transaction | None:
        return None

    def in_transaction(self, transaction: Transaction | None) -> ChunkedDriver:
        """Return the array with all operations in a transaction, or in none."""
        return self.origin.bound(self.latest, transaction)

    def resolve(self, bound: float = math.inf) -> ChunkedDriver:
        """Read the metadata again and return the driver with them; only the shape may differ.
        Assumed metadata stay.

        Metadata cached at the time `bound` or later are accepted, and those that a resize in this
        context has stored since.

        Raises
        ------
        NotFoundError
            If the metadata no longer exist.
        MismatchError
            If another array has replaced this one.
        """
        if self.assumed:
            return self
        resized = self._resized()
        if resized is not None and resized.at >= bound:
            later: ChunkedDriver | None = vars(self).get("later")
            if later is None or later.read_at < resized.at:
                later = vars(self)["later"] = self.with_metadata(*resized)
            return later
        read_at = time.time()
        return self.with_metadata(self._current(bound)[0], read_at)

    def _current(self, bound: float = math.inf) -> tuple[Any, bytes]:
        metadata, generation = self.file.load(bound)
        if metadata is None:
            raise NotFoundError(
                f"Metadata at {self.file.name} does not exist",
                key=self.file.key,
                status="FAILED_PRECONDITION",
            )
        if not self.metadata.same_array(metadata):
            raise MismatchError(
                f"Updated {self.file.format.words.name} metadata {metadata.encode().decode()} is "
                f"incompatible with existing metadata {self.metadata.encode().decode()} of the "
                f"array opened from {self.file.name}; open it again",
                key=self.file.key,
            )
        return metadata, generation

    def resize(self, transform: IndexTransform, request: ResizeRequest) -> Driver:
        """Change the shape and delete the chunks outside of it.

        Raises
        ------
        MetadataError
            If the bounds of the domain of `transform` are not resizable, or the metadata are
            assumed.
        MismatchError
            If the change would affect elements outside of `transform`, or has not the requested
            direction.
        NotFoundError
            If the metadata no longer exist.
        """
        if not self.writable:
            raise MetadataError("Destination does not support writing.")
        if self.assumed:
            raise MetadataError("Resize not supported because assume_metadata was specified")
        outputs = request.output(transform)
        if outputs is None:
            return self.resolve()
        if not self.array.chain.layout.is_dense and not request.resize_tied_bounds:
            raise MismatchError(
                "Resize operation would affect other fields but `resize_tied_bounds` was not "
                "specified",
                status="FAILED_PRECONDITION",
            )
        for _ in range(_ATTEMPTS):
            read_at = time.time()
            metadata, generation = self._current()
            old = tuple(metadata.shape)
            for o, (output, size) in enumerate(zip(outputs, old)):
                if output.inclusive_min not in (None, 0):
                    raise MismatchError(
                        f"Cannot change inclusive lower bound of output dimension {o}, which is "
                        f"fixed at 0, to {output.inclusive_min}"
                    )
                output.check_tied(o, 0, size)
            bounds = (output.exclusive_max for output in outputs)
            new = tuple(size if bound is None else bound for size, bound in zip(old, bounds))
            with prefixing(f"Error writing {self.file.name}"):
                _check_direction(old, new, request)
            resized = metadata.with_shape(new)
            if new != old:
                self._invalidate()
            if new == old or self.file.save(resized, generation):
                if new != old:
                    read_at = time.time()  # Who has opened it meanwhile knows the old shape.
                self.file.set_resized(resized, read_at)
                if not request.resize_metadata_only:
                    self._delete_outside(old, new)
                return self.with_metadata(resized, read_at)
        raise ConflictError(
            f"Error writing {self.file.name}: another writer was faster {_ATTEMPTS} times",
            key=self.file.key,
        )

    def _delete_outside(self, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        """Delete the chunks that the old shape has and the new one has not."""
        array = self.array
        before, after = map(self.description.cells, (old, new))
        kept = math.prod(min(a, b) for a, b in zip(after, before))
        if math.prod(before) - kept > _MOST_ENUMERATED and array.store.can_list:
            keys: Iterator[str] = iter(self._listed_outside(after))
        else:
            keys = map(self._key, _cells_outside(before, after))
        while batch := list(itertools.islice(keys, _DELETE_BATCH)):
            try:
                array.store.write_many(WriteRequest(batch, [None] * len(batch))).raise_first()
            finally:
                array.forget(batch)

    def _key(self, cell: tuple[int, ...]) -> str:
        return self.array.key_prefix + self.array.key_separator.join(map(str, cell))

    def _listed_outside(self, after: tuple[int, ...]) -> list[str]:
        """Stored chunks outside the new grid: for grids too large to enumerate."""
        array = self.array
        prefix = array.key_prefix
        found = []
        for key in array.store.list(prefix, prefix_end(prefix)):
            parts = key[len(prefix) :].split(array.key_separator)
            # "01" and "+1" are not keys of chunks.
            if len(parts) == len(after) and all(map(_INDEX.fullmatch, parts)):
                cell = tuple(map(int, parts))
                if any(i >= size for i, size in zip(cell, after)):
                    found.append(key)
        return found


def _cells_outside(before: tuple[int, ...], after: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Cells of the old grid that the new one lacks, each of them once."""
    for d in range(len(before)):
        # Chunks outside the bounds of dimension d and inside those of all earlier ones.
        axes = [range(min(a, b)) for a, b in zip(after[:d], before[:d])]
        axes += [range(after[d], before[d])]
        axes += [range(b) for b in before[d + 1 :]]
        yield from itertools.product(*axes)


def _check_direction(old: tuple[int, ...], new: tuple[int, ...], request: ResizeRequest) -> None:
    for d, (before, after) in enumerate(zip(old, new)):
        for verb, flag, violated in (
            ("shrink", "expand_only", request.expand_only and after < before),
            ("expand", "shrink_only", request.shrink_only and after > before),
        ):
            if violated:
                raise MismatchError(
                    f"Resize operation would {verb} output dimension {d} from [0, {before}) to "
                    f"[0, {after}) but `{flag}` was specified"
                )
