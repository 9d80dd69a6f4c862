"""Base classes of adapters: kvstores whose keys lie in the values of another, their base.

An archive adapts one key of its base, a database adapts a directory. An adapter is specified as
``{"driver": "<id>", "base": <kvstore>, "path": <key>}`` or ``<URL of the base>|<id>:<key>``. Its
module defines three things: a subclass of :class:`AdapterSpec`, a subclass of
:class:`AdapterKvStore`, and an :class:`~gpustore.kvstores.spec.AdapterKind` as ``DRIVER``.

Adapters with equal specs share one driver as long as one of them is in use, so that the directory
of an archive is read once for all arrays in it. A driver must therefore check its cached parts of
the base again by ``staleness_bound``.
"""

from __future__ import annotations

import abc
import json
import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, Self

from gpustore.errors import StoreIOError
from gpustore.kvstores.base import Base, KvStoreDriver, references_json, take_references
from gpustore.kvstores.columns import LocateColumns, ReadRequest, ReadState
from gpustore.kvstores.spec import KvStoreSpec
from gpustore.runtime.executor import reset_after_fork
from gpustore.strict_json.parsing import quote
from gpustore.url import encode_path

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from gpustore.kvstores.columns import ReadColumns
    from gpustore.runtime.context import Context
    from gpustore.strict_json.parsing import JsonValue, Members


class Part(NamedTuple):
    """Place of a value, or of a requested part of it, in the base.

    Attributes
    ----------
    row : int
        Row of the adapter's request.
    key : str
        Key in the base, with its path.
    start, stop : int
        Byte range of that key's value.
    generation : bytes
        Generation of that key for which the place is valid; ``b""`` if its value never changes.
    """

    row: int
    key: str
    start: int
    stop: int
    generation: bytes


class AdapterKvStore(KvStoreDriver):
    """An opened kvstore that lies in another one.

    Any key is legal unless a subclass restricts keys, which are not paths of files here. The
    subclass chooses the keys of the base, and the base checks them.

    Parameters
    ----------
    base : Base
    spec : AdapterSpec
    resources : mapping of str to Context.Resource
        Context resources of the adapter itself, by identifier.
    """

    base: Base

    def __init__(
        self, base: Base, *, spec: AdapterSpec, resources: Mapping[str, Context.Resource]
    ) -> None:
        self.base = base
        self._spec = spec
        self._resources = resources
        self.is_local = base.driver.is_local
        self.is_trusted = base.driver.is_trusted
        self.executor = base.driver.executor
        decoding = resources.get("data_copy_concurrency")
        if decoding is not None and (
            self.executor is None or decoding.value.limit < self.executor.limit
        ):
            self.executor = decoding.value  # One thread fetches and decodes: both limits hold.

    @property
    def spec(self) -> AdapterSpec:
        return self._spec

    @property
    def resources(self) -> Mapping[str, Context.Resource]:
        return self._resources

    @property
    def identity(self) -> Hashable:
        return self.id, self.base.driver.identity, self.base.path

    def describe(self, key: str) -> str:
        return f"{quote(key)} in {self.base.driver.describe(self.base.path)}"

    def check_key(self, key: str) -> None:
        """Accept any key."""

    def read_base(self, request: ReadRequest) -> ReadColumns:
        """Read a batch of keys of the base, as :meth:`read_parts` does; errors are per key."""
        return self.base.driver.read_many(request)

    def read_parts(
        self, parts: Sequence[Part], request: ReadRequest, result: ReadColumns
    ) -> list[int]:
        """Read stored parts of the base in one request to it.

        The bytes go into the memory that `request` selects, also straight to a device.

        Parameters
        ----------
        parts : sequence of Part
        request : ReadRequest
            Request of the adapter; its ranges and conditions are ignored.
        result : ReadColumns
            Result, in which ``state``, ``value`` and ``error`` of each row are set.

        Returns
        -------
        list of int
            Rows that were not read because their key in the base has changed.
        """
        if not parts:
            return []
        columns = self.read_base(
            ReadRequest(
                [part.key for part in parts],
                start=[part.start for part in parts],
                stop=[part.stop for part in parts],
                if_equal=[part.generation for part in parts],
                max_nbytes=request.max_nbytes,
                into=request.into,
            )
        )
        changed = []
        for i, part in enumerate(parts):
            error, value = columns.error.get(i), columns.value[i]
            if error is None and value is not None and len(value) != part.stop - part.start:
                error = StoreIOError(
                    f"received {len(value)} bytes of [{part.start}, {part.stop}) of "
                    f"{self.base.driver.describe(part.key)}",
                    status="DATA_LOSS",
                    key=part.key,
                )
            if error is not None:
                where = self.describe(request.keys[part.row])
                result.error[part.row] = error.prefixed(f"Error reading {where}")
            elif value is not None:
                result.state[part.row] = ReadState.VALUE
                result.value[part.row] = value
            else:
                changed.append(part.row)
        return changed

    def locate_parts(self, parts: Sequence[Part], result: LocateColumns) -> None:
        """Set the places of `parts` in files or at URLs.

        Parameters
        ----------
        parts : sequence of Part
            Parts that are whole values.
        result : LocateColumns
            Result, in which ``path``, ``url``, ``offset`` and ``error`` of each row are set; the
            caller sets ``nbytes`` and ``generation``.
        """
        columns = self.base.driver.locate_many([part.key for part in parts])
        for i, part in enumerate(parts):
            if i in columns.error:
                result.error[part.row] = columns.error[i]
            elif columns.nbytes[i] >= 0:
                result.path[part.row] = columns.path[i]
                result.url[part.row] = columns.url[i]
                result.offset[part.row] = columns.offset[i] + part.start


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterSpec(abc.ABC):
    """Spec of an adapter. Subclasses add their own members as fields.

    Attributes
    ----------
    base : KvStoreSpec
        Kvstore in which the adapter lies.
    references : mapping of str to JsonValue
        Context resources other than the default ones, by identifier.
    """

    base: KvStoreSpec
    references: Mapping[str, JsonValue] = field(default_factory=dict)

    id: ClassVar[str]
    resource_ids: ClassVar[tuple[str, ...]] = ()
    """Identifiers of the adapter's context resources."""

    @classmethod
    def take(cls, members: Members) -> dict[str, JsonValue]:
        """Take the members that all adapters have, as keywords for the constructor."""
        return {
            "base": members.take_with("base", _base_spec),
            "references": take_references(members, cls.resource_ids),
        }

    def own_json(self, *, include_defaults: bool) -> dict[str, JsonValue]:
        """Return the JSON of the members that a subclass adds."""
        del include_defaults
        return {}

    @abc.abstractmethod
    def open_on(self, base: Base, resources: Mapping[str, Context.Resource]) -> AdapterKvStore:
        """Open the adapter on an opened base, with resources by identifier."""

    def without_references(self) -> Self:
        return replace(self, base=self.base.without_context(), references={})

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        base = self.base.to_json(include_defaults)
        own = self.own_json(include_defaults=include_defaults)
        references = references_json(
            self.resource_ids, self.references, include_defaults=include_defaults
        )
        return {"base": base, **own, **references}

    def to_url(self, path: str) -> str:
        return f"{self.base.url}|{self.id}:{encode_path(path)}"

    def open(self, context: Context, path: str) -> AdapterKvStore:
        del path  # Links do not lead out of a base.
        base = Base(self.base.open_driver(context), self.base.path)
        resources = {id: context.resource(id, self.references.get(id)) for id in self.resource_ids}
        below: tuple[Hashable, ...] = (id(base.driver),)
        if base.driver.base is None:
            found = base.driver.resources.values()
            below = (base.driver.identity, *(_sameness(one) for one in found))
        key = (
            json.dumps(self.to_json(), sort_keys=True),
            *below,
            *map(id, resources.values()),
        )
        return _opened.get(key, lambda: self.open_on(base, resources))


def _sameness(resource: Context.Resource) -> Hashable:
    return id(resource) if resource.is_shared else json.dumps(resource.to_json(), sort_keys=True)


def _base_spec(json: JsonValue) -> KvStoreSpec:
    return KvStoreSpec.from_json(json)


class _Opened:
    """The adapters that somebody uses, by what they were opened with.

    A driver holds its base and resources, so that their addresses stand for them in its key.
    """

    def __init__(self) -> None:
        self._drivers: weakref.WeakValueDictionary[Hashable, AdapterKvStore] = (
            weakref.WeakValueDictionary()
        )
        self.after_fork()
        reset_after_fork(self)

    def after_fork(self) -> None:
        """Make a lock that no thread of the parent process holds."""
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], AdapterKvStore]) -> AdapterKvStore:
        """Return the driver of `key`, which `make` makes if there is none; `make` does no I/O."""
        with self._lock:
            driver = self._drivers.get(key)
            if driver is None:
                driver = self._drivers[key] = make()
            return driver


_opened: Final = _Opened()
