"""Contexts: shared caches, thread pools and options, named by JSON.

A context resource has a type (its identifier, a module in ``gpustore/resources``) and a value,
made at most once. Specs refer to it in one of three forms::

    "cache_pool"                        the default one of the context
    "cache_pool#big"                    the one the context defines by that name
    {"total_bytes_limit": 100000000}    one of its own

A :class:`Context` looks a name up in its own spec, then in its parent's, and so on. The outermost
one makes the default resources, so that contexts with a common parent share them.

Source: ``context/index.rst`` of TensorStore.
"""

from __future__ import annotations

import abc
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from gpustore import registry
from gpustore.errors import MetadataError
from gpustore.runtime.cached_attribute import cached_attribute
from gpustore.strict_json.parsing import JsonValue, expect_object, from_python, quote, text
from gpustore.strict_json.repr import pretty

C = TypeVar("C")
V = TypeVar("V")


class ResourceType(abc.ABC, Generic[C, V]):
    """Type of context resources; each module in ``gpustore/resources`` registers one.

    The configuration ``C`` is an immutable value that stands for the JSON; the value ``V`` is the
    object that users of the resource get.
    """

    id: str
    may_be_secret = False
    """Whether error messages must not show JSON given for this resource."""
    is_shared = True
    """Whether specs of what was opened define the resource in their context, so that several can
    share it; otherwise its JSON is a member of each."""
    shares_default = True
    """Whether the default resources of all contexts have one value, made once in a process."""

    @abc.abstractmethod
    def parse(self, json: JsonValue) -> C:
        """Return the configuration that `json` stands for; MetadataError if it is not allowed."""

    @abc.abstractmethod
    def default(self) -> C:
        """Return the configuration of a resource without JSON."""

    @abc.abstractmethod
    def to_json(self, config: C, *, include_defaults: bool) -> JsonValue:
        """Return JSON that :meth:`parse` turns into `config`; `include_defaults` adds defaults."""

    @abc.abstractmethod
    def make(self, config: C) -> V:
        """Return the value of a resource; UnsupportedError if gpustore has none for `config`."""

    @cached_attribute
    def shared_default(self) -> tuple[C, V]:
        """Configuration and value of every default resource, if they share it."""
        config = self.default()
        return config, self.make(config)


class _Reference(str):
    """Reference such as ``cache_pool#a`` in place of a configuration."""

    __slots__ = ()


_NULL: Final = object()  # definition of a resource whose JSON is null
_UNMADE: Final = object()

# Resources are found without the lock; it is held only while a resource is looked up the first time
# or its value is made.
_lock = threading.RLock()


def _after_fork() -> None:
    """Make a lock that no thread of the parent process holds."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class Context:
    """Set of context resources, shared by all arrays that are opened in it.

    Parameters
    ----------
    json : Context.Spec or JSON object, optional
        Definitions of resources. Without them the context has only default resources.
    parent : Context, optional
        Context in which resources are looked up that this one does not define.
    spec : Context.Spec, optional
        The same as `json`, by another name.

    Raises
    ------
    MetadataError
        If a resource type is unknown or a resource's JSON is not allowed.

    Examples
    --------
    >>> context = Context({"cache_pool#a": {"total_bytes_limit": 10000000}})
    >>> context["cache_pool#a"]
    Context.Resource({'total_bytes_limit': 10000000})
    >>> context["cache_pool"]
    Context.Resource({})
    """

    class Spec:
        """Parsed definitions of the resources of a context.

        Parameters
        ----------
        json : Context.Spec or JSON object
            Members are ``"<type>"`` or ``"<type>#<name>"``; values are the JSON of a resource, a
            reference to another member, or null for a default resource of its own.

        Examples
        --------
        >>> Context.Spec({"data_copy_concurrency": {"limit": "shared"}})
        Context.Spec({'data_copy_concurrency': {}})
        """

        __slots__ = ("_definitions",)

        _definitions: dict[str, Any]  # _Reference, _NULL or a configuration

        def __init__(self, json: JsonValue | Context.Spec) -> None:
            if isinstance(json, Context.Spec):
                self._definitions = json._definitions
                return
            members = expect_object(from_python(json))
            self._definitions = {
                key: _define(_type_of(key, key), members[key]) for key in sorted(members)
            }

        def to_json(self, include_defaults: bool = False) -> dict[str, JsonValue]:
            """Return the JSON object; `include_defaults` adds members that were not given."""
            return {
                key: _to_json(_type_of(key), definition, include_defaults=include_defaults)
                for key, definition in self._definitions.items()
            }

        def __repr__(self) -> str:
            return pretty("Context.Spec", self.to_json())

        def __reduce__(self) -> tuple[Any, ...]:
            return (Context.Spec, (self.to_json(),))

    class Resource:
        """Context resource, got from a :class:`Context`.

        Attributes
        ----------
        id : str
            Identifier of the resource's type.
        """

        __slots__ = ("__weakref__", "_config", "_origin", "_type", "_value", "id")

        id: str
        _type: ResourceType[Any, Any]
        _config: Any
        _value: Any
        _origin: tuple[Context, str] | None  # context and key of its definition; None without one

        def __init__(self) -> None:
            raise TypeError("Context.Resource is got from Context[key], not made")

        @property
        def is_shared(self) -> bool:
            """Whether specs define the resource in their context, where several can share it."""
            return self._type.is_shared

        @property
        def value(self) -> Any:
            """Value of the resource, made at the first use; the module of its type describes it.

            Raises
            ------
            UnsupportedError
                If gpustore has no implementation of what the JSON asks for.
            """
            if self._value is _UNMADE:
                with _lock:
                    if self._value is _UNMADE:
                        self._value = self._type.make(self._config)
            return self._value

        def to_json(self, include_defaults: bool = False) -> JsonValue:
            """Return the JSON of the resource; `include_defaults` adds members not given."""
            return self._type.to_json(self._config, include_defaults=include_defaults)

        def __repr__(self) -> str:
            return pretty("Context.Resource", self.to_json())

        def __reduce__(self) -> tuple[Any, ...]:
            if self._origin is None:
                return (_restore, (self.id, self.to_json()))
            return (Context.__getitem__, self._origin)

    __slots__ = ("__weakref__", "_made", "_parent", "_resources", "_spec")

    def __init__(
        self,
        json: JsonValue | Context.Spec = None,
        parent: Context | None = None,
        *,
        spec: Context.Spec | None = None,
    ) -> None:
        json = json if spec is None else spec
        if parent is not None and not isinstance(parent, Context):
            raise TypeError(f"parent: expected a Context, but received: {parent!r}")
        self._spec = json if json is None or isinstance(json, Context.Spec) else Context.Spec(json)
        self._parent = parent
        self._resources: dict[str, Context.Resource] = {}
        self._made: dict[Callable[[Context], Any], Any] = {}

    @classmethod
    def _of(cls, spec: Context.Spec | None, resources: Mapping[str, Resource]) -> Context:
        """Return a context of definitions of which some resources exist already."""
        context = cls(spec)
        context._resources.update(resources)
        return context

    @property
    def spec(self) -> Context.Spec | None:
        """Definitions that the context was made of, None if there were none."""
        return self._spec

    @property
    def parent(self) -> Context | None:
        """Context from which this one inherits resources, None for the outermost."""
        return self._parent

    def __getitem__(self, key: str) -> Context.Resource:
        """Return the resource ``"<type>"`` or ``"<type>#<name>"``; the same each time."""
        found = self._resources.get(key)
        if found is not None:
            return found
        if not isinstance(key, str):
            raise TypeError(f"Context keys are strings, but received: {key!r}")
        kind = _type_of(key)
        if self._spec is None and self._parent is None and kind.shares_default and key == kind.id:
            # Made without the lock by every call of open() without a context.
            found = _new_resource(kind, *kind.shared_default, origin=(self, key))
            return self._resources.setdefault(key, found)
        with _lock:
            return self._look_up(key, ())

    # Without this, Python would iterate by asking for keys 0, 1, 2, ...
    __iter__ = None

    def resource(self, id: str, reference: JsonValue | Context.Resource = None) -> Context.Resource:
        """Return the resource of type `id` that a spec refers to.

        Parameters
        ----------
        id : str
            Identifier of the resource's type.
        reference : JSON or Context.Resource
            None for the default resource, a string ``"<id>"`` or ``"<id>#<name>"``, or the JSON of
            a resource of the spec's own. A bound resource is returned unchanged.
        """
        if reference is None:
            return self[id]
        if isinstance(reference, Context.Resource):
            if reference.id != id:
                raise MetadataError(f'Expected "{id}" resource, but received: {reference.id}')
            return reference
        kind = _type_of(id)
        definition = _parse(kind, from_python(reference))
        if isinstance(definition, _Reference):
            return self[definition]
        return _new_resource(kind, definition)

    def once(self, make: Callable[[Context], V]) -> V:
        """Return ``make(self)``, the same object each time; `make` is a function of a module.

        Arrays opened in one context need the same resources, and looking them up takes as long as
        reading a file.
        """
        found: V | None = self._made.get(make)
        return self._made.setdefault(make, make(self)) if found is None else found

    def _look_up(self, key: str, trail: tuple[str, ...]) -> Context.Resource:
        found = self._resources.get(key)
        if found is None:
            found = self._resources[key] = self._find(key, trail)
        return found

    def _find(self, key: str, trail: tuple[str, ...]) -> Context.Resource:
        definitions = {} if self._spec is None else self._spec._definitions
        kind = _type_of(key)
        if key in definitions:
            definition = definitions[key]
            if isinstance(definition, _Reference):
                step = f"{quote(key)}:{quote(definition)}"
                if step in trail:
                    cycle = " -> ".join(trail[trail.index(step) :])
                    raise MetadataError(f"Context resource reference cycle: {cycle}")
                return self._look_up(definition, (*trail, step))
            config = kind.default() if definition is _NULL else definition
            return _new_resource(kind, config, origin=(self, key))
        if self._parent is not None:
            return self._parent._look_up(key, trail)
        if "#" in key:
            raise MetadataError(f"Resource not defined: {quote(key)}")
        if kind.shares_default:
            return _new_resource(kind, *kind.shared_default, origin=(self, key))
        return _new_resource(kind, kind.default(), origin=(self, key))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Context, (self._spec, self._parent))


def resource_json(id: str, json: JsonValue, *, include_defaults: bool = False) -> JsonValue:
    """Validate and normalise the JSON by which a spec refers to a resource of type `id`.

    Parameters
    ----------
    id : str
        Identifier of the resource's type.
    json : JSON
        A reference or the JSON of a resource.

    Examples
    --------
    >>> resource_json("file_io_locking", {"mode": "lockfile", "acquire_timeout": "90s"})
    {'acquire_timeout': '1m30s', 'mode': 'lockfile'}
    """
    kind = _type_of(id)
    if isinstance(json, list | tuple):  # TensorStore's mark of a resource that exists.
        if len(json) != 1:
            raise MetadataError(f"Expected single-element array, but received: {text(json)}")
        (json,) = json
    if json is None:
        raise MetadataError("Expected non-null value, but received: null")
    return _to_json(kind, _parse(kind, from_python(json)), include_defaults=include_defaults)


_OWN: Final[dict[str, JsonValue]] = {
    "device": "auto",
    "device_allocator": "default",
    "device_cache_pool": {},
    "gpu_decode_choice": "auto",
    "gpu_decode_trust": "auto",
    "http_authorization": {},
    "http_request_timeouts": {},
    "limits": {},
}
"""Resources that TensorStore lacks, with the JSON of the default ones."""


def definitions(resources: Mapping[str, Context.Resource]) -> dict[str, JsonValue]:
    """Return the JSON of a context that defines resources.

    Those that TensorStore lacks are left out unless they say something.
    """
    found = {name: resource.to_json() for name, resource in resources.items()}
    return {name: json for name, json in found.items() if name not in _OWN or json != _OWN[name]}


def _type_of(key: str, shown: str = "") -> ResourceType[Any, Any]:
    """Return the type of the resource `key`; an error shows `shown`, or the part before "#"."""
    id = key.partition("#")[0] if "#" in key else key
    kind: ResourceType[Any, Any] | None = registry.find("resources", id)
    if kind is None:
        known = ", ".join(registry.ids("resources"))
        name = quote(shown or id or key)
        raise MetadataError(
            f"Invalid context resource identifier: {name} (expected one of {known})"
        )
    return kind


def _define(kind: ResourceType[Any, Any], json: JsonValue) -> Any:
    """Parse a reference, a configuration or null."""
    return _NULL if json is None else _parse(kind, json)


def _parse(kind: ResourceType[Any, Any], json: JsonValue) -> Any:
    """Parse a reference or a configuration."""
    if isinstance(json, str) and (json == kind.id or json.startswith(f"{kind.id}#")):
        return _Reference(json)
    try:
        return kind.parse(json)
    except MetadataError as error:
        if isinstance(json, str) and not kind.may_be_secret:
            raise MetadataError(
                f"Invalid spec or reference to {quote(kind.id)} resource: {text(json)} "
                f"({error.text})"
            ) from None
        raise MetadataError(f"{error.text} (in context resource {quote(kind.id)})") from None


def _to_json(kind: ResourceType[Any, Any], definition: Any, *, include_defaults: bool) -> JsonValue:
    if definition is _NULL:
        return None
    if isinstance(definition, _Reference):
        return str(definition)
    return kind.to_json(definition, include_defaults=include_defaults)


def _new_resource(
    kind: ResourceType[Any, Any],
    config: Any,
    value: Any = _UNMADE,
    *,
    origin: tuple[Context, str] | None = None,
) -> Context.Resource:
    self: Context.Resource = object.__new__(Context.Resource)
    self.id = kind.id
    self._type = kind
    self._config = config
    self._value = value
    self._origin = origin
    return self


def _restore(id: str, json: JsonValue) -> Context.Resource:
    """Unpickle a resource that no context defines."""
    kind = _type_of(id)
    return _new_resource(kind, kind.parse(json))
