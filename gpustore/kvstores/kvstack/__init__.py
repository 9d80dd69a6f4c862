"""The ``kvstack`` kvstore: ranges of keys that lie in other kvstores.

JSON example::

    {"driver": "kvstack", "layers": [
        {"base": "file:///data/a.zarr/"},
        {"base": "s3://bucket/chunks/", "prefix": "c/"},
        {"base": "memory://override.json", "exact": "zarr.json"}]}

Of layers whose ranges overlap the last one has the keys. A layer removes the common prefix of its
keys, or the ``strip_prefix`` bytes it names, before it looks them up in its base. Keys outside of
all layers are missing, and cannot be written.

Source: TensorStore's ``kvstore/kvstack``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

from gpustore.errors import GpustoreError, MetadataError, UnsupportedError
from gpustore.kvstores.base import Base, KvStoreDriver, prefix_end
from gpustore.kvstores.columns import (
    ABSENT,
    LocateColumns,
    ReadColumns,
    ReadRequest,
    ReadState,
    WriteColumns,
    WriteRequest,
)
from gpustore.kvstores.kvstack.layer import Layer, parse_layer, start_of, without_start
from gpustore.strict_json.parsing import Members, at_position, expect_list, quote

if TYPE_CHECKING:
    import builtins
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from gpustore.runtime.context import Context
    from gpustore.strict_json.parsing import JsonValue

T = TypeVar("T")


class KvStack(KvStoreDriver):
    """An opened kvstack.

    Parameters
    ----------
    spec : KvStackSpec
        Its layers do not overlap, and are in the order of their keys.
    bases : sequence of Base
        Opened kvstore of each layer.
    """

    id = "kvstack"

    def __init__(self, spec: KvStackSpec, bases: Sequence[Base]) -> None:
        self._spec = spec
        self._bases = tuple(bases)
        drivers = [base.driver for base in bases]
        self.can_write = all(driver.can_write for driver in drivers)
        self.can_list = all(driver.can_list for driver in drivers)
        self.atomic_single_key = all(driver.atomic_single_key for driver in drivers)
        self.is_local = all(driver.is_local for driver in drivers)
        self.is_trusted = all(driver.is_trusted for driver in drivers)
        self.locates_files = any(driver.locates_files for driver in drivers)
        self.write_nbytes = max((driver.write_nbytes for driver in drivers), default=0)
        sizes = [driver.batch_nbytes for driver in drivers if driver.batch_nbytes is not None]
        self.batch_nbytes = max(sizes, default=None)
        self.executor = next((one.executor for one in drivers if one.executor is not None), None)

    @property
    def spec(self) -> KvStackSpec:
        return self._spec

    @property
    def bases(self) -> tuple[Base, ...]:
        return self._bases

    @property
    def identity(self) -> Hashable:
        return self.id, *(
            (layer.low, layer.high, layer.strip, base.driver.identity, base.path)
            for layer, base in self._layers()
        )

    def describe(self, key: str) -> str:
        for layer, base in self._layers():
            if key in layer:
                return base.driver.describe(base.path + without_start(key, layer.strip))
        return f"kvstack[unmapped] {quote(key)}"

    def check_key(self, key: str) -> None:
        """Accept any key; the base checks what is left of it."""

    def read_many(self, request: ReadRequest) -> ReadColumns:
        result = ReadColumns.blank(len(request.keys))
        for base, rows, keys in self._divided(request.keys):
            if base is None:
                for row in rows:
                    result.generation[row] = ABSENT
                    condition = b"" if request.if_equal is None else request.if_equal[row]
                    if condition in (b"", ABSENT):
                        result.state[row] = ReadState.MISSING
                continue
            some = partial(_some, rows)
            found = base.driver.read_many(
                ReadRequest(
                    keys,
                    start=some(request.start),
                    stop=some(request.stop),
                    if_equal=some(request.if_equal),
                    if_not_equal=some(request.if_not_equal),
                    staleness_bound=request.staleness_bound,
                    max_nbytes=request.max_nbytes,
                    into=request.into,
                )
            )
            _put(rows, found.state, result.state)
            _put(rows, found.generation, result.generation)
            _put(rows, found.value, result.value)
            _put(rows, found.total, result.total)
            result.error.update({rows[i]: error for i, error in found.error.items()})
        return result

    def write_many(self, request: WriteRequest) -> WriteColumns:
        result = WriteColumns.blank(len(request.keys))
        for base, rows, keys in self._divided(request.keys):
            if base is None:
                for row, key in zip(rows, keys):
                    result.error[row] = MetadataError(f"Key not found in any layers: {quote(key)}")
                continue
            values = [request.values[row] for row in rows]
            found = base.driver.write_many(
                WriteRequest(keys, values, _some(rows, request.if_equal), request.anew)
            )
            _put(rows, found.generation, result.generation)
            result.error.update({rows[i]: error for i, error in found.error.items()})
        return result

    def locate_many(self, keys: Sequence[str]) -> LocateColumns:
        result = LocateColumns.blank(len(keys))
        for base, rows, some in self._divided(keys):
            if base is None:
                for row in rows:
                    result.generation[row] = ABSENT
                continue
            found = base.driver.locate_many(some)
            for name in ("path", "url", "offset", "nbytes", "generation", "crc32"):
                _put(rows, getattr(found, name), getattr(result, name))
            result.error.update({rows[i]: error for i, error in found.error.items()})
        return result

    def nbytes_many(self, keys: Sequence[str]) -> builtins.list[int]:
        result = [-1] * len(keys)
        for base, rows, some in self._divided(keys):
            if base is not None:
                _put(rows, base.driver.nbytes_many(some), result)
        return result

    def delete_range(self, inclusive_min: str = "", exclusive_max: str | None = None) -> int:
        return sum(
            base.driver.delete_range(low, high)
            for base, low, high, _ in self._ranges(inclusive_min, exclusive_max)
        )

    def list(self, inclusive_min: str = "", exclusive_max: str | None = None) -> builtins.list[str]:
        return [
            stripped + key[len(base.path) :]
            for base, low, high, stripped in self._ranges(inclusive_min, exclusive_max)
            for key in base.driver.list(low, high)
        ]

    def list_nbytes(
        self, inclusive_min: str = "", exclusive_max: str | None = None
    ) -> tuple[dict[str, int], dict[str, GpustoreError]]:
        sizes: dict[str, int] = {}
        errors: dict[str, GpustoreError] = {}
        for base, low, high, stripped in self._ranges(inclusive_min, exclusive_max):
            found, failed = base.driver.list_nbytes(low, high)
            skip = len(base.path)
            sizes.update({stripped + key[skip:]: nbytes for key, nbytes in found.items()})
            errors.update({stripped + key[skip:]: error for key, error in failed.items()})
        return sizes, errors

    def _layers(self) -> Iterator[tuple[Layer, Base]]:
        return zip(self._spec.layers, self._bases, strict=True)

    def _divided(
        self, keys: Sequence[str]
    ) -> Iterator[tuple[Base | None, builtins.list[int], builtins.list[str]]]:
        """Yield the base, rows and keys there of each layer that has keys.

        The base of keys without a layer is None, and they stay as they are.
        """
        left = list(range(len(keys)))
        for layer, base in self._layers():
            rows = [row for row in left if keys[row] in layer]
            if rows:
                yield (
                    base,
                    rows,
                    [base.path + without_start(keys[row], layer.strip) for row in rows],
                )
                left = [row for row in left if keys[row] not in layer]
        if left:
            yield None, left, [keys[row] for row in left]

    def _ranges(self, low: str, high: str | None) -> Iterator[tuple[Base, str, str | None, str]]:
        """Yield the base, the range there and the prefix it lacks of each layer in a range."""
        for layer, base in self._layers():
            part = layer.within(low, high)
            if part is not None:
                end = "" if part.high is None else without_start(part.high, layer.strip)
                yield (
                    base,
                    base.path + without_start(part.low, layer.strip),
                    base.path + end if end else prefix_end(base.path),
                    start_of(part.low, layer.strip),
                )


@dataclass(frozen=True)
class KvStackSpec:
    """Spec of a kvstack.

    Attributes
    ----------
    layers : tuple of Layer
    """

    layers: tuple[Layer, ...]

    id: ClassVar[str] = "kvstack"
    base: ClassVar[None] = None
    references: ClassVar[Mapping[str, JsonValue]] = {}

    @cached_property
    def divided(self) -> KvStackSpec:
        """Spec with layers that do not overlap, in the order of their keys."""
        parts: list[Layer] = []
        for layer in self.layers:
            if layer.high is not None and layer.low >= layer.high:
                continue
            kept = [one.within("", layer.low) for one in parts]
            if layer.high is not None:
                kept += [one.within(layer.high, None) for one in parts]
            parts = sorted(
                [*(one for one in kept if one is not None), layer], key=lambda one: one.low
            )
        return KvStackSpec(tuple(parts))

    def without_references(self) -> KvStackSpec:
        """Return the spec whose bases have the default context resources."""
        return KvStackSpec(
            tuple(replace(layer, base=layer.base.without_context()) for layer in self.layers)
        )

    def to_json(self, *, include_defaults: bool = False) -> dict[str, JsonValue]:
        """Return the layers."""
        return {"layers": [one.to_json(include_defaults=include_defaults) for one in self.layers]}

    def to_url(self, path: str) -> str:
        """Raise UnsupportedError: a kvstack has no URL."""
        raise UnsupportedError("URL representation not supported")

    def open(self, context: Context, path: str) -> KvStack:
        """Open the bases of all layers that have keys; each base once."""
        del path  # Links do not lead out of a base.
        opened: dict[int, Base] = {}
        for layer in self.divided.layers:
            if id(layer.base) not in opened:
                driver = layer.base.open_driver(context)
                opened[id(layer.base)] = Base(driver, layer.base.path)
        return KvStack(self.divided, [opened[id(layer.base)] for layer in self.divided.layers])


class _Kind:
    """Parses a kvstack spec."""

    id = "kvstack"
    is_adapter: Literal[False] = False
    schemes = ()

    def from_json(self, members: Members) -> KvStackSpec:
        return KvStackSpec(members.take_with("layers", _layers))

    def check_path(self, path: str) -> None:
        """Accept any path."""


def _layers(json: JsonValue) -> tuple[Layer, ...]:
    layers = []
    for position, value in enumerate(expect_list(json)):
        with at_position(position):
            layers.append(parse_layer(value))
    return tuple(layers)


def _some(rows: Sequence[int], column: Sequence[T] | None) -> list[T] | None:
    return None if column is None else [column[row] for row in rows]


def _put(rows: Sequence[int], found: Sequence[T], column: list[T]) -> None:
    for row, value in zip(rows, found, strict=True):
        column[row] = value


DRIVER = _Kind()
