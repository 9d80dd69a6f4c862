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
    """View a store or spec with another data type: reads convert to it, writes convert back.

    Parameters
    ----------
    base : TensorStore or Spec
    dtype : dtype
        Data type of the view. Values convert by TensorStore's rules: floats are
        rounded towards zero to integers, and integers keep their low bits.

    Returns
    -------
    TensorStore or Spec
        View of the same kind as `base`, with its domain, device and transform. A view with one
        possible direction of conversion is read-only or write-only.

    Raises
    ------
    MetadataError
        If neither direction is possible.
    TypeError
        If `base` is neither a TensorStore nor a Spec.

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
        return Spec._make(driver, base._transform, base._mode, base._context, base._bound)
    raise TypeError(f"cast: expected a TensorStore or a Spec, but received: {base!r:.200}")
