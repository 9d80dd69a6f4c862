"""The seam between the front and the drivers: the interfaces of an unopened and an opened driver.

A driver has two states. A :class:`DriverSpec` is plain data, made from JSON: the array to be opened
and the constraints on it. :meth:`DriverSpec.open` turns it into a :class:`Driver`, which reads and
writes through index transforms into its own domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self

from gpustore.backends.base import Output
from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.unit import Unit
from gpustore.errors import MetadataError, OutOfBoundsError, UnsupportedError
from gpustore.hierarchy.attributes import Attributes
from gpustore.hierarchy.nodes import Hierarchy
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.resize import ResizeRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.transaction import in_transaction
from gpustore.metadata.node import Node
from gpustore.planning.stored_chunks import StoredChunks
from gpustore.runtime.batch import Batch
from gpustore.runtime.context import Context
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future
from gpustore.runtime.progress import Progress
from gpustore.runtime.transaction import Transaction
from gpustore.runtime.write_futures import WriteFutures
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.codec_spec import CodecSpec
from gpustore.strict_json.parsing import JsonValue, Members

if TYPE_CHECKING:
    from gpustore.explain.explanation import Explanation
    from gpustore.explain.write_explanation import WriteExplanation

METADATA_POOL = "metadata_cache_pool"
"""Member and driver resource: another resource of the type ``cache_pool``, for the metadata."""


@dataclass(slots=True)
class OpenMode:
    """Operations that :func:`gpustore.open` may perform. Specs keep and return copies.

    Attributes
    ----------
    open : bool
        Open an existing array.
    create : bool
        Create a new array; with `open`, only if there is none.
    delete_existing : bool
        Delete everything at the path before creating.
    assume_metadata : bool
        Neither read nor write metadata: use those of the spec.
    assume_cached_metadata : bool
        Do not read metadata when opening: use those of the spec.

    Examples
    --------
    >>> OpenMode(open=True, create=True)
    OpenMode(open=True, create=True)
    """

    open: bool = False
    create: bool = False
    delete_existing: bool = False
    assume_metadata: bool = False
    assume_cached_metadata: bool = False

    def __repr__(self) -> str:
        return f"OpenMode({', '.join(f'{name}=True' for name in self._set())})"

    def _set(self) -> list[str]:
        return [name for name in MODE_FLAGS if getattr(self, name)]

    @classmethod
    def from_members(cls, members: Members) -> Self:
        """Take the members of a spec that set the open mode."""
        given = [name for name in MODE_FLAGS if name in members]
        return cls(**{name: members.take_bool(name) for name in given})

    @property
    def assumes(self) -> bool:
        """Whether metadata come from the spec, without I/O."""
        return self.assume_metadata or self.assume_cached_metadata

    def to_json(self) -> dict[str, JsonValue]:
        """Return the flags that are set; `open` is the default without `create`."""
        return {name: True for name in self._set() if name != "open" or self.create}

    def resolved(self) -> OpenMode:
        """Return the mode with its default, `open`, if neither `open` nor `create` is set.

        Raises
        ------
        MetadataError
            If the flags contradict each other.
        """
        mode = self
        if not (self.open or self.create or self.delete_existing or self.assumes):
            return _OPEN
        if not (self.open or self.create):
            assumed = self.assume_metadata, self.assume_cached_metadata
            mode = OpenMode(not self.delete_existing, False, self.delete_existing, *assumed)
        if not (mode.delete_existing or mode.assumes):
            return mode
        assuming = [name for name in _ASSUMING if getattr(mode, name)]
        if mode.delete_existing and not mode.create:
            raise MetadataError("Cannot specify an open mode of `delete_existing` without `create`")
        for other in ("open", *assuming):
            if mode.delete_existing and getattr(mode, other):
                raise MetadataError(
                    f"Cannot specify an open mode of `delete_existing` with `{other}`"
                )
        for name in assuming:
            if not mode.open:
                raise MetadataError(f"Cannot specify an open mode of `{name}` without `open`")
        return mode


MODE_FLAGS = ("open", "create", "delete_existing", "assume_metadata", "assume_cached_metadata")
"""Names of the flags of an :class:`OpenMode`."""

NOT_OPENED = ("array", "json")
"""Drivers whose data are neither opened nor created: an open mode says nothing to them."""

IMAGES = ("avif", "bmp", "jpeg", "png", "tiff", "webp")
"""Drivers of images, which are opened and never created."""

_ASSUMING = ("assume_metadata", "assume_cached_metadata")
_OPEN = OpenMode(open=True)


class FoundMetadata(NamedTuple):
    """Stored metadata of an array, read during detection.

    Attributes
    ----------
    value : bytes
    read_at : float
        Start of the read, in seconds since the epoch.
    """

    value: bytes
    read_at: float


class OpenRequest(NamedTuple):
    """Arguments for opening a spec.

    Attributes
    ----------
    mode : OpenMode
        Open mode of the caller.
    context : Context
        Context of its resources.
    read, write : bool or None
        Required access; both by default. True for one of them leaves the other out, False for one
        of them requires the other. (TensorStore treats False as unset, and so may write.)
    transform : IndexTransform or None
        Transform of the spec.
    hierarchy : Hierarchy or None
        Hierarchy of the group through which the array is opened.
    node : Node or None
        Node of the array in that hierarchy; its document is not read again.
    found : FoundMetadata or None
        Metadata read during detection, which are not read again.
    transaction : Transaction or None
        Transaction to which all operations of the array belong.
    """

    mode: OpenMode
    context: Context
    read: bool | None
    write: bool | None
    transform: IndexTransform | None
    hierarchy: Hierarchy | None = None
    node: Node | None = None
    found: FoundMetadata | None = None
    transaction: Transaction | None = None

    @property
    def readable(self) -> bool:
        """Whether reading is required."""
        return not self.write if self.read is None else self.read

    @property
    def writable(self) -> bool:
        """Whether writing is required."""
        return not self.read if self.write is None else self.write


class Opening(NamedTuple):
    """The part of opening an array that does I/O.

    Attributes
    ----------
    executor : Executor
        Executor whose threads call `run`.
    run : callable
        Blocks; returns the driver, and the transform from the domain wanted to the driver's.
    may_defer : bool
        Whether `run` only reads, and so little that the thread that waits for the result may run
        it.
    """

    executor: Executor
    run: Callable[[], tuple[Driver, IndexTransform]]
    may_defer: bool = False


class Driver(Protocol):
    """An opened array. Immutable: operations that change the domain return a new one."""

    @property
    def id(self) -> str:
        """Name of the driver as specs print it."""

    @property
    def dtype(self) -> dtype_:
        """Data type of the elements."""

    @property
    def domain(self) -> IndexDomain:
        """Domain of the driver itself, before any transform of the store."""

    @property
    def base(self) -> Driver | None:
        """Driver that it adapts; None if it reads its elements itself."""

    @property
    def backend(self) -> Any:
        """The :class:`~gpustore.backends.base.Backend` of the arrays that :meth:`read` returns."""

    @property
    def kvstore(self) -> KvStore | None:
        """Kvstore of the array, with its path; None for an array in memory."""

    @property
    def device(self) -> str:
        """Device of the arrays that :meth:`read` returns: ``"cpu"`` or ``"cuda:N"``."""

    @property
    def chunk_layout(self) -> ChunkLayout:
        """Storage layout in terms of the driver's dimensions."""

    @property
    def codec(self) -> CodecSpec | None:
        """Codec of the chunks; None for drivers without codecs."""

    @property
    def fill_value(self) -> Any:
        """Value of missing elements, an ndarray of shape (); None if undefined."""

    @property
    def dimension_units(self) -> tuple[Unit | None, ...]:
        """Unit of a step along each dimension, None where unknown."""

    @property
    def attributes(self) -> Attributes | None:
        """User attributes of the array; None if its format has none."""

    @property
    def readable(self) -> bool:
        """Whether the array can be read."""

    @property
    def writable(self) -> bool:
        """Whether the array can be written."""

    @property
    def open_mode(self) -> OpenMode:
        """Open mode of a spec that opens the array again in the same way."""

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        """Context resources of the driver and its kvstore, by identifier."""

    def spec(self, *, minimal: bool) -> DriverSpec:
        """Return a spec that opens the array again; with all metadata unless `minimal`."""

    def read(
        self, transform: IndexTransform, output: Output, batch: Batch | None = None
    ) -> Future[Any]:
        """Read the domain of `transform`; see :func:`gpustore.pipelines.read.read`.

        A read in a `batch` may begin when the batch is submitted.
        """

    def read_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...], output: Output
    ) -> Future[Any]:
        """Read crops of the domain; see :func:`gpustore.pipelines.read_many.read_many`."""

    def preload(self, transform: IndexTransform, progress: Progress) -> Future[None]:
        """Fill the cache of the device; see :func:`gpustore.pipelines.preload.preload`.

        Raises
        ------
        UnsupportedError
            If there are no chunks, or no such cache.
        """

    def stored_chunks(self, transform: IndexTransform) -> Future[StoredChunks]:
        """Look up which chunks are stored; see :mod:`gpustore.pipelines.stored_chunks`.

        Raises
        ------
        UnsupportedError
            If the driver does not tell.
        """

    def explain(self, transform: IndexTransform) -> Explanation:
        """Predict a read of the domain of `transform`. Blocks.

        Raises
        ------
        UnsupportedError
            If there are no chunks.
        """

    def explain_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...]
    ) -> Explanation:
        """Predict a read of crops. Blocks. Raises the errors of :meth:`explain`."""

    def explain_write(self, transform: IndexTransform) -> WriteExplanation:
        """Predict a write of the domain of `transform`. Blocks. Raises the errors of
        :meth:`explain`.
        """

    def write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        """Write the domain of `transform`; see :func:`gpustore.pipelines.write.write`."""

    @property
    def transaction(self) -> Transaction | None:
        """Transaction to which all operations belong; None if there is none."""

    def in_transaction(self, transaction: Transaction | None) -> Driver:
        """Return the array with all operations in a transaction, or in none; no I/O."""

    @property
    def executor(self) -> Executor:
        """Executor whose threads call :meth:`resolve` and :meth:`resize`."""

    def resolve(self) -> Driver:
        """Return the same array with the currently stored bounds. Blocks."""

    def resize(self, transform: IndexTransform, request: ResizeRequest) -> Driver:
        """Change the bounds to those of the domain of `transform`; return the new driver.
        Blocks.
        """


class Unexplained:
    """Mixin of drivers without chunks, whose reads cannot be estimated, and who cache none."""

    id: str
    unexplained: ClassVar[str]
    """Message of the error."""

    def preload(self, transform: IndexTransform, progress: Progress) -> Future[None]:
        """Raise UnsupportedError."""
        raise UnsupportedError(f'preload is not supported by the "{self.id}" driver')

    def stored_chunks(self, transform: IndexTransform) -> Future[StoredChunks]:
        """Raise UnsupportedError."""
        raise UnsupportedError(f'Storage statistics not supported by the "{self.id}" driver')

    def explain(self, transform: IndexTransform) -> Explanation:
        """Raise UnsupportedError."""
        raise UnsupportedError(self.unexplained)

    def explain_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...]
    ) -> Explanation:
        """Raise UnsupportedError."""
        raise UnsupportedError(self.unexplained)

    def explain_write(self, transform: IndexTransform) -> WriteExplanation:
        """Raise UnsupportedError."""
        raise UnsupportedError(self.unexplained)


class OverBase:
    """Mixin of drivers over another one, `base`: what they share with it."""

    base: Driver

    @property
    def kvstore(self) -> KvStore | None:
        """Kvstore of the base."""
        return self.base.kvstore

    @property
    def codec(self) -> CodecSpec | None:
        """Codec of the base."""
        return self.base.codec

    @property
    def open_mode(self) -> OpenMode:
        """Open mode of the base."""
        return self.base.open_mode

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        """Context resources of the base."""
        return self.base.resources

    @property
    def executor(self) -> Executor:
        """Executor of the base."""
        return self.base.executor

    @property
    def transaction(self) -> Transaction | None:
        """Transaction of the base."""
        return self.base.transaction

    def in_transaction(self, transaction: Transaction | None) -> Driver:
        """Return the driver over the base in a transaction."""
        changed: Any = self
        over: Driver = replace(changed, base=self.base.in_transaction(transaction))
        return over


class Unresizable:
    """Mixin of drivers with fixed bounds."""

    def resolve(self) -> Self:
        """Return the driver unchanged: its bounds never change."""
        return self

    def resize(self, transform: IndexTransform, request: ResizeRequest) -> Driver:
        """Raise UnsupportedError: the bounds are fixed."""
        raise UnsupportedError("Resize not supported")


class DriverSpec(Protocol):
    """Spec of a driver: an immutable, picklable value."""

    @property
    def id(self) -> str:
        """Name of the driver as specs print it."""

    @property
    def base(self) -> DriverSpec | None:
        """Spec of the driver that it adapts; None if it adapts none."""

    @property
    def kvstore(self) -> KvStore.Spec | None:
        """Spec of the kvstore with the array's path; None without a kvstore."""

    @property
    def schema(self) -> Schema:
        """All known properties of the array, including those in the driver's own members."""

    @property
    def url(self) -> str:
        """URL of the array; UnsupportedError if there is none."""

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return the driver's own members, with ``schema`` and ``dtype`` but without the
        open mode.
        """

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """Return the spec with more constraints merged in."""

    def open(self, request: OpenRequest) -> Opening:
        """Check everything that needs no I/O, and return the remaining work."""


class DriverKind(Protocol):
    """The object that a module in ``drivers/`` registers under the name ``DRIVER``."""

    id: str
    is_adapter: bool
    """Whether the driver adapts another driver, and is an :class:`AdapterKind`."""

    @property
    def schemes(self) -> tuple[str, ...]:
        """Schemes of its URLs; none if only JSON describes it."""

    shares_members: bool
    """Whether specs that differ in ``kvstore`` alone may share what their members are parsed to."""

    def from_json(self, members: Members, schema: Schema) -> DriverSpec:
        """Take the members this driver knows; the caller checks that none are left."""


class UrlKind(DriverKind, Protocol):
    """The object that a driver with URLs registers."""

    def from_url(self, base: Any, path: str) -> DriverSpec:
        """Return the spec of the URL component ``<id>:path``.

        `base` is the ``KvStore.Spec`` of the components before it, or their :class:`DriverSpec` for
        an adapter.
        """


class AdapterKind(DriverKind, Protocol):
    """The object that an adapter registers, with ``from_base`` in place of ``from_json``."""

    keeps_dtype: bool
    """Whether the data type of the adapter is also that of the base, which need not state it."""

    def from_base(
        self,
        base: DriverSpec,
        transform: IndexTransform | None,
        context: Context.Spec | None,
        members: Members,
        schema: Schema,
    ) -> tuple[DriverSpec, IndexTransform | None]:
        """Take the members of the driver; `base` and its transform and context have been taken.

        Returns the transform that is also that of the adapter; None if the driver keeps it.
        """


def latest_of(driver: Driver) -> Driver:
    """Return a driver with the shape that it was given last in its context; no I/O."""
    found: Driver = getattr(driver, "latest", driver)
    return found


def placed_again(transform: IndexTransform, driver: Driver) -> IndexTransform:
    """Return a transform to a driver with implicit bounds as they are now."""
    try:
        return IndexTransform(driver.domain)[transform]
    except OutOfBoundsError:  # Explicit bounds stay as they are.
        return transform


def open_kvstore(
    spec: KvStore.Spec, context: Context, transaction: Transaction | None = None
) -> KvStore:
    """Open a kvstore with the resources of `context`, perhaps in a transaction; no I/O."""
    driver = spec.open_driver(context)
    if transaction is not None:  # Not a call in the way of every opening.
        driver = in_transaction(driver, transaction)
    return KvStore(driver, spec.path)


def schema_members(
    constraints: Schema, *, rank_known: bool = False, include_defaults: bool = False
) -> dict[str, JsonValue]:
    """Return constraints as the members ``dtype``, ``rank`` and ``schema`` of a spec.

    Parameters
    ----------
    constraints : Schema
    rank_known : bool
        Whether other members determine the rank.
    include_defaults : bool
        Whether ``schema`` is there in any case, with data type and rank.
    """
    schema = constraints.to_json()
    members: dict[str, JsonValue] = {}
    if include_defaults:
        members["schema"] = constraints.to_json(include_defaults)
    rank = schema.pop("rank", None)
    if "dtype" in schema:
        members["dtype"] = schema.pop("dtype")
    if schema:
        members.setdefault("schema", schema)
    if rank is not None and not rank_known and "domain" not in schema:
        members["rank"] = rank
    return members
