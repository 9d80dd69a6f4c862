"""The ``json`` driver: one JSON value of a document in a kvstore, as an array of rank 0.

JSON example::

    {"driver": "json", "kvstore": "file:///tmp/settings.json", "json_pointer": "/a/b"}

A read parses the document and follows the pointer. A write is a read-modify-write under the
document's generation: members that do not exist are created, other writers' changes are kept.

Source: TensorStore's ``driver/json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpustore import registry
from gpustore.backends.base import Backend, Output
from gpustore.backends.host import HostBackend
from gpustore.backends.host.memory import HostMemory
from gpustore.data_types.dtype import dtype
from gpustore.data_types.json_array import object_array
from gpustore.drivers.base import (
    DriverSpec,
    Opening,
    OpenMode,
    OpenRequest,
    Unexplained,
    Unresizable,
    open_kvstore,
    schema_members,
)
from gpustore.drivers.options import DEFAULTS_OF_A_FILE, take_options, with_defaults
from gpustore.errors import ConflictError, MetadataError, NotFoundError, UnsupportedError, prefixing
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.kvstores.columns import ReadRequest, ReadState, WriteRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.transaction import in_transaction
from gpustore.runtime.batch import Batch
from gpustore.runtime.context import Context
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future, ready
from gpustore.runtime.limits import Limits
from gpustore.runtime.transaction import Transaction
from gpustore.runtime.write_futures import WriteFutures
from gpustore.schema import Schema
from gpustore.schema.chunk_layout import ChunkLayout
from gpustore.strict_json.parsing import JsonValue, Members, dump, parse
from gpustore.strict_json.pointer import MISSING, dereference, parse_pointer, replaced
from gpustore.url import encode_path

_ATTEMPTS = 1000

_JSON = dtype("json")


@dataclass(frozen=True)
class JsonDriver(Unexplained, Unresizable):
    """An opened JSON value, an array of rank 0."""

    kvstore: KvStore
    pointer: str
    options: Mapping[str, JsonValue]
    executor: Executor
    limits: Limits
    resources: Mapping[str, Context.Resource]
    readable: bool
    writable: bool

    id = "json"
    unexplained = 'explain is not supported by the "json" driver: it reads one document'
    base = None
    dtype = _JSON
    codec = None
    fill_value = None
    dimension_units = ()
    device = "cpu"
    open_mode = OpenMode()
    attributes = None

    @property
    def backend(self) -> Backend:
        """Backend of the host."""
        host: Backend = registry.find("backends", "host")
        return host

    @property
    def domain(self) -> IndexDomain:
        """Domain of rank 0."""
        return IndexDomain(rank=0)

    @property
    def chunk_layout(self) -> ChunkLayout:
        """Chunk layout of a rank-0 array."""
        return ChunkLayout(rank=0)

    @property
    def transaction(self) -> Transaction | None:
        """Transaction of the kvstore."""
        return self.kvstore.transaction

    def in_transaction(self, transaction: Transaction | None) -> JsonDriver:
        """Return the value in a transaction."""
        store = self.kvstore
        return replace(self, kvstore=KvStore(in_transaction(store.driver, transaction), store.path))

    def spec(self, *, minimal: bool) -> DriverSpec:
        """Return the spec, which is the same with and without `minimal`."""
        del minimal
        return JsonSpec(self.kvstore.spec(), self.pointer, _json_schema(Schema()), self.options)

    def read(
        self, transform: IndexTransform, output: Output, batch: Batch | None = None
    ) -> Future[Any]:
        """Read the value, repeated over the domain of `transform`, as an array of objects."""
        del batch  # Reads of a single value share no chunks.
        out = output.array
        if isinstance(out, HostMemory):
            out = out.array
        if out is not None and (
            not isinstance(out, np.ndarray)
            or out.dtype != object
            or out.shape != tuple(transform.domain.shape)
        ):
            raise TypeError(
                f"out must be an ndarray of objects of shape {tuple(transform.domain.shape)}"
            )
        # An array of the result's shape, so that a list becomes one element and not an axis.
        array = out
        if array is None:
            array = np.empty(
                transform.domain.shape, object, order="F" if output.order == "F" else "C"
            )

        def run() -> Any:
            document, _ = self._load()
            if document is MISSING:
                raise NotFoundError(f"Error reading {self._name}", key=self._key)
            tokens = parse_pointer(self.pointer)
            with prefixing(f"Error reading {self._name}"):
                value = dereference(document, tokens)
            for index in np.ndindex(array.shape):
                array[index] = value
            return array

        return self._threads.submit(run)

    def read_many(
        self, transform: IndexTransform, starts: Any, shape: tuple[int, ...], output: Output
    ) -> Future[Any]:
        """Raise UnsupportedError: :meth:`read` reads the single value."""
        raise UnsupportedError('read_many is not supported by the "json" driver; read it once')

    def write(self, transform: IndexTransform, source: Any) -> WriteFutures:
        """Replace the value by `source`, which has at most as many dimensions as the domain."""
        domain = transform.domain
        source = object_array(source, _JSON, max_rank=domain.rank)
        host: HostBackend = registry.find("backends", "host")
        elements = host.source(source, domain, source.dtype).array.reshape(-1)
        if not elements.size:
            return WriteFutures(ready(None), ready(None))
        # All elements of the domain are the same value, so the last one written stays.
        value = elements[-1]
        future: Future[None] = self._threads.submit(self._store, value, drain=True)
        return WriteFutures(future, future)

    @property
    def _threads(self) -> Executor:
        """Executor of reads and writes, for which the commit of a transaction waits."""
        threads = self.kvstore.driver.executor if self.transaction is not None else None
        return threads or self.executor

    @property
    def _key(self) -> str:
        return self.kvstore.path

    @property
    def _name(self) -> str:
        return self.kvstore.driver.describe(self._key)

    def _load(self) -> tuple[JsonValue, bytes]:
        columns = self.kvstore.driver.read_many(
            ReadRequest([self._key], max_nbytes=self.limits.metadata_nbytes)
        )
        columns.raise_first()
        data = columns.value[0]
        if columns.state[0] is not ReadState.VALUE or data is None:
            return MISSING, columns.generation[0]
        with prefixing(f"Error reading {self._name}"):
            document = parse(
                bytes(data),
                where=self._name,
                max_nbytes=self.limits.metadata_nbytes,
                max_depth=self.limits.metadata_depth,
                status="FAILED_PRECONDITION",
            )
        return document, columns.generation[0]

    def _store(self, value: JsonValue) -> None:
        tokens = parse_pointer(self.pointer)
        for _ in range(_ATTEMPTS):
            document, generation = (MISSING, b"") if not tokens else self._load()
            with prefixing(f"Error writing {self._name}"):
                document = replaced(document, tokens, value)
            columns = self.kvstore.driver.write_many(
                WriteRequest([self._key], [dump(document, sort_keys=True)], [generation])
            )
            columns.raise_first()
            if columns.generation[0]:
                return
        raise ConflictError(
            f"Error writing {self._name}: another writer was faster {_ATTEMPTS} times",
            key=self._key,
        )


@dataclass(frozen=True)
class JsonSpec:
    """A JSON value to be opened.

    Attributes
    ----------
    kvstore : KvStore.Spec or None
        Kvstore with the path of the document.
    pointer : str
        JSON pointer of the value.
    constraints : Schema
    options : mapping
        Conditions for caches and context resources other than the default ones, as JSON. Documents
        are not cached.
    """

    kvstore: KvStore.Spec | None
    pointer: str
    constraints: Schema
    options: Mapping[str, JsonValue] = field(default_factory=dict)

    id = "json"
    base = None

    @property
    def schema(self) -> Schema:
        """Schema of every JSON value."""
        schema = Schema(domain=IndexDomain(rank=0), dtype=_JSON, chunk_layout=ChunkLayout(rank=0))
        if self.constraints.dimension_units is not None:
            schema.update(dimension_units=self.constraints.dimension_units)
        return schema

    @property
    def url(self) -> str:
        """URL ``<kvstore>|json:<pointer>``."""
        if self.kvstore is None:
            raise MetadataError("Invalid kvstore spec")
        return f"{self.kvstore.url}|json:{encode_path(self.pointer)}"

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return the members of the driver."""
        members: dict[str, JsonValue] = dict(self.options)
        if include_defaults:
            members.update(with_defaults(self.options, DEFAULTS_OF_A_FILE))
        if self.kvstore is not None:
            members["kvstore"] = self.kvstore.to_json(include_defaults)
        if self.pointer or include_defaults:
            members["json_pointer"] = self.pointer
        schema = schema_members(
            self.constraints, rank_known=True, include_defaults=include_defaults
        )
        return {**members, **schema}

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """Return the spec with more constraints merged in."""
        spec = self
        if schema is not None:
            merged = self.constraints.copy()
            merged.update(schema=schema)
            spec = replace(spec, constraints=_json_schema(merged))
        if kvstore is not None:
            if self.kvstore is not None:
                raise MetadataError('"kvstore" is already specified')
            spec = replace(spec, kvstore=kvstore)
        if options:
            more = take_options(Members(options), DEFAULTS_OF_A_FILE)
            kept = {name: value for name, value in spec.options.items() if name not in options}
            spec = replace(spec, options={**kept, **more})
        return spec

    def open(self, request: OpenRequest) -> Opening:
        """Open the kvstore without reading."""
        if self.kvstore is None:
            raise MetadataError('Error opening "json" driver: "kvstore" must be specified')
        context = request.context
        store = open_kvstore(self.kvstore, context, request.transaction)
        resources = {
            name: context.resource(name, self.options.get(name))
            for name in ("cache_pool", "data_copy_concurrency")
        }
        executor: Executor = resources["data_copy_concurrency"].value
        driver = JsonDriver(
            store,
            self.pointer,
            self.options,
            executor,
            context.resource("limits").value,
            {**store.driver.all_resources, **resources},
            readable=request.readable,
            writable=request.writable,
        )
        transform = request.transform or IndexTransform(driver.domain)
        return Opening(executor, lambda: (driver, transform), may_defer=True)


class _JsonKind:
    id = "json"
    is_adapter = False
    schemes = ("json",)
    shares_members = False

    def from_json(self, members: Members, schema: Schema) -> JsonSpec:
        """Take ``kvstore``, ``path``, ``json_pointer`` and the options of a file."""
        pointer = members.take_with("json_pointer", _checked_pointer, "")
        spec = members.take_with("kvstore", KvStore.Spec.from_json, None)
        path = members.take_str("path", default="")
        if spec is not None and path:
            spec = spec / path
        options = take_options(members, DEFAULTS_OF_A_FILE)
        return JsonSpec(spec, pointer, _json_schema(schema), options)

    def from_url(self, base: KvStore.Spec, path: str) -> JsonSpec:
        """Return the spec of ``<kvstore>|json:<pointer>``."""
        with prefixing(f'Invalid TensorStore URL component "json:{encode_path(path)}"'):
            return JsonSpec(base, _checked_pointer(path), _json_schema(Schema()))


def _json_schema(constraints: Schema) -> Schema:
    """Return the constraints with those of every JSON value: rank 0, data type json."""
    if constraints.dtype is not None and constraints.dtype != _JSON:
        raise MetadataError(
            f"Specified dtype (json) does not match existing value ({constraints.dtype.name})"
        )
    for name in ("fill_value", "codec"):
        if getattr(constraints, name) is not None:
            raise MetadataError(f"{name} not supported by json driver")
    schema = constraints.copy()
    schema.set_rank(0, "rank")
    schema.update(dtype=_JSON)
    return schema


def _checked_pointer(value: JsonValue) -> str:
    if not isinstance(value, str):
        raise MetadataError(f"Expected string, but received: {dump(value).decode()}")
    parse_pointer(value)
    return value


DRIVER = _JsonKind()
