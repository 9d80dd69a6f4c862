"""Views with another data type: :func:`cast`."""

from __future__ import annotations

from typing import Any, overload

from gpustore.data_types.dtype import dtype as dtype_
from gpustore.drivers.cast import CastSpec, cast_driver
from gpustore.front.spec import Spec
from gpustore.front.store import TensorStore


@overload
def cast(base: TensorStore, dtype: Any) -> TensorStore: ...


@overload
def cast(base: Spec, dtype: Any) -> Spec: ...


def cast(base: TensorStore | Spec, dtype: Any) -> TensorStore | Spec:
    """A view with another data type: reads convert from that of the base, writes to it.

    Parameters
    ----------
    base : TensorStore or Spec
    dtype : dtype
        What is not a number of that type becomes one as :mod:`gpustore.data_types.conversion` says:
        floats are rounded towards zero to integers, and integers keep their low bits.

    Returns
    -------
    TensorStore or Spec
        Of the same kind as `base`, with its domain, device and transform. Where only one
        direction is possible it is read-only, or can only be written.

    Raises
    ------
    MetadataError
        If neither direction is possible.
    TypeError
        If `base` is neither.

    Examples
    --------
    >>> import gpustore
    >>> view = cast(gpustore.array([1.5, 2.5, 300.5], "float32"), "uint8")
    >>> view.read().result()
    array([ 1,  2, 44], dtype=uint8)
    """
    target = dtype_(dtype)
    if isinstance(base, TensorStore):
        return TensorStore._of(cast_driver(base._driver, target), base._transform)
    if isinstance(base, Spec):
        driver = CastSpec(base._driver, target)
        return Spec._make(driver, base._transform, base._mode, base._context)
    raise TypeError(f"cast: expected a TensorStore or a Spec, but received: {base!r:.200}")
