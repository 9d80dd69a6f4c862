"""Specs of kvstores that are not opened, from and to JSON and URLs."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from gpustore import registry
from gpustore.errors import GpustoreError, MetadataError, UnsupportedError
from gpustore.kvstores.base import DriverKind
from gpustore.kvstores.foreign import ForeignSpec
from gpustore.kvstores.result import key_bytes
from gpustore.runtime.context import Context, definitions
from gpustore.strict_json.member_order import ordered
from gpustore.strict_json.near_names import near_or_known
from gpustore.strict_json.parsing import Members, from_python, quote
from gpustore.strict_json.repr import pretty
from gpustore.url import UrlComponent, about_url, parse_pipeline

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpustore.kvstores.base import DriverSpec, KvStoreDriver
    from gpustore.strict_json.parsing import JsonValue


# What the scheme of a URL component can be, in TensorStore's words.
ROOT: Final = "root kvstore"
KVSTORE_ADAPTER: Final = "kvstore adapter"
KVSTORE_BASED: Final = "kvstore-based TensorStore"
TENSORSTORE_ADAPTER: Final = "TensorStore adapter"


def as_text(key: str | bytes) -> str:
    """Return a key as text; bytes that are not UTF-8 become surrogates."""
    if isinstance(key, str) and key.isascii():
        return key
    return key_bytes(key).decode("utf-8", "surrogateescape")


def as_directory(path: str) -> str:
    """Return a path with a slash behind it unless it is empty.

    >>> as_directory("a"), as_directory("a/"), as_directory("")
    ('a/', 'a/', '')
    """
    return path if not path or path.endswith("/") else path + "/"


def append_component(path: str, component: str) -> str:
    """Join two parts with a slash, unless there is one or a part is empty.

    >>> append_component("a", "b"), append_component("a/", "b"), append_component("", "b")
    ('a/b', 'a/b', 'b')
    """
    separator = path and component and not (path.endswith("/") or component.startswith("/"))
    return f"{path}/{component}" if separator else path + component


ABSENT: Final = {
    "gcs_grpc": '"gcs" reads and writes the same buckets by JSON over HTTP',
    "tsgrpc_kvstore": "no server is needed for what several processes share",
    "zarr3_sharding_indexed": '"zarr3" reads and writes such shards',
}
"""Kvstore drivers of TensorStore that gpustore lacks, with what to use."""


class KvStoreSpec:
    """Spec of a kvstore, ``KvStore.Spec``, parsed from JSON or a URL.

    Parameters
    ----------
    json : KvStore.Spec, JSON object, URL or os.PathLike
        The path of a file or directory also counts as a URL.

    Raises
    ------
    MetadataError
        If `json` is not valid; the message is TensorStore's.

    Examples
    --------
    >>> spec = KvStoreSpec("memory://a/b")
    >>> spec
    KvStore.Spec({'driver': 'memory', 'path': 'a/b'})
    >>> (spec / "c").url
    'memory://a/b/c'
    """

    __slots__ = ("_context", "_driver", "_opened", "_path")
    __hash__ = None  # type: ignore[assignment]

    _driver: DriverSpec
    _path: str
    _context: JsonValue
    _opened: KvStoreDriver | None  # whose context resources are to be used again

    def __new__(cls, json: KvStoreSpec | JsonValue | os.PathLike[str]) -> KvStoreSpec:
        if isinstance(json, KvStoreSpec):
            return json.copy()
        if isinstance(json, str):
            return _from_url(json)
        if isinstance(json, os.PathLike):
            return path_spec(json)
        return cls.from_json(from_python(json))

    @classmethod
    def from_json(cls, json: JsonValue) -> KvStoreSpec:
        """Return the spec that JSON describes: an object, or a string with a URL."""
        if isinstance(json, str):
            return _from_url(json)
        members = Members(json, integral_floats=True)
        name = members.take_str("driver")
        kind: DriverKind | None = registry.find("kvstores", name)
        if kind is None:
            check_present(name)
            if registry.find("drivers", name) is not None:
                problem = f"{quote(name)} is a TensorStore driver, not a KvStore driver"
                raise members.error(problem, "driver")
            hint = near_or_known(name, registry.ids("kvstores"))
            raise members.error(f"{quote(name)} is not a registered KvStore driver{hint}", "driver")
        context = members.take_with("context", _normalise_context, None)
        path = members.take_str("path", "")
        driver = kind.from_json(members)
        members.finish()
        if hasattr(kind, "joined"):  # isinstance() of a protocol takes ten times as long
            driver, path = cast("JoiningKind", kind).joined(driver, path)
        kind.check_path(path)
        return cls.from_parts(driver, path, context)

    @classmethod
    def from_parts(cls, driver: DriverSpec, path: str, context: JsonValue = None) -> KvStoreSpec:
        """Return a spec made of a driver's spec, a path, and the JSON of a context or None."""
        self = object.__new__(cls)
        self._driver = driver
        self._path = path
        self._context = context
        self._opened = None
        return self

    def without_context(self) -> KvStoreSpec:
        """Return the spec with the default context resources."""
        return self.from_parts(self._driver.without_references(), self._path)

    def retaining(self, driver: KvStoreDriver) -> KvStoreSpec:
        """Return the spec bound to the context resources of an opened driver."""
        spec = self.copy()
        spec._opened = driver
        return spec

    @property
    def driver(self) -> DriverSpec:
        """Spec of the driver."""
        return self._driver

    @property
    def path(self) -> str:
        """Prefix of all keys."""
        return self._path

    @path.setter
    def path(self, value: str | bytes) -> None:
        path = as_text(value)
        _check_path(self._driver, path)
        self._path = path

    @property
    def has_json(self) -> bool:
        """Whether :meth:`to_json` has a result; not for kvstores over objects of this process."""
        return not isinstance(self._driver, ForeignSpec)

    @property
    def base(self) -> KvStoreSpec | None:
        """Spec of the kvstore in which an adapter lies; None for others."""
        base: KvStoreSpec | None = self._driver.base
        if base is not None and self._opened is not None and self._opened.base is not None:
            return base.retaining(self._opened.base.driver)
        return base and base.copy()

    @property
    def url(self) -> str:
        """URL of the same kvstore, without its context."""
        return self._driver.to_url(self._path)

    def to_json(self, include_defaults: bool = False) -> dict[str, JsonValue]:
        """Return the JSON representation.

        Parameters
        ----------
        include_defaults : bool
            Whether to include members with their default value.

        Raises
        ------
        UnsupportedError
            If it has none; see :attr:`has_json`.
        """
        json = self._driver.to_json(include_defaults=include_defaults)
        json["driver"] = self._driver.id
        if self._path or include_defaults:
            json["path"] = self._path
        if include_defaults:
            json["context"] = Context.Spec(self._context or {}).to_json(include_defaults)
        elif self._context:
            json["context"] = self._context
        return {name: ordered(json[name]) for name in sorted(json)}

    def copy(self) -> KvStoreSpec:
        """Return a copy."""
        return self._with_path(self._path)

    def update(
        self,
        *,
        unbind_context: bool | None = None,
        strip_context: bool | None = None,
        context: Context | None = None,
    ) -> None:
        """Change the context resources.

        Parameters
        ----------
        unbind_context : bool, optional
            Keep the definitions of the resources alone, of which opening the spec makes equal ones.
        strip_context : bool, optional
            Use the default resources of the context in which the spec is opened.
        context : Context, optional
            Use the resources of this context when the spec is opened.
        """
        if context is not None:
            if not isinstance(context, Context):
                raise TypeError(f"context: expected a Context, but received: {context!r:.200}")
            if self._opened is None and self.has_json:
                driver = self.open_driver(context)
                bound = self.from_json(whole_json(driver, self._path))
                self._driver, self._context, self._opened = bound._driver, bound._context, driver
        if unbind_context:
            self._opened = None
        if strip_context:
            self._driver, self._context, self._opened = (
                self._driver.without_references(),
                None,
                None,
            )

    def at(self, path: str) -> KvStoreSpec:
        """Return the same kvstore with another path; raises InvalidKeyError if it is wrong."""
        _check_path(self._driver, path)
        return self.from_parts(self._driver, path, self._context)

    def _with_path(self, path: str) -> KvStoreSpec:
        if path != self._path:
            # What is appended may come from a file: it must not lead out by "..".
            _check_path(self._driver, path)
        spec = self.from_parts(self._driver, path, self._context)
        spec._opened = self._opened
        return spec

    def open_driver(self, context: Context | None) -> KvStoreDriver:
        """Open the driver in `context` (or a new one), below which the spec's own context lies."""
        if self._opened is not None:
            return self._opened.rooted(self._path)
        if self._context is not None:
            context = Context(self._context, parent=context)
        return self._driver.open(context or Context(), self._path)

    def __add__(self, suffix: str | bytes) -> KvStoreSpec:
        return self._with_path(self._path + as_text(suffix))

    def __truediv__(self, component: str | bytes) -> KvStoreSpec:
        return self._with_path(append_component(self._path, as_text(component)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KvStoreSpec):
            return NotImplemented
        if not (self.has_json and other.has_json):
            return self._driver == other._driver and self._path == other._path
        return self._bound == other._bound and self.to_json() == other.to_json()

    @property
    def _bound(self) -> Mapping[str, Context.Resource] | None:
        """Context resources that the spec is bound to, which are equal if they are the same."""
        return None if self._opened is None else self._opened.all_resources

    def __copy__(self) -> KvStoreSpec:
        return self.copy()

    def __deepcopy__(self, memo: object) -> KvStoreSpec:
        return self.copy()

    def __repr__(self) -> str:
        if not self.has_json:
            return f"KvStore.Spec({self._driver!r} + {self._path!r})"
        if self._opened is not None:
            json = whole_json(self._opened, self._path, shows_bound=True)
            return pretty("KvStore.Spec", json)
        return pretty("KvStore.Spec", self.to_json())

    def __reduce__(self) -> tuple[object, ...]:
        if isinstance(self._driver, ForeignSpec):
            return _over_object, (self._driver, self._path)
        return KvStoreSpec, (self.to_json(),)


def by_reference(driver: KvStoreDriver) -> dict[str, Context.Resource]:
    """Return the shared context resources that a spec refers to, by ``<id>`` or ``<id>#<name>``."""
    found = {}
    for id, resource in driver.resources.items():
        if not resource.is_shared:
            continue
        reference = driver.spec.references.get(id, id)
        if isinstance(reference, str) and reference.partition("#")[0] == id:
            found[reference] = resource
    return found


def unbound_json(
    driver: KvStoreDriver,
    path: str,
    defined: Mapping[str, Context.Resource],
    *,
    shows_bound: bool = False,
) -> dict[str, JsonValue]:
    """Return the JSON of a driver and a path; its context has what is not `defined` around it.

    With `shows_bound` it has lists of the names of resources, which no spec may have: TensorStore
    prints resources in use so.
    """
    resources = driver.resources
    own = by_reference(driver)
    given = {id: one.to_json() for id, one in resources.items() if not one.is_shared}
    if shows_bound:
        given = {**given, **{own[name].id: name for name in definitions(own)}}
        given = {id: [value] for id, value in given.items()}
    json: dict[str, JsonValue] = {"driver": driver.spec.id, **driver.spec.to_json(), **given}
    differing = {name: own[name] for name in own if own[name] is not defined.get(name)}
    context = definitions(differing)
    if context:
        json["context"] = context
    inner = {**defined, **differing}
    bases: list[JsonValue] = [
        unbound_json(base.driver, base.path, inner, shows_bound=shows_bound)
        for base in driver.bases
    ]
    if driver.base is not None:
        json["base"] = bases[0]
    elif bases:
        for layer, base in zip(cast("list[Any]", json["layers"]), bases, strict=True):
            layer["base"] = base
    if path:
        json["path"] = path
    return json


def whole_json(
    driver: KvStoreDriver, path: str, *, shows_bound: bool = False
) -> dict[str, JsonValue]:
    """Return the JSON of a driver and a path, with the definitions of all context resources."""
    defined = all_by_reference(driver)
    json = unbound_json(driver, path, defined, shows_bound=shows_bound)
    context = definitions(defined)
    if context:
        json["context"] = context
    return json


def all_by_reference(driver: KvStoreDriver) -> dict[str, Context.Resource]:
    """Return the context resources that a spec and those of its bases refer to; outer ones win."""
    found: dict[str, Context.Resource] = {}
    for base in driver.bases:
        found = {**all_by_reference(base.driver), **found}
    return {**found, **by_reference(driver)}


def _over_object(driver: ForeignSpec, path: str) -> KvStoreSpec:
    return KvStoreSpec.from_parts(driver, path)


def check_present(name: str) -> None:
    """Raise UnsupportedError if a kvstore driver is one of TensorStore that gpustore lacks."""
    if name in ABSENT:
        raise UnsupportedError(f"kvstore driver {quote(name)} is not supported: {ABSENT[name]}")


@cache
def _kind(name: str) -> DriverKind | None:
    return cast("DriverKind | None", registry.find("kvstores", name))


def _check_path(driver: DriverSpec, path: str) -> None:
    """Raise InvalidKeyError unless `path` is legal; of a kvstore without JSON every path is."""
    kind = _kind(driver.id)
    if kind is not None:
        kind.check_path(path)


def _normalise_context(json: JsonValue) -> JsonValue:
    return Context.Spec(json).to_json()


def refuse_password(url: str) -> None:
    """Raise MetadataError without showing it if a URL contains a user name or password."""
    match = re.match(r"([^:/|]+)://[^/|?#]*@", url)
    if match and match[1] not in ("file", "memory"):
        what = "A user name and password are not allowed in a URL"
        instead = 'use a context resource such as "http_authorization"'
        raise about_url(MetadataError(f"{what}; {instead}"), url)


def _from_url(url: str) -> KvStoreSpec:
    refuse_password(url)
    try:
        root, *applied = parse_pipeline(url, registry.is_kvstore)
        role, _ = find_scheme(root.scheme)
        if role not in (ROOT, ""):
            raise _misplaced(root, role)
        spec = root_spec(root, unknown=_unsupported(root))
        for component in applied:
            role, kind = find_scheme(component.scheme)
            if role != KVSTORE_ADAPTER:
                raise _misplaced(component, role)
            spec = adapted(kind, component, spec)
    except GpustoreError as error:
        if not url:
            raise
        raise about_url(error, url) from error.__cause__
    return spec


def path_spec(path: os.PathLike[str]) -> KvStoreSpec:
    """Return the file kvstore at a path object, which unlike text is never part of a URL."""
    return root_spec(UrlComponent("file", os.fsdecode(path), plain=True))


def _misplaced(component: UrlComponent, role: str) -> MetadataError:
    begin = _unsupported(component)
    if not role:
        return unknown_scheme(component, begin)
    return MetadataError(f"{begin}: {quote(component.scheme)} is a {role} URL scheme")


def _unsupported(component: UrlComponent) -> str:
    return f"unsupported URL scheme {quote(component.scheme)} in {quote(component.text)}"


class RootKind(DriverKind, Protocol):
    """Kind of kvstore with which a URL pipeline begins."""

    def from_url(self, component: UrlComponent) -> tuple[DriverSpec, str]:
        """Return driver spec and path of a URL component."""


class JoiningKind(DriverKind, Protocol):
    """Kind of kvstore whose JSON has a path in another member than ``path`` too."""

    def joined(self, driver: DriverSpec, path: str) -> tuple[DriverSpec, str]:
        """Return a driver spec without a path of its own, and the joined path."""


class AdapterKind(DriverKind, Protocol):
    """Kind of kvstore that lies in another one, the component before it in a URL pipeline."""

    def from_url(self, component: UrlComponent, base: KvStoreSpec) -> tuple[DriverSpec, str]:
        """Return driver spec and path of a URL component that is applied to `base`."""


def find_scheme(scheme: str) -> tuple[str, Any]:
    """Return the class of a URL scheme, one of the constants above, and its kind of driver.

    The result for an unknown scheme is ``("", None)``.
    """
    kind: Any = registry.find_scheme("kvstores", scheme)
    if kind is not None:
        return KVSTORE_ADAPTER if kind.is_adapter else ROOT, kind
    kind = registry.find_scheme("drivers", scheme)
    if kind is None:
        return "", None
    return TENSORSTORE_ADAPTER if kind.is_adapter else KVSTORE_BASED, kind


def unknown_scheme(component: UrlComponent, begin: str = "") -> MetadataError:
    """Return the error for an unknown scheme, with similar schemes."""
    begin = begin or f"unsupported URL scheme: {quote(component.scheme)}"
    return MetadataError(f"{begin}{near_or_known(component.scheme, registry.schemes())}")


def root_spec(component: UrlComponent, *, unknown: str = "") -> KvStoreSpec:
    """Return the kvstore of the first component of a URL pipeline.

    Parameters
    ----------
    component : UrlComponent
    unknown : str, optional
        Begin of the message about an unknown scheme.

    Raises
    ------
    MetadataError
        If the scheme is not that of a root kvstore, or the rest is invalid.
    """
    role, kind = find_scheme(component.scheme)
    if not role:
        check_present(component.scheme)
        error = unknown_scheme(component, unknown)
        if not component.slashes:
            path = quote(f"./{component.raw}")
            raise MetadataError(f"{error}; a path that begins so is written {path}")
        raise error
    if role != ROOT:
        raise MetadataError(
            f"{role} URL scheme in {quote(component.text)} is not valid as the first URL pipeline "
            "component"
        )
    driver, path = kind.from_url(component)
    kind.check_path(path)
    return KvStoreSpec.from_parts(driver, path)


def adapted(kind: AdapterKind, component: UrlComponent, base: KvStoreSpec) -> KvStoreSpec:
    """Return the adapter of a later component of a URL pipeline, applied to `base`."""
    driver, path = kind.from_url(component, base)
    kind.check_path(path)
    return KvStoreSpec.from_parts(driver, path)
