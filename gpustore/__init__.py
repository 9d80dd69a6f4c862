"""Chunked, compressed arrays that live on the GPU: Zarr behind TensorStore's front end.

>>> import gpustore
>>> store = gpustore.open(
...     "memory://a|zarr3:", create=True, dtype="uint16", shape=[100, 100]
... ).result()
>>> store[10:20, :] = 3
>>> int(store[10:12, :2].read().result().sum())
12
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from gpustore import registry

# What type checkers and editors see. The modules are imported when a name of theirs is first used:
# __getattr__ below.
if TYPE_CHECKING:
    from gpustore import ocdbt
    from gpustore.backends.native.native_core import NativeCore, native_core
    from gpustore.data_types.dtype import DTYPES as _DTYPES
    from gpustore.data_types.dtype import dtype
    from gpustore.data_types.unit import Unit
    from gpustore.drivers.base import OpenMode
    from gpustore.drivers.chunk_functions import (
        VirtualChunkedReadParameters,
        VirtualChunkedWriteParameters,
    )
    from gpustore.errors import (
        AlreadyExistsError,
        ConflictError,
        CopyError,
        CopyWarning,
        CorruptChunkError,
        DeviceError,
        DeviceWarning,
        ForkError,
        GpustoreError,
        InvalidKeyError,
        LimitError,
        MetadataError,
        MismatchError,
        NetworkWarning,
        NotFoundError,
        OutOfBoundsError,
        PathNotFoundError,
        StoreIOError,
        TransactionError,
        UnsupportedError,
    )
    from gpustore.explain.explanation import Explanation
    from gpustore.explain.write_explanation import WriteExplanation
    from gpustore.front.array import array
    from gpustore.front.cast import cast
    from gpustore.front.copy import copy
    from gpustore.front.create_array import create_array, save
    from gpustore.front.downsample import downsample
    from gpustore.front.group import Group
    from gpustore.front.guests import store_dask, to_dask
    from gpustore.front.open import open
    from gpustore.front.open_group import open_group
    from gpustore.front.spec import Spec
    from gpustore.front.stack import concat, overlay, stack
    from gpustore.front.store import TensorStore
    from gpustore.front.type_aliases import (
        DimSelectionLike,
        DownsampleMethod,
        DTypeLike,
        FutureLike,
        Indexable,
        NumpyIndexingSpec,
        NumpyIndexTerm,
        RecheckCacheOption,
        T,
    )
    from gpustore.front.virtual_chunked import virtual_chunked
    from gpustore.hierarchy.attributes import Attributes
    from gpustore.index_space import (
        Dim,
        IndexDomain,
        IndexTransform,
        OutputIndexMap,
        OutputIndexMaps,
        OutputIndexMethod,
        inf,
        newaxis,
    )
    from gpustore.index_space.dimension_expression import DimExpression, DimSelection, d
    from gpustore.kvstores.kvstore import KvStore
    from gpustore.metadata.node import Node
    from gpustore.runtime.batch import Batch
    from gpustore.runtime.context import Context
    from gpustore.runtime.future import Future
    from gpustore.runtime.metrics import (
        experimental_collect_matching_metrics,
        experimental_collect_prometheus_format_metrics,
        experimental_push_metrics_to_prometheus,
        experimental_update_verbose_logging,
        parse_tensorstore_flags,
    )
    from gpustore.runtime.promise import Promise
    from gpustore.runtime.statistics import STATISTICS as statistics
    from gpustore.runtime.transaction import Transaction
    from gpustore.runtime.write_futures import WriteFutures
    from gpustore.schema import Schema
    from gpustore.schema.chunk_layout import ChunkLayout
    from gpustore.schema.codec_spec import CodecSpec

    bool = _DTYPES["bool"]
    char = _DTYPES["char"]
    byte = _DTYPES["byte"]
    int2 = _DTYPES["int2"]
    int4 = _DTYPES["int4"]
    int8 = _DTYPES["int8"]
    uint8 = _DTYPES["uint8"]
    int16 = _DTYPES["int16"]
    uint16 = _DTYPES["uint16"]
    int32 = _DTYPES["int32"]
    uint32 = _DTYPES["uint32"]
    int64 = _DTYPES["int64"]
    uint64 = _DTYPES["uint64"]
    float4_e2m1fn = _DTYPES["float4_e2m1fn"]
    float8_e3m4 = _DTYPES["float8_e3m4"]
    float8_e4m3fn = _DTYPES["float8_e4m3fn"]
    float8_e4m3fnuz = _DTYPES["float8_e4m3fnuz"]
    float8_e4m3b11fnuz = _DTYPES["float8_e4m3b11fnuz"]
    float8_e5m2 = _DTYPES["float8_e5m2"]
    float8_e5m2fnuz = _DTYPES["float8_e5m2fnuz"]
    float8_e8m0fnu = _DTYPES["float8_e8m0fnu"]
    float16 = _DTYPES["float16"]
    bfloat16 = _DTYPES["bfloat16"]
    float32 = _DTYPES["float32"]
    float64 = _DTYPES["float64"]
    complex64 = _DTYPES["complex64"]
    complex128 = _DTYPES["complex128"]
    string = _DTYPES["string"]
    ustring = _DTYPES["ustring"]
    json = _DTYPES["json"]

__version__ = "0.1.0"

__all__ = [
    "T",
    "AlreadyExistsError",
    "Attributes",
    "Batch",
    "ChunkLayout",
    "CodecSpec",
    "ConflictError",
    "Context",
    "CopyError",
    "CopyWarning",
    "CorruptChunkError",
    "DTypeLike",
    "DeviceError",
    "DeviceWarning",
    "Dim",
    "DimExpression",
    "DimSelection",
    "DimSelectionLike",
    "DownsampleMethod",
    "Explanation",
    "ForkError",
    "Future",
    "FutureLike",
    "GpustoreError",
    "Group",
    "IndexDomain",
    "IndexTransform",
    "Indexable",
    "InvalidKeyError",
    "KvStore",
    "LimitError",
    "MetadataError",
    "MismatchError",
    "NativeCore",
    "NetworkWarning",
    "Node",
    "NotFoundError",
    "NumpyIndexTerm",
    "NumpyIndexingSpec",
    "OpenMode",
    "OutOfBoundsError",
    "OutputIndexMap",
    "OutputIndexMaps",
    "OutputIndexMethod",
    "PathNotFoundError",
    "Promise",
    "RecheckCacheOption",
    "Schema",
    "Spec",
    "StoreIOError",
    "TensorStore",
    "Transaction",
    "TransactionError",
    "Unit",
    "UnsupportedError",
    "VirtualChunkedReadParameters",
    "VirtualChunkedWriteParameters",
    "WriteExplanation",
    "WriteFutures",
    "array",
    "bfloat16",
    "bool",
    "byte",
    "cast",
    "char",
    "complex128",
    "complex64",
    "concat",
    "copy",
    "create_array",
    "d",
    "downsample",
    "dtype",
    "experimental_collect_matching_metrics",
    "experimental_collect_prometheus_format_metrics",
    "experimental_push_metrics_to_prometheus",
    "experimental_update_verbose_logging",
    "float16",
    "float32",
    "float4_e2m1fn",
    "float64",
    "float8_e3m4",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "inf",
    "int16",
    "int2",
    "int32",
    "int4",
    "int64",
    "int8",
    "json",
    "native_core",
    "newaxis",
    "ocdbt",
    "open",
    "open_group",
    "overlay",
    "parse_tensorstore_flags",
    "save",
    "stack",
    "statistics",
    "store_dask",
    "string",
    "to_dask",
    "uint16",
    "uint32",
    "uint64",
    "uint8",
    "ustring",
    "virtual_chunked",
]

_NAMES: Final = {
    "backends.native.native_core": ("NativeCore", "native_core"),
    "data_types.dtype": ("dtype",),
    "data_types.unit": ("Unit",),
    "drivers.base": ("OpenMode",),
    "drivers.chunk_functions": ("VirtualChunkedReadParameters", "VirtualChunkedWriteParameters"),
    "errors": (
        "AlreadyExistsError",
        "ConflictError",
        "CopyError",
        "CopyWarning",
        "CorruptChunkError",
        "DeviceError",
        "DeviceWarning",
        "ForkError",
        "GpustoreError",
        "InvalidKeyError",
        "LimitError",
        "MetadataError",
        "MismatchError",
        "NetworkWarning",
        "NotFoundError",
        "OutOfBoundsError",
        "PathNotFoundError",
        "StoreIOError",
        "TransactionError",
        "UnsupportedError",
    ),
    "explain.explanation": ("Explanation",),
    "explain.write_explanation": ("WriteExplanation",),
    "front.array": ("array",),
    "front.cast": ("cast",),
    "front.copy": ("copy",),
    "front.create_array": ("create_array", "save"),
    "front.downsample": ("downsample",),
    "front.group": ("Group",),
    "front.guests": ("store_dask", "to_dask"),
    "front.open": ("open",),
    "front.open_group": ("open_group",),
    "front.spec": ("Spec",),
    "front.stack": ("concat", "overlay", "stack"),
    "front.store": ("TensorStore",),
    "front.type_aliases": (
        "DimSelectionLike",
        "DTypeLike",
        "DownsampleMethod",
        "FutureLike",
        "Indexable",
        "NumpyIndexTerm",
        "NumpyIndexingSpec",
        "RecheckCacheOption",
        "T",
    ),
    "front.virtual_chunked": ("virtual_chunked",),
    "hierarchy.attributes": ("Attributes",),
    "index_space": (
        "Dim",
        "IndexDomain",
        "IndexTransform",
        "OutputIndexMap",
        "OutputIndexMaps",
        "OutputIndexMethod",
        "inf",
        "newaxis",
    ),
    "index_space.dimension_expression": ("DimExpression", "DimSelection", "d"),
    "kvstores.kvstore": ("KvStore",),
    "metadata.node": ("Node",),
    "runtime.batch": ("Batch",),
    "runtime.context": ("Context",),
    "runtime.future": ("Future",),
    "runtime.metrics": (
        "experimental_collect_matching_metrics",
        "experimental_collect_prometheus_format_metrics",
        "experimental_push_metrics_to_prometheus",
        "experimental_update_verbose_logging",
        "parse_tensorstore_flags",
    ),
    "runtime.promise": ("Promise",),
    "runtime.statistics": ("statistics",),
    "runtime.transaction": ("Transaction",),
    "runtime.write_futures": ("WriteFutures",),
    "schema": ("Schema",),
    "schema.chunk_layout": ("ChunkLayout",),
    "schema.codec_spec": ("CodecSpec",),
}
"""Public names by the module that defines them; further ones of `__all__` are data types."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Return a public name or a folder of the package, which is imported for it (PEP 562)."""
        if name not in __all__ or name == "ocdbt":
            found = registry.room(name)
            if found is None:
                raise AttributeError(f"module 'gpustore' has no attribute {name!r}")
            return found
        module = next((module for module, names in _NAMES.items() if name in names), None)
        if module is None:
            value = registry.public("data_types.dtype", "DTYPES")[name]
        else:
            value = registry.public(module, "STATISTICS" if name == "statistics" else name)
        globals()[name] = value  # Not asked for again. Threads that get here at once agree on it.
        return value

    def __dir__() -> list[str]:
        """List the public names, imported or not, for completion."""
        return [*__all__, *(name for name in globals() if name.startswith("__"))]
