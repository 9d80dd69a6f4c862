"""The ``ocdbt`` kvstore: a database with versions, in a directory of another kvstore.

Keys are in a B+tree that is never changed in place. A commit writes new data files, with the values
and the nodes that differ, and then replaces the manifest on condition that it is unchanged. Every
commit makes a version, a batch is one commit, readers see all of it or nothing, and a killed writer
leaves files without references. TensorStore reads and writes the same databases, also at the same
time.

JSON, all members but ``base`` optional::

    {"driver": "ocdbt", "base": "file:///data/db/", "path": "a/", "version": 5,
     "config": {"max_inline_value_bytes": 100}, "manifest": "memory://m/",
     "value_data_prefix": "d/", "btree_node_data_prefix": "d/",
     "version_tree_node_data_prefix": "d/", "target_data_file_size": 2147483648,
     "assume_config": false, "experimental_read_coalescing_threshold_bytes": 4096,
     "experimental_read_coalescing_merged_bytes": 1048576,
     "experimental_read_coalescing_interval": "1ms"}

The members of coalescing control the joining of reads of data files
(:mod:`~gpustore.kvstores.ocdbt.coalesce`); without them the base decides. Joined values do not go
straight to a device.

URL ``file:///data/db/|ocdbt:a/``, of a version ``|ocdbt:@v5/a/`` or
``|ocdbt:@2024-01-02T03:04:05Z/a/``. Any key of at most 65535 bytes is legal, also the empty one.

A generation is derived from an inline value, or from the place of a value in a data file: writing
the same small value again does not change it.

Source: TensorStore ``kvstore/ocdbt/index.rst``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from gpustore.errors import GpustoreError, MismatchError, UnsupportedError
from gpustore.kvstores.adapter import AdapterKvStore, AdapterSpec, Part
from gpustore.kvstores.base import Base, invalid_key
from gpustore.kvstores.columns import (
    AtomicRequest,
    LocateColumns,
    ReadColumns,
    ReadState,
    WriteColumns,
    WriteRequest,
    check_byte_range,
    check_nbytes,
    condition_holds,
)
from gpustore.kvstores.ocdbt.coalesce import Coalescer, Coalescing
from gpustore.kvstores.ocdbt.commit import Committer
from gpustore.kvstores.ocdbt.config import ConfigConstraints
from gpustore.kvstores.ocdbt.data_file import DEFAULT_TARGET_NBYTES
from gpustore.kvstores.ocdbt.database import Database
from gpustore.kvstores.ocdbt.dump import dump
from gpustore.kvstores.ocdbt.keys import MAX_KEY_NBYTES
from gpustore.kvstores.ocdbt.location import Location, is_safe
from gpustore.kvstores.ocdbt.rewrite import KeyRange
from gpustore.kvstores.ocdbt.tree import find, generation_of, leaves
from gpustore.kvstores.ocdbt.version import VersionSpec, version_from_json, version_from_url
from gpustore.kvstores.result import as_bytes
from gpustore.kvstores.spec import KvStoreSpec
from gpustore.resources.cache_pool import cache_of
from gpustore.runtime.context import resource_json
from gpustore.strict_json.parsing import Members, expect_str, quote
from gpustore.url import encode_path, require_no_slashes

if TYPE_CHECKING:
    import builtins
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from gpustore.kvstores.base import KvStoreDriver
    from gpustore.kvstores.columns import ReadRequest
    from gpustore.kvstores.ocdbt.tree import LeafRows, Value
    from gpustore.kvstores.ocdbt.version_tree import Version
    from gpustore.runtime.context import Context
    from gpustore.strict_json.parsing import JsonValue
    from gpustore.url import UrlComponent


_COORDINATOR: Final = "ocdbt_coordinator"
_PREFIXES: Final = (
    "value_data_prefix",
    "btree_node_data_prefix",
    "version_tree_node_data_prefix",
)
_DEFAULT_PREFIX: Final = "d/"


class OcdbtKvStore(AdapterKvStore):
    """An opened OCDBT database, or one version of it.

    Parameters
    ----------
    base : Base
        Directory of the database.
    manifests : Base
        Directory of the manifests; by default the same.
    """

    id = "ocdbt"
    atomic_single_key = True
    _spec: OcdbtSpec

    def __init__(
        self,
        base: Base,
        *,
        spec: OcdbtSpec,
        resources: Mapping[str, Context.Resource],
        manifests: Base | None = None,
    ) -> None:
        super().__init__(base, spec=spec, resources=resources)
        coalescing = spec.coalescing
        self._coalescer = coalescing and Coalescer(base.driver.read_many, coalescing)
        self.locates_files = base.driver.locates_files and self._coalescer is None
        self.can_write = self.writes_together = spec.version is None and base.driver.can_write
        self._database = Database(
            base,
            manifests or base,
            constraints=spec.config,
            cache=cache_of(resources["cache_pool"].value),
            max_nbytes=resources["limits"].value.ocdbt_node_nbytes,
            read_base=None if self._coalescer is None else self._coalescer.read,
        )
        self._committer = Committer(
            self._database,
            constraints=spec.config,
            assume_config=spec.assume_config,
            prefixes=spec.prefixes,
            target_nbytes=spec.target_data_file_size or DEFAULT_TARGET_NBYTES,
        )

    @property
    def spec(self) -> OcdbtSpec:
        config = self._database.known_config
        return self._spec if config is None else replace(self._spec, config=config.constraints)

    def describe(self, key: str) -> str:
        version = self._spec.version
        which = "" if version is None else f"version {version} of "
        where = self.base.driver.describe(self.base.path)
        return f"{quote(key)} in {which}OCDBT database at {where}"

    @property
    def identity(self) -> Hashable:
        manifests = self._database.manifests
        return (
            *super().identity,  # type: ignore[misc]
            *(manifests.driver.identity, manifests.path, self._spec.version),
        )

    def check_key(self, key: str) -> None:
        _check_key(key)

    # ------------------------------------------------------------------ reading

    def read_base(self, request: ReadRequest) -> ReadColumns:
        if self._coalescer is None:
            return super().read_base(request)
        return self._coalescer.read(request)

    def _version(self, staleness_bound: float | None = None) -> Version | None:
        """Return the version to read; None for a new database."""
        snapshot = self._database.snapshot(staleness_bound)
        wanted = self._spec.version
        if wanted is None:
            return None if snapshot.manifest is None else snapshot.manifest.latest
        if snapshot.manifest is None:
            where = self.base.driver.describe(self.base.path)
            raise wanted.missing().suffixed(f": there is no OCDBT database at {where}")
        return self._database.version(snapshot.manifest, wanted)

    def _find(self, keys: Sequence[str], staleness_bound: float | None) -> Sequence[Value]:
        try:
            version = self._version(staleness_bound)
            if version is None:
                return [None] * len(keys)
            return find(self._database, version, [as_bytes(key) for key in keys])
        except GpustoreError as error:
            return [error] * len(keys)

    def read_many(self, request: ReadRequest) -> ReadColumns:
        result = ReadColumns.blank(len(request.keys))
        found = self._find(request.keys, request.staleness_bound)
        parts: dict[int, Part] = {}
        for i, value in enumerate(found):
            try:
                part = self._read_found(i, value, request, result)
            except GpustoreError as error:
                result.error[i] = error
                continue
            if part is not None:
                parts[i] = part
        # A value without a generation cannot have changed: its data file does not exist.
        for i in self.read_parts(list(parts.values()), request, result):
            result.error[i] = self._database.damaged(found[i], None)  # type: ignore[arg-type]
        for i, failure in result.error.items():
            if i in parts and isinstance(failure, MismatchError):
                location = found[i]
                assert isinstance(location, Location)
                result.error[i] = self._database.damaged(location, failure)
        return result

    def _read_found(
        self, i: int, found: Value, request: ReadRequest, result: ReadColumns
    ) -> Part | None:
        """Fill a row of the result, or return the location to read for it."""
        key = request.keys[i]
        if isinstance(found, GpustoreError):
            raise found.prefixed(f"Error reading {self.describe(key)}")
        generation = generation_of(found)
        result.generation[i] = generation
        total = -1
        if found is not None:
            total = found.nbytes if isinstance(found, Location) else len(found)
        result.total[i] = total
        if request.if_equal is not None and not condition_holds(request.if_equal[i], generation):
            return None
        if found is None:
            result.state[i] = ReadState.MISSING
            return None
        if request.if_not_equal is not None and request.if_not_equal[i] == generation:
            return None
        start = 0 if request.start is None else int(request.start[i])
        stop = None if request.stop is None else request.stop[i]
        begin, end = check_byte_range(total, start, stop, key)
        check_nbytes(end - begin, request.max_nbytes, key)
        if isinstance(found, Location) and begin < end:
            path = self.base.path + found.file.path
            return Part(i, path, found.offset + begin, found.offset + end, b"")
        part: bytes | memoryview = b"" if isinstance(found, Location) else found[begin:end]
        if request.into is not None:
            out = request.into.take(len(part))
            out[:] = part
            part = out
        result.value[i] = part
        result.state[i] = ReadState.VALUE
        return None

    def locate_many(self, keys: Sequence[str]) -> LocateColumns:
        result = LocateColumns.blank(len(keys))
        parts = []
        for i, found in enumerate(self._find(keys, None)):
            if isinstance(found, GpustoreError):
                result.error[i] = found
                continue
            result.generation[i] = generation_of(found)
            if isinstance(found, Location) and found.nbytes:
                result.nbytes[i] = found.nbytes
                path = self.base.path + found.file.path
                stop = found.offset + found.nbytes
                parts.append(Part(i, path, found.offset, stop, b""))
            elif found is not None:
                result.nbytes[i] = 0 if isinstance(found, Location) else len(found)
        self.locate_parts(parts, result)
        return result

    def list(self, inclusive_min: str = "", exclusive_max: str | None = None) -> builtins.list[str]:
        keys: builtins.list[str] = []
        is_ascii = True
        for rows in self._rows(inclusive_min, exclusive_max):
            keys += rows.leaf.keys.totext(rows.prefix, rows.low, rows.high)
            is_ascii = is_ascii and rows.is_ascii
        if is_ascii:
            return keys
        # Bytes that are not UTF-8 have another place among texts than among bytes.
        return sorted(
            key
            for key in keys
            if inclusive_min <= key and (exclusive_max is None or key < exclusive_max)
        )

    def list_bytes(
        self, inclusive_min: str = "", exclusive_max: str | None = None
    ) -> builtins.list[bytes]:
        keys: builtins.list[bytes] = []
        for rows in self._rows(inclusive_min, exclusive_max):
            if not rows.is_ascii:
                return super().list_bytes(inclusive_min, exclusive_max)
            keys += rows.leaf.keys.tolist_after(rows.prefix, rows.low, rows.high)
        return keys

    def _rows(self, inclusive_min: str, exclusive_max: str | None) -> Iterator[LeafRows]:
        version = self._version()
        if version is None or (exclusive_max is not None and exclusive_max <= inclusive_min):
            return
        high = None if exclusive_max is None else _bound(exclusive_max)
        yield from leaves(self._database, version, as_bytes(inclusive_min), high)

    def list_directories(self, prefix: str) -> builtins.list[str]:
        version = self._version()
        begin = as_bytes(prefix)
        names: set[str] = set()
        if version is None:
            return []
        for rows in leaves(self._database, version, begin, begin[:-1] + b"0" if begin else None):
            row = rows.low
            while row < rows.high:
                key = rows.prefix + rows.leaf.keys[row]
                name, slash, _ = key[len(begin) :].partition(b"/")
                row += 1
                if slash:
                    names.add(name.decode("utf-8", "surrogateescape"))
                    # Continue behind the directory: "0" is the character after the slash.
                    row = max(row, rows.row_of(begin + name + b"0"))
        return sorted(names)

    # ------------------------------------------------------------------ writing

    def write_many(self, request: WriteRequest) -> WriteColumns:
        result = WriteColumns.blank(len(request.keys))
        rows = []
        for i, key in enumerate(request.keys):
            try:
                self._check_writable()
                self.check_key(key)
                rows.append(i)
            except GpustoreError as error:
                result.error[i] = error
        if not rows:
            return result
        conditions = request.if_equal
        written = self._committer.write(
            WriteRequest(
                [request.keys[i] for i in rows],
                [request.values[i] for i in rows],
                None if conditions is None else [conditions[i] for i in rows],
            )
        )
        for j, i in enumerate(rows):
            result.generation[i] = written.generation[j]
            if j in written.error:
                where = self.describe(request.keys[i])
                result.error[i] = failed = written.error[j].prefixed(f"Error writing {where}")
                failed.key = request.keys[i]  # Not that of a data file.
        return result

    def write_together(self, request: AtomicRequest) -> builtins.list[str]:
        self._check_writable()
        for key in request.keys:
            self.check_key(key)
        ranges = [
            (low, None if high is None else _bound(high).decode("utf-8", "surrogateescape"))
            for low, high in request.deleted
            if high is None or low < high
        ]
        return self._committer.write_together(replace(request, deleted=ranges))

    def copy_from(
        self,
        source: KvStoreDriver,
        keys: Sequence[tuple[str, str]],
        staleness_bound: float | None,
    ) -> bool:
        """Copy inline values, and the places of values in data files, in one commit.

        The data files must lie below the root of this database.
        """
        if not isinstance(source, OcdbtKvStore) or not self.can_write:
            return False
        base, other = self.base, source.base
        if base.driver.identity != other.driver.identity or not other.path.startswith(base.path):
            return False
        prefix = as_bytes(other.path[len(base.path) :])
        names, values = [], []
        found = source._find([old for old, _ in keys], staleness_bound)
        for (old, new), value in zip(keys, found, strict=True):
            if isinstance(value, GpustoreError):
                raise value.prefixed(f"Error reading {source.describe(old)}")
            if value is None:
                continue
            self.check_key(new)
            if isinstance(value, Location):
                value = value.moved(prefix)
            names.append(new)
            values.append(value)
        self._committer.refer(names, values)
        return True

    def delete_range(self, inclusive_min: str = "", exclusive_max: str | None = None) -> int:
        self._check_writable()
        if exclusive_max is not None and exclusive_max <= inclusive_min:
            return 0
        high = None if exclusive_max is None else _bound(exclusive_max)
        return self._committer.delete_range(KeyRange(as_bytes(inclusive_min), high))

    def _check_writable(self) -> None:
        if self._spec.version is not None:
            raise MismatchError(
                f"Writing is not supported with version={self._spec.version} specified", status=""
            )
        if not self.can_write:
            raise self._unsupported("writing to a base that cannot be written")


def _check_key(key: str) -> None:
    """Raise InvalidKeyError unless a key is text of a legal length."""
    try:
        nbytes = len(as_bytes(key))
    except UnicodeEncodeError:
        raise invalid_key(key, "contains a surrogate that stands for no byte") from None
    if nbytes > MAX_KEY_NBYTES:
        raise invalid_key(key, f"length {nbytes} exceeds maximum length of {MAX_KEY_NBYTES}")


def _bound(text: str) -> bytes:
    """Return the least bytes that no key below `text` can reach."""
    try:
        return as_bytes(text)
    except UnicodeEncodeError:
        # Half of a surrogate pair, what follows the last character before them.
        return as_bytes(text[:-1] + "\ue000")


def _directory(spec: KvStoreSpec) -> KvStoreSpec:
    """Return the spec of the database's directory, with a final slash."""
    return spec if not spec.path or spec.path.endswith("/") else spec + "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class OcdbtSpec(AdapterSpec):
    """Spec of an OCDBT database.

    Attributes
    ----------
    version : VersionSpec or None
        Version to open; None for the latest, which can be written.
    config : ConfigConstraints
    manifest : KvStoreSpec or None
        Kvstore of the manifests, if not the base.
    assume_config : bool
        Whether a new database begins with its first write instead of an empty version that fixes
        its configuration.
    prefixes : tuple of str
        Prefixes of data files with values, with B+tree nodes, and with version nodes.
    target_data_file_size : int or None
        Size in bytes after which another data file begins.
    coalescing : Coalescing or None
        Joining of reads of data files; None leaves it to the base.
    coordinator : JSON
        The context resource of the coordinator, if it is not the default one.
    """

    version: VersionSpec | None = None
    config: ConfigConstraints = field(default_factory=ConfigConstraints)
    manifest: KvStoreSpec | None = None
    assume_config: bool = False
    prefixes: tuple[str, str, str] = (_DEFAULT_PREFIX,) * 3
    target_data_file_size: int | None = None
    coalescing: Coalescing | None = None
    coordinator: JsonValue = None

    id = "ocdbt"
    resource_ids = ("cache_pool", "data_copy_concurrency", "limits")

    def own_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        json: dict[str, JsonValue] = {}
        if self.manifest is not None:
            json["manifest"] = self.manifest.to_json(include_defaults)
        if self.version is not None:
            json["version"] = self.version.to_json()
        if self.coordinator is not None:
            json["coordinator"] = self.coordinator
        elif include_defaults:
            json["coordinator"] = _COORDINATOR
        if self.config.given or include_defaults:
            json["config"] = self.config.to_json(include_defaults=include_defaults)
        if self.assume_config or include_defaults:
            json["assume_config"] = self.assume_config
        json |= {
            name: prefix
            for name, prefix in zip(_PREFIXES, self.prefixes, strict=True)
            if prefix != _DEFAULT_PREFIX or include_defaults
        }
        if self.target_data_file_size is not None:
            json["target_data_file_size"] = self.target_data_file_size
        if self.coalescing is not None:
            json |= self.coalescing.to_json()
        return json

    def to_url(self, path: str) -> str:
        if self.manifest is not None:
            raise UnsupportedError("OCDBT URL syntax not supported with separate manifest kvstore")
        version = "" if self.version is None else f"@{self.version}/"
        return f"{self.base.url}|ocdbt:{version}{encode_path(path)}"

    def without_references(self) -> OcdbtSpec:
        spec = AdapterSpec.without_references(self)
        manifest = None if self.manifest is None else self.manifest.without_context()
        return replace(spec, manifest=manifest, coordinator=None)

    def open(self, context: Context, path: str) -> AdapterKvStore:
        # Raises UnsupportedError for an address.
        context.resource(_COORDINATOR, self.coordinator).value  # noqa: B018
        if self.manifest is None:
            return AdapterSpec.open(self, context, path)
        base = Base(self.base.open_driver(context), self.base.path)
        manifests = Base(self.manifest.open_driver(context), self.manifest.path)
        resources = {id: context.resource(id, self.references.get(id)) for id in self.resource_ids}
        return OcdbtKvStore(base, spec=self, resources=resources, manifests=manifests)

    def open_on(self, base: Base, resources: Mapping[str, Context.Resource]) -> AdapterKvStore:
        return OcdbtKvStore(base, spec=self, resources=resources)


def _manifest_spec(json: JsonValue) -> KvStoreSpec:
    spec = KvStoreSpec.from_json(json)
    return _directory(spec)


def _prefix(json: JsonValue) -> str:
    """Check the prefix of the names of data files."""
    prefix = expect_str(json)
    if not prefix.isprintable() or not is_safe(as_bytes(f"{prefix}x")):
        raise invalid_key(prefix, "data files must stay in the database")
    return prefix


class _Kind:
    """Parses both forms of an OCDBT spec."""

    id = "ocdbt"
    is_adapter = True
    schemes = ("ocdbt",)

    def from_json(self, members: Members) -> OcdbtSpec:
        common: dict[str, Any] = OcdbtSpec.take(members)
        coordinator = members.take_with("coordinator", partial(resource_json, _COORDINATOR), None)
        config = members.take_object("config", None)
        prefixes = [members.take_with(name, _prefix, _DEFAULT_PREFIX) for name in _PREFIXES]
        return OcdbtSpec(
            **{**common, "base": _directory(common["base"])},
            version=members.take_with("version", version_from_json, None),
            config=ConfigConstraints() if config is None else ConfigConstraints.from_json(config),
            manifest=members.take_with("manifest", _manifest_spec, None),
            assume_config=members.take_bool("assume_config", False),
            prefixes=(prefixes[0], prefixes[1], prefixes[2]),
            target_data_file_size=members.take_int("target_data_file_size", 0, 2**64 - 1, None),
            coalescing=Coalescing.take(members),
            coordinator=None if coordinator == _COORDINATOR else coordinator,
        )

    def from_url(self, component: UrlComponent, base: KvStoreSpec) -> tuple[OcdbtSpec, str]:
        require_no_slashes(component)
        base = _directory(base)
        # An encoded "@" is one of a key, so what was typed decides.
        typed = component.raw.partition(":")[2]
        if not typed.startswith("@"):
            return OcdbtSpec(base=base), component.path
        text, _, path = component.path[1:].partition("/")
        try:
            version = version_from_url(text)
        except GpustoreError as error:
            raise component.error("kvstore", error.text) from None
        return OcdbtSpec(base=base, version=version), path

    def check_path(self, path: str) -> None:
        """Accept every path that can begin a key."""
        _check_key(path)

    def dump(self, base: KvStoreDriver, path: str, node: str | None, context: Context) -> Any:
        """Implement :func:`gpustore.ocdbt.dump`."""
        root = Base(base, path if not path or path.endswith("/") else f"{path}/")
        database = Database(
            root,
            root,
            constraints=ConfigConstraints(),
            cache=None,
            max_nbytes=context.resource("limits").value.ocdbt_node_nbytes,
        )
        return dump(database, node)


DRIVER = _Kind()
