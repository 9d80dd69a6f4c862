"""JAX: arrays as results of reads, and arrays that are read shard by shard onto many devices.

An array shares the memory of the one that was read where that is aligned to 64 bytes; JAX copies it
otherwise.

Source: https://docs.jax.dev/en/latest/sharded-computation.html
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

import gpustore
from gpustore.interop import checked, extra

with extra("jax"):
    import jax
    import jax.numpy as jnp


_TYPES: Final = {
    *("bool", "int2", "int4", "int8", "int16", "int32", "int64"),
    *("uint2", "uint4", "uint8", "uint16", "uint32", "uint64"),
    *("bfloat16", "float16", "float32", "float64", "complex64", "complex128", "float4_e2m1fn"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
}
"""Data types that have one name and one meaning here and in JAX."""


def conversion(dtype: gpustore.dtype) -> Callable[[Any], jax.Array]:
    """Return a function that makes an array of JAX of one of NumPy or CuPy.

    That of a NumPy array is on JAX's CPU, that of a CuPy array on its GPU.

    Raises
    ------
    UnsupportedError
        If JAX lacks the data type, or has it only with the option ``jax_enable_x64``.
    """
    elements = dtype.array_dtype
    if elements.name not in _TYPES or not hasattr(jnp, elements.name):
        raise gpustore.UnsupportedError(
            f"JAX {jax.__version__} has no data type for {dtype.name}: read it as NumPy"
        )
    kept = jax.dtypes.canonicalize_dtype(elements)
    if kept != elements:
        raise gpustore.UnsupportedError(
            f"JAX would make {kept} of {dtype.name}: set its option jax_enable_x64, or read the "
            f'store as that: gpustore.cast(store, "{kept}")'
        )

    def convert(array: Any) -> jax.Array:
        if isinstance(array, np.ndarray):
            return jax.device_put(array, jax.local_devices(backend="cpu")[0])
        if elements.isbuiltin != 2:
            return jax.dlpack.from_dlpack(array)
        # A type of ml_dtypes, which CuPy does not export. JAX copies it on the device.
        return jax.dlpack.from_dlpack(array.view(f"uint{8 * elements.itemsize}")).view(elements)

    return convert


def read(store: gpustore.TensorStore, *, sharding: jax.sharding.Sharding) -> jax.Array:
    """Read a store into an array that is divided between devices, maybe of many processes.

    Each process reads the parts that its devices hold, all in one batch: a part that several of
    them hold is read once. All processes must call this.

    Parameters
    ----------
    store : TensorStore
        Store of rank at least 1, also a view. Its parts are read into its memory, and copied to the
        devices if that is not theirs.
    sharding : jax.sharding.Sharding
        Division of the shape of the store.

    Returns
    -------
    jax.Array
        Array of the shape and the data type of the store, with this sharding.

    Raises
    ------
    UnsupportedError
        If JAX lacks the data type.
    TypeError
        If `store` is no store, as a group is not.
    ValueError
        If the sharding does not divide the shape.
    CorruptChunkError, StoreIOError
        If a chunk cannot be decoded or fetched.

    Examples
    --------
    >>> store = gpustore.array([[0, 1], [2, 3]], "int32")
    >>> mesh = jax.sharding.Mesh(jax.devices()[:1], ("rows",))
    >>> rows = jax.sharding.PartitionSpec("rows")
    >>> read(store, sharding=jax.sharding.NamedSharding(mesh, rows))
    Array([[0, 1],
           [2, 3]], dtype=int32)
    """
    store = checked(store)
    whole = store.translate_to[0] if store.rank else store
    held = sharding.addressable_devices_indices_map(whole.shape)
    parts = {
        device: tuple(
            slice(*part.indices(size)[:2]) for part, size in zip(index, whole.shape, strict=True)
        )
        for device, index in held.items()
    }
    begun: dict[str, gpustore.Future[jax.Array]] = {}
    with gpustore.Batch() as batch:
        for part in parts.values():
            if str(part) not in begun:
                begun[str(part)] = whole[part].read(batch=batch, to="jax")
    local = [jax.device_put(begun[str(part)].result(), device) for device, part in parts.items()]
    return jax.make_array_from_single_device_arrays(whole.shape, sharding, local)
