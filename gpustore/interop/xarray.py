"""Engine of xarray: ``xarray.open_dataset(url, engine="gpustore")``.

Variables are opened at once and read when their values are asked for. On a GPU
(``backend_kwargs={"device": "cuda"}``) data variables are CuPy arrays; what xarray computes on the
host when it opens a data set stays there: coordinates, times, strings and scalars.

The conventions are those of xarray's own engine ``"zarr"``: dimensions from ``dimension_names``
(Zarr v3) or ``_ARRAY_DIMENSIONS`` (v2), and ``_FillValue`` from attributes or, in v2, the fill
value.

Source: "Zarr Encoding Specification" of xarray's documentation.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final

import numcodecs
import numpy as np

import gpustore
from gpustore.interop import extra

with extra("xarray"):
    from xarray import Dataset, DataTree, Variable
    from xarray.backends import AbstractDataStore, BackendArray, BackendEntrypoint
    from xarray.backends.store import StoreBackendEntrypoint
    from xarray.core import indexing
    from xarray.core.utils import FrozenDict

_DIMENSIONS: Final = "_ARRAY_DIMENSIONS"
_BYTES: Final = ("bytes", "vlen-utf8", "vlen-bytes")
"""Codecs of Zarr v3 that make bytes of an array."""
_OF_OBJECTS: Final = ("vlen-utf8", "vlen-bytes")
"""Filters of Zarr v2 that make bytes of objects."""


class StoredArray(BackendArray):
    """Values of a variable, read when they are indexed.

    Parameters
    ----------
    store : TensorStore
        Array with its origin at zero. Strings of a length have it as last dimension.
    rank : int
        Number of dimensions of the variable.
    """

    __slots__ = ("_inner", "_store", "dtype", "shape")

    def __init__(self, store: gpustore.TensorStore, rank: int) -> None:
        self._store = store
        self.shape = store.shape[:rank]
        self._inner = store.shape[rank:]
        dtype = store.dtype.array_dtype
        if store.dtype == gpustore.ustring:
            dtype = np.dtypes.StringDType()
        elif self._inner:
            dtype = np.dtype(f"{dtype.kind}{self._inner[0]}")
        self.dtype: np.dtype[Any] = dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        """Read the elements that an indexer of xarray selects."""
        view = self._store.numpy
        index: Any = view
        if isinstance(key, indexing.OuterIndexer):
            index = view.oindex
        elif isinstance(key, indexing.VectorizedIndexer):
            index = view.vindex
        # Not by xarray's adapter, which would slice arrays on a GPU once more.
        values = index[(*key.tuple, *(slice(None) for _ in self._inner))]
        if self._inner:
            return np.ascontiguousarray(values).view(self.dtype)[..., 0]
        if self._store.dtype == gpustore.ustring:
            return np.asarray(values, self.dtype)
        return values

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Any:
        """Read as ``[]`` does, for :meth:`xarray.Dataset.load_async`."""
        if self._store.device != "cpu":  # The stream of a GPU is that of the thread.
            return self[key]
        return await asyncio.to_thread(self.__getitem__, key)


class GroupStore(AbstractDataStore):
    """Variables and attributes of a group, without those of groups below it.

    Parameters
    ----------
    group : Group
        Group whose arrays are in host memory.
    on_device : Group or None
        The same group with its arrays on a GPU.
    use_zarr_fill_value_as_mask : bool, optional
        Whether fill values mark missing values; by default they do in Zarr v2.
    drop : iterable of str
        Names of arrays that are not opened.
    """

    def __init__(
        self,
        group: gpustore.Group,
        on_device: gpustore.Group | None = None,
        use_zarr_fill_value_as_mask: bool | None = None,
        drop: Iterable[str] = (),
    ) -> None:
        self._group = group
        self._on_device = on_device
        if use_zarr_fill_value_as_mask is None:
            use_zarr_fill_value_as_mask = group.zarr_format == 2
        self._masks = use_zarr_fill_value_as_mask
        dropped = set(drop)
        nodes = group.arrays().result()
        self._nodes = {name: node for name, node in nodes.items() if name not in dropped}

    def get_attrs(self) -> Mapping[str, Any]:
        """Return the attributes of the data set."""
        return {k: v for k, v in self._group.attrs.items() if not k.lower().startswith("_nc")}

    def get_variables(self) -> Mapping[str, Variable]:
        """Open the arrays."""
        described = {name: self._described(node) for name, node in self._nodes.items()}
        on_host = _coordinates(described, self._group.attrs)
        return FrozenDict(
            (name, self._variable(name, dims, attributes, on_host=name in on_host))
            for name, (dims, attributes) in described.items()
        )

    def get_dimensions(self) -> Mapping[str, int]:
        """Return the size of each dimension."""
        sizes: dict[str, int] = {}
        for node in self._nodes.values():
            sizes.update(zip(self._described(node)[0], node.shape, strict=False))
        return sizes

    def _described(self, node: gpustore.Node) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Return the dimensions and attributes of an array."""
        attributes = dict(node.attributes)
        if node.zarr_format == 3:
            dims = node.document.get("dimension_names") or ()
            if len(dims) != len(node.shape) or None in dims:
                raise gpustore.MetadataError(
                    f"{node.where}: xarray needs dimension_names, but they are {list(dims)}; "
                    f"pass drop_variables={node.name!r} to open the others"
                )
            return tuple(dims), attributes
        dims = attributes.pop(_DIMENSIONS, None)
        if dims is None:  # NCZarr keeps them beside the metadata.
            paths = node.document.get("_NCZARR_ARRAY", {}).get("dimrefs")
            dims = None if paths is None else [path.rpartition("/")[2] for path in paths]
        if dims is None:
            raise gpustore.MetadataError(
                f"{node.where}: xarray needs the attribute {_DIMENSIONS}, which is missing; pass "
                f"drop_variables={node.name!r} to open the others"
            )
        others = {k: v for k, v in attributes.items() if not k.lower().startswith("_nc")}
        return tuple(dims), others

    def _variable(
        self, name: str, dims: tuple[str, ...], attributes: dict[str, Any], *, on_host: bool
    ) -> Variable:
        store = self._group[name]
        rank = len(dims)
        numeric = store.rank == rank and store.dtype.array_dtype.kind in "biufc"
        if self._on_device is not None and numeric and rank and not on_host:
            store = self._on_device[name]
        elements = StoredArray(store, rank)
        encoding = _encoding(store, dims)
        if elements.dtype.kind == "T":  # xarray would make objects of it.
            encoding["dtype"] = elements.dtype
        fill = store.fill_value
        if fill is not None:  # That of a string has an element a character.
            fill = (
                fill[()] if fill.ndim == 0 else np.ascontiguousarray(fill).view(elements.dtype)[0]
            )
        if self._masks:
            if fill is not None and "_FillValue" not in attributes:
                attributes["_FillValue"] = fill
        else:
            if self._group.zarr_format == 3:
                encoding["fill_value"] = fill
            if "_FillValue" in attributes:
                attributes["_FillValue"] = _decoded(attributes["_FillValue"], elements.dtype)
        return Variable(dims, indexing.LazilyIndexedArray(elements), attributes, encoding)


class GpustoreBackendEntrypoint(BackendEntrypoint):
    """Entry point of xarray for ``engine="gpustore"``."""

    description = "Open Zarr with gpustore, on the CPU or into the memory of a GPU"
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        *("filename_or_obj", "mask_and_scale", "decode_times", "concat_characters"),
        *("decode_coords", "drop_variables", "use_cftime", "decode_timedelta", "group"),
        *("consolidated", "zarr_format", "device", "context", "use_zarr_fill_value_as_mask"),
    )
    supports_groups = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return False: xarray's own engine comes first unless this one is asked for."""
        return False

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        consolidated: bool | None = None,
        zarr_format: int | None = None,
        device: str | None = None,
        context: Any = None,
        use_zarr_fill_value_as_mask: bool | None = None,
        **decoding: Any,
    ) -> Dataset:
        """Open a group as a data set.

        Parameters
        ----------
        filename_or_obj : str, os.PathLike, or any place of :func:`gpustore.open_group`
            Also a Group, or a store of zarr-python.
        drop_variables : str or iterable of str, optional
            Names of arrays that are not opened.
        group : str, optional
            Path of the group below `filename_or_obj`.
        consolidated : bool, optional
            Whether consolidated metadata are used; by default if there are any.
        zarr_format : {2, 3}, optional
            Format of the hierarchy; detected by default.
        device : str, optional
            ``"cpu"`` (the default), ``"cuda"``, ``"cuda:N"`` or ``"auto"``.
        context : gpustore.Context or dict, optional
            Caches, thread pools and limits.
        use_zarr_fill_value_as_mask : bool, optional
            Whether fill values mark missing values; by default they do in Zarr v2.
        **decoding
            ``mask_and_scale`` and the others that :func:`xarray.open_dataset` has.
        """
        place = _Place(filename_or_obj, consolidated, zarr_format, device, context)
        dropped = _names(drop_variables)
        return _dataset(
            place.stored(group or "", use_zarr_fill_value_as_mask, dropped), dropped, decoding
        )

    def open_groups_as_dict(
        self,
        filename_or_obj: Any,
        *,
        drop_variables: str | Iterable[str] | None = None,
        group: str | None = None,
        consolidated: bool | None = None,
        zarr_format: int | None = None,
        device: str | None = None,
        context: Any = None,
        **decoding: Any,
    ) -> dict[str, Dataset]:
        """Open a group and all groups below it, by their paths; see :meth:`open_dataset`.

        Paths begin with a slash; those relative to `group` do not, and its own is a dot.
        """
        place = _Place(filename_or_obj, consolidated, zarr_format, device, context)
        dropped = _names(drop_variables)
        top = (group or "").strip("/")
        return {
            (below or ".") if group else f"/{below}": _dataset(
                place.stored("/".join(filter(None, (top, below))), None, dropped), dropped, decoding
            )
            for below in place.groups(top)
        }

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> DataTree:
        """Open a group and all groups below it as a tree; see :meth:`open_dataset`."""
        return DataTree.from_dict(self.open_groups_as_dict(filename_or_obj, **options))


class _Place:
    """A hierarchy to be opened, on the host and, if wanted, on a device."""

    def __init__(
        self,
        place: Any,
        consolidated: bool | None,
        zarr_format: int | None,
        device: str | None,
        context: Any,
    ) -> None:
        stores = sys.modules.get("zarr.abc.store")
        if stores is not None and isinstance(place, stores.Store):
            place = gpustore.KvStore.from_zarr_store(place)
        elif isinstance(place, gpustore.Group):
            place = place.kvstore
        self._place = place
        self._consolidated, self._zarr_format = consolidated, zarr_format
        self._context = gpustore.Context(context) if isinstance(context, Mapping) else context
        if self._context is None:
            self._context = gpustore.Context()
        self._device = device or "cpu"
        self._roots: dict[str, gpustore.Group | None] = {}

    def _open(self, path: str, device: str) -> gpustore.Group:
        """Open a group, by the consolidated metadata of the root if it has any."""
        if path and self._consolidated is not False:
            root = self._root(device)
            if root is not None and root.is_consolidated:
                found = root[path]
                if isinstance(found, gpustore.Group):
                    return found
        return self._opened(path, device)

    def _root(self, device: str) -> gpustore.Group | None:
        """Return the root of the hierarchy; None if that is no group."""
        if device not in self._roots:
            try:
                self._roots[device] = self._opened("", device)
            except gpustore.NotFoundError:
                self._roots[device] = None
        return self._roots[device]

    def _opened(self, path: str, device: str) -> gpustore.Group:
        return gpustore.open_group(
            self._place,
            path=path,
            read=True,
            use_consolidated=self._consolidated,
            zarr_format=self._zarr_format,
            device=device,
            context=self._context,
        ).result()

    def groups(self, path: str) -> Iterator[str]:
        """Yield the paths of a group and of those below it, relative to it."""
        yield ""
        for below, node in self._open(path, "cpu").walk():
            if node.is_group:
                yield below

    def stored(self, path: str, masks: bool | None, dropped: Iterable[str]) -> GroupStore:
        """Open one group."""
        on_device = None if self._device == "cpu" else self._open(path, self._device)
        return GroupStore(self._open(path, "cpu"), on_device, masks, dropped)


def _names(given: str | Iterable[str] | None) -> list[str]:
    """Return the names that one name, several or None stand for."""
    return [given] if isinstance(given, str) else [*(given or ())]


def _dataset(store: GroupStore, dropped: list[str], decoding: Mapping[str, Any]) -> Dataset:
    return StoreBackendEntrypoint().open_dataset(store, drop_variables=dropped, **decoding)


def _coordinates(
    described: Mapping[str, tuple[tuple[str, ...], Mapping[str, Any]]], attrs: Mapping[str, Any]
) -> set[str]:
    """Return the names of variables that xarray computes on the host: coordinates and times."""
    names = {name for name, (dims, _) in described.items() if name in dims}
    names.update(str(attrs.get("coordinates", "")).split())
    for name, (_, attributes) in described.items():
        for key in ("coordinates", "bounds", "grid_mapping", "ancillary_variables"):
            names.update(str(attributes.get(key, "")).split())
        units = str(attributes.get("units", ""))
        if " since " in units or attributes.get("dtype") == "timedelta64[ns]":
            names.add(name)
    return names


def _encoding(store: gpustore.TensorStore, dims: tuple[str, ...]) -> dict[str, Any]:
    """Return what ``to_zarr`` needs to encode the variable alike."""
    rank = len(dims)
    chunks = (store.chunks or store.shape)[:rank]
    encoding: dict[str, Any] = {
        "chunks": chunks,
        "preferred_chunks": dict(zip(dims, chunks, strict=True)),
        "shards": None,
    }
    codec = {} if store.codec is None else store.codec.to_json()
    if codec.get("driver") == "zarr":
        made = [None if one is None else numcodecs.get_codec(one) for one in [codec["compressor"]]]
        # xarray writes strings with a length instead, which those of objects do not suit.
        given = [one for one in codec.get("filters") or () if one["id"] not in _OF_OBJECTS]
        filters = [numcodecs.get_codec(one) for one in given]
        return {**encoding, "compressors": tuple(one for one in made if one), "filters": filters}
    codecs = codec.get("codecs", [])
    if [one["name"] for one in codecs] == ["sharding_indexed"]:
        encoding["shards"] = (store.shards or chunks)[:rank]  # One chunk may be a whole shard.
        codecs = codecs[0]["configuration"]["codecs"]
    at = next((i for i, one in enumerate(codecs) if one["name"] in _BYTES), len(codecs))
    return {
        **encoding,
        "filters": tuple(codecs[:at]),
        "serializer": codecs[at] if at < len(codecs) else "auto",
        "compressors": tuple(codecs[at + 1 :]),
    }


def _decoded(value: Any, dtype: np.dtype[Any]) -> Any:
    """Decode ``_FillValue`` of Zarr v3: floats are base64 of 8 bytes, little-endian."""
    if dtype.kind == "f" and isinstance(value, str):
        return struct.unpack("<d", base64.standard_b64decode(value))[0]
    if dtype.kind == "c" and isinstance(value, list):
        return complex(*(struct.unpack("<d", base64.standard_b64decode(v))[0] for v in value))
    if dtype.kind == "S" and isinstance(value, str):
        return base64.standard_b64decode(value)
    return value
