"""The seam between the front and the drivers: what an unopened and an opened driver offer.

A driver is one noun with two states. A :class:`DriverSpec` is plain data, made from JSON: what is
to be opened and which constraints it must fulfil. :meth:`DriverSpec.open` turns it into a
:class:`Driver`, which reads and writes through index transforms into its own domain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol, Self

from gpustore.data_types.dtype import dtype as dtype_
from gpustore.data_types.unit import Unit
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.explain.explanation import Explanation
from gpustore.hierarchy.attributes import Attributes
from gpustore.hierarchy.nodes import Hierarchy
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.resize import ResizeRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.node import Node
from gpustore.runtime.batch import Batch
from gpustore.runtime.context import Context
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future
from gpustore.runtime.write_futures import WriteFutures
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.schema.codec_spec import CodecSpec
from gpustore.strict_json.parsing import JsonValue, Members

METADATA_POOL = "metadata_cache_pool"
"""Member and driver resource: another resource of the type ``cache_pool``, for the metadata."""


@dataclass(frozen=True, slots=True)
class OpenMode:
    """What :func:`gpustore.open` may do.

    Attributes
    ----------
    open : bool
        Open an existing array.
    create : bool
        Create a new one; with `open`, only if there is none.
    delete_existing : bool
        Delete what is there before creating.
    assume_metadata : bool
        Neither read nor write metadata: assume what the spec says.
    assume_cached_metadata : bool
        Do not read metadata when opening: assume what the spec says.

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
        names = (field.name for field in fields(self) if getattr(self, field.name))
        return f"OpenMode({', '.join(f'{name}=True' for name in names)})"

    @classmethod
    def from_members(cls, members: Members) -> Self:
        """Take the members of a spec that say how to open it."""
        return cls(
            **{field.name: members.take_bool(field.name, default=False) for field in fields(cls)}
        )

    @property
    def assumes(self) -> bool:
        """Whether metadata are taken from the spec, without I/O."""
        return self.assume_metadata or self.assume_cached_metadata

    def to_json(self) -> dict[str, JsonValue]:
        """Only what is set; to open is the default unless it is created."""
        names = [field.name for field in fields(self) if getattr(self, field.name)]
        return {name: True for name in names if name != "open" or self.create}

    def resolved(self) -> OpenMode:
        """The mode with its default, `open`, if neither `open` nor `create` is set.

        Raises
        ------
        MetadataError
            If the flags contradict each other.
        """
        mode = self
        if not (self.open or self.create):
            set_ = {field.name: getattr(self, field.name) for field in fields(self)}
            mode = OpenMode(**{**set_, "open": not self.delete_existing})
        names = ("assume_metadata", "assume_cached_metadata")
        assumed = [name for name in names if getattr(mode, name)]
        if mode.delete_existing and not mode.create:
            raise MetadataError("Cannot specify an open mode of `delete_existing` without `create`")
        for other in ("open", *assumed):
            if mode.delete_existing and getattr(mode, other):
                raise MetadataError(
                    f"Cannot specify an open mode of `delete_existing` with `{other}`"
                )
        for name in assumed:
            if not mode.open:
                raise MetadataError(f"Cannot specify an open mode of `{name}` without `open`")
        return mode


@dataclass(frozen=True, slots=True)
class FoundMetadata:
    """The metadata of an array as they were found stored.

    Attributes
    ----------
    value : bytes
    read_at : float
        Time at which this was begun, in seconds since the epoch.
    """

    value: bytes
    read_at: float


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """How a spec is to be opened.

    Attributes
    ----------
    mode : OpenMode
        As the caller gave it.
    context : Context
        Where its resources come from.
    read, write : bool or None
        Access asked for; without either, both. True for one of them does not ask for the other,
        False for one of them does. (TensorStore takes False as not said, and so may write.)
    transform : IndexTransform or None
        What the spec says about the domain wanted.
    hierarchy : Hierarchy or None
        Of the group through which it is opened.
    node : Node or None
        What that knows of it already: its document is not read again.
    found : FoundMetadata or None
        What was read when the format was detected: it is not read again.
    """

    mode: OpenMode
    context: Context
    read: bool | None
    write: bool | None
    transform: IndexTransform | None
    hierarchy: Hierarchy | None = None
    node: Node | None = None
    found: FoundMetadata | None = None

    @property
    def readable(self) -> bool:
        """Whether reading is asked for."""
        return not self.write if self.read is None else self.read

    @property
    def writable(self) -> bool:
        """Whether writing is asked for."""
        return not self.read if self.write is None else self.write


@dataclass(frozen=True, slots=True)
class Opening:
    """The part of opening an array that does I/O.

    Attributes
    ----------
    executor : Executor
        Whose threads are to call `run`.
    run : callable
        Blocks; returns the driver, and the transform from the domain wanted to the driver's.
    may_defer : bool
        Whether it only reads, and so little that whoever asks for the result may as well run it.
    """

    executor: Executor
    run: Callable[[], tuple[Driver, IndexTransform]]
    may_defer: bool = False


class Driver(Protocol):
    """An opened array. Immutable: operations that change the domain return a new one."""

    @property
    def id(self) -> str: ...

    @property
    def dtype(self) -> dtype_: ...

    @property
    def domain(self) -> IndexDomain:
        """Domain of the driver itself, before any transform of the store."""

    @property
    def base(self) -> Driver | None:
        """What it adapts; None if it reads its elements itself."""

    @property
    def backend(self) -> Any:
        """The :class:`~gpustore.backends.base.Backend` whose arrays :meth:`read` returns."""

    @property
    def kvstore(self) -> KvStore | None: ...

    @property
    def device(self) -> str:
        """Where the arrays live that :meth:`read` returns."""

    @property
    def chunk_layout(self) -> ChunkLayout: ...

    @property
    def codec(self) -> CodecSpec | None: ...

    @property
    def fill_value(self) -> Any:
        """Ndarray of shape (), or None if there is none."""

    @property
    def dimension_units(self) -> tuple[Unit | None, ...]: ...

    @property
    def attributes(self) -> Attributes | None:
        """The user's attributes; None if its format has none."""

    @property
    def readable(self) -> bool: ...

    @property
    def writable(self) -> bool: ...

    @property
    def open_mode(self) -> OpenMode:
        """What has to be said to open it again in the same way."""

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        """The context resources it uses, by identifier, its kvstore's included."""

    def spec(self, *, minimal: bool) -> DriverSpec:
        """What would open it again; with all metadata unless `minimal`."""

    def read(
        self,
        transform: IndexTransform,
        *,
        out: Any,
        order: str,
        batch: Batch | None = None,
        stream: Any = None,
    ) -> Future[Any]:
        """Read the domain of `transform`; see :func:`gpustore.pipelines.read.read`.

        With a `batch` it may begin only when that is submitted. `stream` counts on devices only.
        """

    def read_many(
        self,
        transform: IndexTransform,
        starts: Any,
        shape: tuple[int, ...],
        *,
        out: Any,
        order: str,
        stream: Any = None,
    ) -> Future[Any]:
        """Read crops of the domain; see :func:`gpustore.pipelines.read_many.read_many`."""

    def explain(self, transform: IndexTransform) -> Explanation:
        """What a read of the domain of `transform` will do. Blocks.

        Raises
        ------
        UnsupportedError
            If there are no chunks.
        """

    def explain_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...]
    ) -> Explanation:
        """What a read of crops will do. Blocks. Raises as :meth:`explain`."""

    def write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        """Write the domain of `transform`; see :func:`gpustore.pipelines.write.write`."""

    @property
    def executor(self) -> Executor:
        """Whose threads call :meth:`resolve` and :meth:`resize`."""

    def resolve(self) -> Driver:
        """The same array with its bounds as they are stored now. Blocks."""

    def resize(self, transform: IndexTransform, request: ResizeRequest) -> Driver:
        """The array with other bounds, which are those of the domain of `transform`. Blocks."""


class Unexplained:
    """Part of a driver without chunks, whose reads there is nothing to explain of."""

    unexplained: ClassVar[str]
    """What the error says."""

    def explain(self, transform: IndexTransform) -> Explanation:
        """Not possible."""
        raise UnsupportedError(self.unexplained)

    def explain_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...]
    ) -> Explanation:
        """Not possible."""
        raise UnsupportedError(self.unexplained)


class DriverSpec(Protocol):
    """What a spec says to a driver: an immutable, picklable value."""

    @property
    def id(self) -> str:
        """Name of the driver as specs print it."""

    @property
    def base(self) -> DriverSpec | None:
        """The spec of what it adapts; None if it adapts nothing."""

    @property
    def kvstore(self) -> KvStore.Spec | None: ...

    @property
    def schema(self) -> Schema:
        """All that is known of the array, including what the driver's own members say."""

    @property
    def url(self) -> str: ...

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """The driver's own members, with ``schema`` and ``dtype`` but without the open mode."""

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """The spec with more constraints merged in."""

    def open(self, request: OpenRequest) -> Opening:
        """Check all that needs no I/O, and say how to do the rest."""


class DriverKind(Protocol):
    """What a module in ``drivers/`` registers under the name ``DRIVER``."""

    id: str
    is_adapter: bool
    """Whether it adapts another driver, and is an :class:`AdapterKind`."""

    def from_json(self, members: Members, schema: Schema) -> DriverSpec:
        """Take the members this driver knows; the caller checks that none are left."""

    def from_url(self, base: Any, path: str) -> DriverSpec:
        """The spec that the URL component ``<id>:path`` stands for.

        `base` is the ``KvStore.Spec`` before it, or the :class:`DriverSpec` if it adapts one.
        """


class AdapterKind(DriverKind, Protocol):
    """What a driver registers that adapts another one; it has ``from_base`` for ``from_json``."""

    def from_base(
        self, base: DriverSpec, context: Context.Spec | None, members: Members, schema: Schema
    ) -> DriverSpec:
        """Take the members this driver knows; `base` and its own context have been taken."""


def open_kvstore(spec: KvStore.Spec, context: Context) -> KvStore:
    """Open a kvstore with the resources of `context`; no I/O."""
    return KvStore(spec.open_driver(context), spec.path)


def schema_members(constraints: Schema, *, rank_known: bool = False) -> dict[str, JsonValue]:
    """Constraints as the members ``dtype``, ``rank`` and ``schema`` of a spec.

    Parameters
    ----------
    constraints : Schema
    rank_known : bool
        Whether other members tell the rank.
    """
    schema = constraints.to_json()
    members: dict[str, JsonValue] = {}
    rank = schema.pop("rank", None)
    if "dtype" in schema:
        members["dtype"] = schema.pop("dtype")
    if schema:
        members["schema"] = schema
    if rank is not None and not rank_known and "domain" not in schema:
        members["rank"] = rank
    return members
