"""Steps of opening and creating an array of chunks, from its spec.

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
from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from gpustore.backends.native.job import MISSING
from gpustore.backends.selection import for_objects
from gpustore.codec_chain.chain import CodecChain
from gpustore.drivers._absence import is_v2_group, names_like
from gpustore.drivers._metadata_file import MetadataFile
from gpustore.drivers._read_ahead import read_ahead, wait
from gpustore.drivers._remembered import constraints_of, created, described, validate
from gpustore.drivers._setting import setting_of
from gpustore.drivers.base import DriverSpec, OpenMode, OpenRequest, open_kvstore
from gpustore.drivers.chunked import ChunkedDriver
from gpustore.drivers.format import ArrayDescription
from gpustore.drivers.options import recheck_bound, without_resources
from gpustore.drivers.transacted import TransactedDriver
from gpustore.errors import (
    AlreadyExistsError,
    ConflictError,
    GpustoreError,
    MetadataError,
    PathNotFoundError,
    prefixing,
)
from gpustore.hierarchy.nodes import Hierarchy
from gpustore.index_space import IndexDomain, IndexTransform
from gpustore.index_space.output_map import identity_maps
from gpustore.index_space.transform import make_transform
from gpustore.kvstores.base import prefix_end
from gpustore.kvstores.columns import ABSENT
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.transaction import TransactedKvStore, in_transaction
from gpustore.metadata.logical_path import ancestors, check_node_names
from gpustore.metadata.node import Node
from gpustore.metadata.object_type import empty_object, is_object
from gpustore.pipelines.chunked_array import ArrayTemplate, ChunkedArray, refiners_of
from gpustore.resources.device_cache_pool import TABLE_NBYTES, Residence
from gpustore.resources.gpu_decode_trust import distrust_of
from gpustore.runtime.cache import OVERHEAD_NBYTES, ArrayId, CacheUse, Space
from gpustore.runtime.context import Context
from gpustore.runtime.transaction import Transaction, TransactionExecutor
from gpustore.schema import Schema
from gpustore.strict_json.parsing import JsonValue

_ATTEMPTS = 10

_last_placed: tuple[IndexDomain | None, IndexTransform | None, IndexTransform | None]
_last_placed = None, None, None

_CREATE = 'Cannot create using specified "metadata" and schema'


class Steps:
    """One call of :meth:`ChunkedSpec.open`; checks everything that needs no I/O at once.

    Attributes
    ----------
    kind, transacted : type
        Class of the opened driver, and of that in a transaction.
    """

    kind: ClassVar[type[ChunkedDriver]] = ChunkedDriver
    transacted: ClassVar[type[TransactedDriver]] = TransactedDriver

    __slots__ = (
        *("__weakref__", "driver", "executor", "file", "format", "found", "hierarchy", "mode"),
        *("path", "plain_setting", "read_at", "request", "setting", "spec", "store"),
    )

    def __init__(self, spec: Any, request: OpenRequest) -> None:
        self.spec = spec
        self.format = spec.format
        self.request = request
        self.found = request.found
        self.plain_setting = setting = setting_of(request.context, spec.options)
        try:
            self.mode = _checked_mode(request)
            if spec.kvstore is None:
                raise MetadataError('"kvstore" must be specified')
            if not setting.is_bound:
                setting.bind()
            store = open_kvstore(spec.kvstore, request.context, request.transaction)
        except GpustoreError:
            with prefixing(self._context()):
                raise
        self.hierarchy = request.hierarchy
        self._use(store)

    def _use(self, store: KvStore) -> None:
        """Let all I/O go through a kvstore."""
        self.store, self.path, spec = store, store.path, self.spec
        self.driver = driver = store.driver
        self.setting = setting = self.plain_setting
        executor, io, transaction = setting.executor, driver.executor, driver.transaction
        if io is not None and io.limit < executor.limit:
            executor = io  # One thread fetches and decodes: both limits hold.
        if transaction is not None:
            executor = TransactionExecutor(executor, transaction)
            self.setting = setting.uncached()
        self.executor = executor
        name = spec.options.get("metadata_key") if spec.options else None
        key = self.path + str(name or self.format.metadata_key)
        cache, limits = self.setting.metadata_cache, setting.limits
        known = spec.metadata, cache, self.setting.metadata_pool
        self.file = MetadataFile(self.format, driver, key, limits, *known)
        if spec.node_path and (self.hierarchy is None or transaction is not None):
            root = self.path[: -len(spec.node_path) - 1]
            version, pool = self.format.zarr_format, self.setting.device_pool
            self.hierarchy = Hierarchy(driver, root, version, limits, cache, pool)
        if transaction is not None:
            assert isinstance(driver, TransactedKvStore)
            prefix = self.path if self.hierarchy is None else self.hierarchy.root
            forget = partial(setting.forget_range, driver.plain.identity, prefix)
            driver.stage.committed[id(setting), prefix] = forget

    def _context(self) -> str:
        return f'Error opening "{self.spec.id}" driver'

    def run(self) -> tuple[ChunkedDriver, IndexTransform]:
        """Open or create the array; called once. Blocks."""
        if self.found is None and self._is_plain_read:
            read_ahead(self)
        self.read_at = time.time() if self.found is None else self.found.read_at
        try:
            driver = self._driver(*self._metadata())
            return driver, self._placed(driver.description.domain)
        except GpustoreError:
            with prefixing(self._context()):
                raise
        finally:
            # The opened driver keeps this object, and needs no document.
            self.found = None
            if self.request.node is not None or self.request.found is not None:
                self.request = self.request._replace(node=None, found=None)

    @property
    def _is_plain_read(self) -> bool:
        """Whether nothing is asked of the stored metadata but to be there, now."""
        mode, request = self.mode, self.request
        if mode.create or mode.assumes or self.file.cache is not None:
            return False
        return request.node is None and request.found is None

    def defer(self) -> bool:
        """Return whether the thread that asks for the result may run these steps; others may then
        read the metadata too.

        Reading local metadata is quicker than handing it over to another thread.
        """
        if not self.driver.is_local or self.mode.create:
            return False
        if self._is_plain_read:
            wait(self)
        return True

    def _placed(self, domain: IndexDomain) -> IndexTransform:
        """Return the transform to an array of this domain; that of the last array if it is alike,
        as many layers of a stack are.
        """
        global _last_placed
        wanted = self._wanted(domain)
        of_domain, of_wanted, found = _last_placed
        if domain is not of_domain or wanted is not of_wanted or found is None:
            found = make_transform(domain, identity_maps(len(domain.shape)))
            if wanted is not None:
                found = found[wanted]
            _last_placed = domain, wanted, found
        return found

    def is_alike(self, other: Any) -> bool:
        """Whether :meth:`array` makes the same of one description, but for store and prefix."""
        one, two = self.spec.options, other.spec.options
        return self.setting is other.setting and self.executor is other.executor and one == two

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
        if self.found is not None:
            found = self.file.of_value(self.found.value)
            return found, self._checked(found)
        if self.mode.assumes:
            return self._new_metadata(_CREATE)
        condition = self._delete_existing() if self.mode.delete_existing else ABSENT
        recheck = self.spec.options.get("recheck_cached_metadata", "open")
        bound = math.inf if recheck == "open" else recheck_bound(recheck, self.read_at)
        for _ in range(_ATTEMPTS):
            if self.mode.open:
                found = self._stored(bound)
                if found is not None:
                    return found, self._checked(found)
                if not self.mode.create:
                    raise self._nothing_there()
            elif not self.mode.delete_existing and self._stored() is not None:
                raise self._already_exists()
            try:
                metadata, description = self._new_metadata(self._attempt)
            except GpustoreError:
                if condition != ABSENT:
                    self.driver.delete_range(self.path, prefix_end(self.path))
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

    @property
    def _attempt(self) -> str:
        """Context of errors about new metadata."""
        return f"Error writing {self.file.name}: {_CREATE}"

    def _stored(self, bound: float = math.inf) -> Any:
        """Return the stored metadata, None if there are none."""
        look = self.file.look()
        if isinstance(look, bytes):
            return self.file.of_value(look)
        return None if look == MISSING else self.file.load(bound)[0]

    def _delete_existing(self) -> bytes:
        """Delete all below the path of the array; return the generation of the metadata that are
        left, because nothing else was there and new ones can replace them at once, or ABSENT.
        """
        path, driver = self.path, self.driver
        if self.hierarchy is not None:
            self.hierarchy.invalidate(ancestors(self.spec.node_path))
        try:
            if self.file.key == path + self.format.metadata_key:
                return driver.clear_directory(path, self.file.key)
            # The metadata may lie in another directory than what is deleted.
            driver.delete_range(path, prefix_end(path))
            return ABSENT
        finally:
            self.setting.forget_range(driver.identity, path)

    def _nothing_there(self) -> PathNotFoundError:
        text = f"Metadata at {self.file.name} does not exist"
        if self.format.zarr_format == 2 and is_v2_group(self.store):
            text += "; it is a Zarr v2 group, which gpustore.open_group opens"
        else:
            text += names_like(self.store)
        return PathNotFoundError(text, key=self.file.key, status="NOT_FOUND")

    def _already_exists(self) -> AlreadyExistsError:
        return AlreadyExistsError(
            f"Error writing {self.file.name}; it exists: open=True opens it; delete_existing=True, "
            "or overwrite=True of create_array and save, makes it anew",
            key=self.file.key,
        )

    def _new_metadata(self, attempt: str) -> tuple[Any, ArrayDescription]:
        with prefixing(attempt):
            spec = self.spec
            limits = self.setting.limits
            metadata = created(self.format, spec.metadata, spec.constrained(), limits)
            return metadata, described(self.format, metadata, limits)

    def _checked(self, metadata: Any) -> ArrayDescription:
        """Describe stored metadata, and compare them with what the caller asked for."""
        constraints = self.spec.metadata
        if constraints is not self.format.no_constraints:
            validate(self.format, constraints, metadata)
        try:
            description = described(self.format, metadata, self.setting.limits)
        except GpustoreError as error:
            status = error.status or "FAILED_PRECONDITION"
            with self.file.blamed(), prefixing(f"Error reading {self.file.name}", status=status):
                raise
        description.check(self.spec.constraints, self.format.words)
        return description

    def _driver(self, metadata: Any, description: ArrayDescription) -> ChunkedDriver:
        options, request = self.spec.options, self.request
        recheck = -math.inf
        if options:
            given = options.get("recheck_cached_metadata", "open")
            recheck = recheck_bound(given, -math.inf)
        kind = self.kind if self.driver.transaction is None else self.transacted
        return kind(
            self.file,
            metadata,
            description,
            self,
            self.store,
            readable=request.readable,
            writable=request.writable and self.driver.can_write,
            assumed=self.mode.assume_metadata,
            recheck=recheck,
            read_at=self.read_at,
            hierarchy=self.hierarchy,
            zattrs=None if request.node is None else _zattrs(request.node),
        )

    def bound(self, opened: ChunkedDriver, transaction: Transaction | None) -> ChunkedDriver:
        """Return the opened array with all operations in a transaction, or in none."""
        steps = copy(self)
        store = opened.kvstore
        steps._use(KvStore(in_transaction(store.driver, transaction), store.path))
        kind = self.kind if transaction is None else self.transacted
        driver = kind(
            steps.file,
            opened.metadata,
            opened.description,
            steps,
            steps.store,
            opened.readable,
            opened.writable,
            opened.assumed,
            opened.recheck,
            opened.read_at,
            steps.hierarchy,
            opened.zattrs,
        )
        if isinstance(driver, TransactedDriver):
            vars(driver)["plain_array"] = opened.array
        return driver

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        """Context resources of the driver and its kvstore, by identifier."""
        return {**self.driver.all_resources, **self.setting.resources}

    def respec(self, opened: ChunkedDriver, metadata: Any) -> DriverSpec:
        """Return the unopened spec with `metadata`, or with None a minimal one."""
        schema = Schema(dtype=opened.description.dtype, rank=len(opened.description.shape))
        # A field that need not be named is.
        name = self.format.component(opened.metadata).name
        format_ = self.format.selecting(replace(self.format.selection, field=name))
        stored = format_.no_constraints
        if metadata is not None:
            stored = constraints_of(format_, metadata)
        spec: DriverSpec = replace(
            self.spec,
            format=format_,
            kvstore=self.store.spec(),
            constraints=schema,
            metadata=stored,
            options=without_resources(self.spec.options),
            node_path="",
        )
        return spec

    def array(self, metadata: Any, description: ArrayDescription) -> ChunkedArray:
        """Return the array for the pipelines."""
        setting, driver, options = self.setting, self.driver, self.spec.options
        fill_missing = bool(options.get("fill_missing_data_reads", True))
        keep_fill = bool(options.get("store_data_equal_to_fill_value", False))
        # Programs open many arrays that are alike.
        key = setting.trust, driver.is_trusted, fill_missing, keep_fill
        template = description.templates.get(key)
        if template is None:
            template = description.templates[key] = _template(description, *key)
        backend, chain = setting.backend, template.chain
        return template.array(
            store=driver,
            key_prefix=self.path + description.key_prefix,
            backend=backend if chain.objects is None else for_objects(backend),
            executor=self.executor,
            limits=setting.limits,
            cache=self._cache_use(metadata, chain),
            residence=self._residence(metadata, description),
            decode_rule=setting.decode_rule,
        )

    def _cache_use(self, metadata: Any, chain: CodecChain) -> CacheUse | None:
        """Return the use of the cache for chunks, None if it has no room for a decoded one."""
        cache = self.setting.cache
        if cache is None or chain.layout.nbytes + OVERHEAD_NBYTES > cache.limit:
            return None
        encoded = self.setting.backend.unsupported_reason(chain) is None
        space = Space(self.driver.identity, _meaning(metadata))
        return CacheUse(cache, space, self._data_bound(), encoded)

    def _residence(self, metadata: Any, description: ArrayDescription) -> Residence | None:
        """Return the use of the caches of devices, None without any."""
        pool, chain = self.setting.device_pool, description.chain
        if not pool.total_bytes_limit:
            return None
        cache = None
        if chain.objects is None and chain.layout.nbytes + TABLE_NBYTES <= pool.total_bytes_limit:
            cache = self.setting.backend.chunk_cache(pool)
        prefix = self.path + description.key_prefix
        name = ArrayId(self.driver.identity, prefix, _meaning(metadata))
        levels, rank = description.levels, len(description.shape) - description.inner_rank
        inner = levels[0].ratio if levels else (1,) * rank
        return Residence(pool, name, inner, self._data_bound(), cache)

    def _data_bound(self) -> float:
        name = "recheck_cached_data"
        recheck = self.spec.options.get(name, self.spec.defaults[name])
        return recheck_bound(recheck, self.read_at)


def _meaning(metadata: Any) -> bytes:
    """Identity of the decoding: another shape decodes the same values in the same way, and so do
    other attributes.
    """
    free: dict[str, Any] = {metadata.free_member: {}}
    meaning: bytes = metadata.with_members(shape=(0,) * len(metadata.shape), **free).encode()
    return meaning


def _zattrs(node: Node) -> Mapping[str, JsonValue] | None:
    """The attributes of a node; None if they are not known, or wrong: whoever wants them reads."""
    try:
        return node.attributes
    except MetadataError:
        return None


def _template(
    description: ArrayDescription,
    trust: str,
    store_is_trusted: bool,
    fill_missing: bool,
    keep_fill: bool,
) -> ArrayTemplate:
    """Return the template of arrays with this description, trust and options."""
    chain = description.chain.distrusted(distrust_of(trust, store_is_trusted=store_is_trusted))
    missing = _missing(description)
    # What a missing part of a record reads as depends on where in the chunk it lies.
    narrows = chain.is_raw and chain.reads_parts and missing is not description.blank
    is_undefined = description.fill_value is None
    return ArrayTemplate(
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
        fill_missing=fill_missing,
        keep_fill=(is_undefined and description.stores_zeros) or keep_fill,
        grid=description.grid,
        names=description.names,
    )


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
