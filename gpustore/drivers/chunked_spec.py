"""Opening and creating an array of chunks, from a spec.

1. Open the kvstore and the context resources. With `assume_metadata` or `assume_cached_metadata`
   make the metadata from the constraints and go to 5: nothing is read or written.
2. With `delete_existing`, delete everything below the array's path; metadata that are alone there
   count as deleted, and are left for 4 to replace.
3. With `open`, read the metadata and compare them with the constraints; done if there are any.
4. With `create`, make new metadata from the constraints and store them on condition that there are
   none, or first that they are still those that 2 left. If another process was faster: go to 3 if
   `open` allows it, else it is an error.
5. Propagate the array's bounds through the spec's transform.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gpustore.backends.selection import for_objects, select_backend
from gpustore.codec_chain.chain import CodecChain
from gpustore.drivers._metadata_file import MetadataFile
from gpustore.drivers._remembered import created, described, merged
from gpustore.drivers.base import (
    METADATA_POOL,
    Driver,
    DriverSpec,
    Opening,
    OpenMode,
    OpenRequest,
    open_kvstore,
    schema_members,
)
from gpustore.drivers.chunked import ChunkedDriver
from gpustore.drivers.format import ArrayDescription, Format, Selection
from gpustore.drivers.options import (
    DEFAULTS,
    RESOURCES,
    bound_resources,
    recheck_bound,
    take_options,
)
from gpustore.errors import (
    AlreadyExistsError,
    ConflictError,
    GpustoreError,
    MetadataError,
    NotFoundError,
    UnsupportedError,
    prefixing,
)
from gpustore.hierarchy.nodes import Hierarchy
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.kvstores.base import prefix_end
from gpustore.kvstores.columns import ABSENT
from gpustore.kvstores.kvstore import KvStore
from gpustore.metadata.logical_path import ancestors, check_node_names, logical_path
from gpustore.metadata.node import Node
from gpustore.metadata.object_type import empty_object, is_object
from gpustore.pipelines.chunked_array import ChunkedArray, refiners_of
from gpustore.resources.cache_pool import cache_of
from gpustore.resources.device_cache_pool import TABLE_NBYTES, DeviceCachePool, Residence
from gpustore.resources.gpu_decode_trust import distrust_of
from gpustore.runtime.cache import OVERHEAD_NBYTES, ArrayId, CacheUse, Space
from gpustore.runtime.executor import Executor
from gpustore.schema import Schema
from gpustore.strict_json.parsing import JsonValue, Members, in_member

_ATTEMPTS = 10

_CREATE = 'Cannot create using specified "metadata" and schema'


@dataclass(frozen=True)
class ChunkedSpec:
    """An array of chunks to be opened or created.

    Attributes
    ----------
    format : Format
    kvstore : KvStore.Spec or None
        Kvstore with the array's path, which ends in ``/`` or is empty.
    constraints : Schema
        Constraints of the caller on the schema.
    metadata : object
        Constraints of the caller on the format's metadata.
    options : mapping
        Other members that differ from their default, as JSON.
    node_path : str
        Path of the array in a hierarchy whose root is known: the groups on the way are created with
        the array. Not part of JSON or URL.
    """

    format: Format
    kvstore: KvStore.Spec | None
    constraints: Schema
    metadata: Any
    options: Mapping[str, JsonValue] = field(default_factory=dict)
    node_path: str = ""
    _constrained: Schema | None = field(default=None, init=False, repr=False, compare=False)

    base = None

    @property
    def id(self) -> str:
        return self.format.json_id

    @property
    def schema(self) -> Schema:
        """Constraints of the caller on schema and metadata, with those that the format implies."""
        return self.constrained().copy()

    def constrained(self) -> Schema:
        """Return :attr:`schema` itself, which is merged once. Not to be changed.

        Raises
        ------
        MetadataError
            If the constraints contradict each other.
        """
        if self._constrained is None:
            schema = merged(self.format, self.metadata, self.constraints)
            object.__setattr__(self, "_constrained", schema)
            return schema
        return self._constrained

    @property
    def url(self) -> str:
        if self.kvstore is None:
            raise MetadataError("Invalid kvstore spec")
        for name in self.format.selection.to_json():
            what = "selected_field" if name == "field" else name
            raise UnsupportedError(
                f"{self.format.id} URL syntax not supported with {what} specified"
            )
        if "metadata_key" in self.options:
            raise UnsupportedError(
                f"{self.format.id} URL syntax not supported with non-default metadata_key",
            )
        return f"{self.kvstore.url}|{self.format.id}:"

    def to_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return the members of the driver."""
        members: dict[str, JsonValue] = {**self.options, **self.format.selection.to_json()}
        if include_defaults:
            members = {**DEFAULTS, **members}
        if self.kvstore is not None:
            members["kvstore"] = self.kvstore.to_json(include_defaults)
        metadata = self.metadata.to_json()
        if metadata:
            members["metadata"] = metadata
        schema = self.constrained()
        members.update(schema_members(self.constraints, rank_known=True))
        if schema.rank is not None and schema.domain is None:
            members["rank"] = schema.rank
        if schema.dtype is not None:
            members["dtype"] = schema.dtype.to_json()
        return members

    def updated(
        self, *, schema: Schema | None = None, kvstore: KvStore.Spec | None = None, **options: Any
    ) -> DriverSpec:
        """Return the spec with more constraints merged in.

        Raises
        ------
        MetadataError
            If the constraints contradict each other.
        """
        spec = self
        if kvstore is not None:
            if self.kvstore is not None:
                raise MetadataError('"kvstore" is already specified')
            # Not by `replace`, which takes 3 us of the 60 that opening takes.
            spec = object.__new__(ChunkedSpec)
            vars(spec).update(vars(self), kvstore=_directory(kvstore))
        if schema is not None and not schema.is_empty:
            constraints = spec.constraints.copy()
            constraints.merge(schema)
            spec = replace(spec, constraints=constraints)
            spec.constrained()  # Raises on contradictions.
        if options.pop("minimal", False):
            spec = replace(spec, metadata=self.format.no_constraints)
        if options:
            checked = take_options(Members(options))
            kept = {name: value for name, value in spec.options.items() if name not in options}
            spec = replace(spec, options={**kept, **checked})
        return spec

    def open(self, request: OpenRequest) -> Opening:
        """Open or create the array in the steps of this module."""
        steps = _Steps(self, request)
        # Reading local metadata is quicker than handing it over to another thread.
        local = steps.store.driver.is_local and not steps.mode.create
        return Opening(steps.executor, steps.run, may_defer=local)


class _Steps:
    """One call of :meth:`ChunkedSpec.open`; checks everything that needs no I/O at once."""

    def __init__(self, spec: ChunkedSpec, request: OpenRequest) -> None:
        self.spec = spec
        self.format = spec.format
        self.request = request
        self.name = f'Error opening "{spec.id}" driver'
        context = request.context
        self.resources = bound_resources(context, spec.options)
        metadata_pool = self.resources.get(METADATA_POOL, self.resources["cache_pool"])
        with prefixing(self.name):
            self.mode = _checked_mode(request)
            if spec.kvstore is None:
                raise MetadataError('"kvstore" must be specified')
            self.limits = self.resources["limits"].value
            self.executor: Executor = self.resources["data_copy_concurrency"].value
            allocator = self.resources["device_allocator"].value
            self.backend = select_backend(self.resources["device"].value, allocator)
            self.store = open_kvstore(spec.kvstore, context)
            io = self.store.driver.executor
            if io is not None and io.limit < self.executor.limit:
                self.executor = io  # One thread fetches and decodes: both limits hold.
        key = self.store.path + str(spec.options.get("metadata_key", self.format.metadata_key))
        self.file = MetadataFile(
            self.format,
            self.store.driver,
            key,
            self.limits,
            spec.metadata,
            cache_of(metadata_pool.value),
        )
        self.cache = cache_of(self.resources["cache_pool"].value)
        self.device_pool: DeviceCachePool = self.resources["device_cache_pool"].value
        self.hierarchy = request.hierarchy
        if spec.node_path and self.hierarchy is None:
            root = self.store.path[: -len(spec.node_path) - 1]
            self.hierarchy = Hierarchy(
                *(self.store.driver, root, self.format.zarr_format, self.limits),
                *(self.file.cache, self.device_pool),
            )

    def run(self) -> tuple[Driver, IndexTransform]:
        found = self.request.found
        self.read_at = time.time() if found is None else found.read_at
        with prefixing(self.name):
            driver = self._driver(*self._metadata())
            transform = IndexTransform(driver.domain)
            wanted = self._wanted(driver.domain)
            if wanted is not None:
                transform = transform[wanted]
            return driver, transform

    def _wanted(self, found: IndexDomain) -> IndexTransform | None:
        """The part of the array the spec asks for, None for all of the domain `found`; labels of
        the spec's domain replace stored ones.
        """
        spec = self.spec
        if self.request.transform is not None:
            return self.request.transform
        if spec.metadata is self.format.no_constraints and spec.constraints.domain is None:
            return None
        domain = spec.constrained().domain
        return None if domain is None or domain == found else IndexTransform(domain)

    def _metadata(self) -> tuple[Any, ArrayDescription]:
        if self.request.node is not None:
            found = self.file.of_node(self.request.node)
            return found, self._checked(found)
        if self.request.found is not None:
            found = self.file.of_value(self.request.found.value)
            return found, self._checked(found)
        if self.mode.assumes:
            return self._new_metadata(_CREATE)
        condition = self._delete_existing() if self.mode.delete_existing else ABSENT
        recheck = self.spec.options.get("recheck_cached_metadata", "open")
        bound = math.inf if recheck == "open" else recheck_bound(recheck, self.read_at)
        for _ in range(_ATTEMPTS):
            if self.mode.open:
                found, _ = self.file.load(bound)
                if found is not None:
                    return found, self._checked(found)
                if not self.mode.create:
                    raise NotFoundError(
                        f"Metadata at {self.file.name} does not exist", key=self.file.key
                    )
            elif not self.mode.delete_existing and self.file.load()[0] is not None:
                raise self._already_exists()
            try:
                metadata, description = self._new_metadata(
                    f"Error writing {self.file.name}: {_CREATE}"
                )
            except GpustoreError:
                if condition != ABSENT:
                    self.store.driver.delete_range(self.store.path, prefix_end(self.store.path))
                raise
            if self.hierarchy is not None:
                check_node_names(self.spec.node_path, self.hierarchy.zarr_format)
                self.hierarchy.invalidate(ancestors(self.spec.node_path))
                self.hierarchy.create_groups(ancestors(self.spec.node_path))
            if self.file.save(metadata, condition, anew=condition != ABSENT):
                return metadata, description
            if condition == ABSENT and not self.mode.open:
                raise self._already_exists()
            condition = ABSENT
        raise ConflictError(
            f"{self.file.name} was created and deleted again {_ATTEMPTS} times", key=self.file.key
        )

    def _delete_existing(self) -> bytes:
        """Delete all below the path of the array; return the generation of the metadata that are
        left, because nothing else was there and new ones can replace them at once, or ABSENT.
        """
        path, driver = self.store.path, self.store.driver
        if self.hierarchy is not None:
            self.hierarchy.invalidate(ancestors(self.spec.node_path))
        try:
            if self.file.key == path + self.format.metadata_key:
                return driver.clear_directory(path, self.file.key)
            # The metadata may lie in another directory than what is deleted.
            driver.delete_range(path, prefix_end(path))
            return ABSENT
        finally:
            for cache in (self.cache, self.file.cache):
                if cache is not None:
                    cache.forget_range(driver.identity, path)
            self.device_pool.forget_range(driver.identity, path)

    def _already_exists(self) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"Error writing {self.file.name}; it exists: open=True opens it, delete_existing=True "
            "makes it anew",
            key=self.file.key,
        )

    def _new_metadata(self, attempt: str) -> tuple[Any, ArrayDescription]:
        with prefixing(attempt):
            spec = self.spec
            metadata = created(self.format, spec.metadata, spec.constrained(), self.limits)
            return metadata, described(self.format, metadata, self.limits)

    def _checked(self, metadata: Any) -> ArrayDescription:
        """Describe stored metadata, and compare them with what the caller asked for."""
        constraints = self.spec.metadata
        if constraints is not self.format.no_constraints:
            self.format.validate(constraints, metadata)
        with self.file.blamed(), prefixing(lambda: f"Error reading {self.file.name}"):
            description = described(self.format, metadata, self.limits)
        description.check(self.spec.constraints, self.format.words)
        return description

    def _array(self, metadata: Any, description: ArrayDescription) -> Callable[[], ChunkedArray]:
        """Return a function that makes the array for the pipelines, which keeps no more than it
        needs.
        """
        store, options = self.store, self.spec.options
        backend, executor, limits = self.backend, self.executor, self.limits
        decode_rule = self.resources["gpu_decode_choice"].value
        trust = self.resources["gpu_decode_trust"].value
        distrust = distrust_of(trust, store_is_trusted=store.driver.is_trusted)
        chain = description.chain.distrusted(distrust)
        cache = self._cache_use(metadata, chain)
        residence = self._residence(metadata, description)

        def make() -> ChunkedArray:
            fill = description.fill_value
            missing = _missing(description)
            # What a missing part of a record reads as depends on where in the chunk it lies.
            narrows = chain.is_raw and chain.reads_parts and missing is not description.blank
            keep_fill = bool(options.get("store_data_equal_to_fill_value", False))
            return ChunkedArray(
                store=store.driver,
                key_prefix=store.path + description.key_prefix,
                key_separator=description.key_separator,
                shape=description.shape,
                chunk_shape=description.read_shape,
                inner_rank=description.inner_rank,
                dtype=description.dtype.array_dtype,
                fill_value=missing,
                blank=missing if description.blank is None else description.blank,
                chain=chain,
                levels=description.levels,
                refiners=refiners_of(chain, description.levels, narrows=narrows),
                fill_missing=bool(options.get("fill_missing_data_reads", True)),
                keep_fill=fill is None or keep_fill,
                backend=backend if chain.objects is None else for_objects(backend),
                executor=executor,
                limits=limits,
                cache=cache,
                residence=residence,
                decode_rule=decode_rule,
                grid=description.grid,
            )

        return make

    def _driver(self, metadata: Any, description: ArrayDescription) -> ChunkedDriver:
        options = self.spec.options
        spec, store = self.spec, self.store
        # References to resources of one context mean nothing in another.
        kept = {n: v for n, v in options.items() if n not in (*RESOURCES, METADATA_POOL)}

        opened = metadata

        def respec(metadata: Any) -> DriverSpec:
            schema = Schema(dtype=description.dtype, rank=len(description.shape))
            # A field that need not be named is.
            name = spec.format.component(opened).name
            selection = replace(spec.format.selection, field=name)
            format_ = spec.format.selecting(selection)
            stored = format_.no_constraints
            if metadata is not None:
                stored = format_.constraints_of(metadata)
            return ChunkedSpec(format_, store.spec(), schema, stored, kept)

        return ChunkedDriver(
            file=self.file,
            metadata=metadata,
            description=description,
            make_array=self._array(metadata, description),
            kvstore=self.store,
            resources={**self.store.driver.all_resources, **self.resources},
            readable=self.request.readable,
            writable=self.request.writable and self.store.driver.can_write,
            respec=respec,
            assumed=self.mode.assume_metadata,
            recheck=recheck_bound(options.get("recheck_cached_metadata", "open"), -math.inf),
            read_at=self.read_at,
            hierarchy=self.hierarchy,
            zattrs=_zattrs(self.request.node),
        )

    def _cache_use(self, metadata: Any, chain: CodecChain) -> CacheUse | None:
        """Return the use of the cache for chunks, None if it has no room for a decoded one."""
        if self.cache is None or chain.layout.nbytes + OVERHEAD_NBYTES > self.cache.limit:
            return None
        encoded = self.backend.unsupported_reason(chain) is None
        space = Space(self.store.driver.identity, _meaning(metadata))
        return CacheUse(self.cache, space, self._data_bound(), encoded)

    def _residence(self, metadata: Any, description: ArrayDescription) -> Residence | None:
        """Return the use of the caches of devices, None without any."""
        pool, chain = self.device_pool, description.chain
        if not pool.total_bytes_limit:
            return None
        cache = None
        if chain.objects is None and chain.layout.nbytes + TABLE_NBYTES <= pool.total_bytes_limit:
            cache = self.backend.chunk_cache(pool)
        prefix = self.store.path + description.key_prefix
        name = ArrayId(self.store.driver.identity, prefix, _meaning(metadata))
        levels, rank = description.levels, len(description.shape) - description.inner_rank
        inner = levels[0].ratio if levels else (1,) * rank
        return Residence(pool, name, inner, self._data_bound(), cache)

    def _data_bound(self) -> float:
        recheck = self.spec.options.get("recheck_cached_data", True)
        return recheck_bound(recheck, self.read_at)


def _meaning(metadata: Any) -> bytes:
    """Identity of the decoding: another shape decodes the same values in the same way."""
    meaning: bytes = metadata.with_shape((0,) * len(metadata.shape)).encode()
    return meaning


def _zattrs(node: Node | None) -> Mapping[str, JsonValue] | None:
    """The attributes of a node; None if they are not known, or wrong: whoever wants them reads."""
    try:
        return None if node is None else node.attributes
    except MetadataError:
        return None


def _missing(description: ArrayDescription) -> Any:
    """Return the element that missing chunks read as; a stored one where its parts differ."""
    dtype, fill = description.dtype.array_dtype, description.fill_value
    if fill is None:
        objects = is_object(description.dtype)
        return empty_object(description.dtype) if objects else np.zeros((), dtype)
    if fill.ndim == 0:
        return fill
    elements = np.unique(np.asarray(fill).reshape(-1, 1).view(f"V{dtype.itemsize}"))
    return (
        np.asarray(fill).reshape(-1)[0:1].reshape(()) if len(elements) == 1 else description.blank
    )


def _checked_mode(request: OpenRequest) -> OpenMode:
    mode = request.mode.resolved()
    if mode.create and not request.writable:
        raise MetadataError("Cannot specify an open mode of `create` without `write`")
    return mode


def _directory(spec: KvStore.Spec) -> KvStore.Spec:
    """The spec with a path that ends in "/": an array is a directory."""
    if spec.path and not spec.path.endswith("/"):
        return spec + "/"
    return spec


class ChunkedKind:
    """Base of the objects that modules of chunked formats register as drivers."""

    is_adapter = False
    shares_members = True

    def __init__(self, format_: Format) -> None:
        self.format = format_
        self.id = format_.id

    def from_json(self, members: Members, schema: Schema) -> ChunkedSpec:
        """Take the members of a chunked driver."""
        kvstore = members.take("kvstore", None)
        path = members.take_str("path", default="")
        spec = None
        if kvstore is not None:
            with in_member("kvstore"):
                spec = KvStore.Spec.from_json(kvstore)
            spec = _directory(spec / path if path else spec)
        format_ = self.format.selecting(Selection.from_members(members))
        constraints = format_.take_constraints(members)
        options = take_options(members)
        options.update(format_.take_options(members))
        parsed = ChunkedSpec(format_, spec, schema, constraints, options)
        if constraints is not format_.no_constraints or not schema.is_empty:
            parsed.constrained()  # Raises on contradictions.
        return parsed

    def from_url(self, base: KvStore.Spec, path: str) -> ChunkedSpec:
        """Return the spec of ``<base>|<id>:path``; the path is logical, below the root `base`."""
        node_path = logical_path(path) if path else ""
        spec = _directory(_directory(base) + node_path)
        format_ = self.format
        return ChunkedSpec(format_, spec, Schema(), format_.no_constraints, node_path=node_path)

    def merge_codec(self, a: JsonValue, b: JsonValue) -> JsonValue:
        """Merge the JSON of two codec specs of this driver."""
        return self.format.merge_codec(a, b)
