"""Views of fewer elements: :func:`downsample`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from gpustore.drivers._cells import check_factors, check_method
from gpustore.drivers.downsample import DownsampleSpec, downsample_driver
from gpustore.front.spec import Spec
from gpustore.front.store import TensorStore
from gpustore.index_space import IndexTransform


@overload
def downsample(
    base: TensorStore, downsample_factors: Sequence[int], method: str
) -> TensorStore: ...


@overload
def downsample(base: Spec, downsample_factors: Sequence[int], method: str) -> Spec: ...


def downsample(
    base: TensorStore | Spec, downsample_factors: Sequence[int], method: str
) -> TensorStore | Spec:
    """View a store or spec with one element for each block of its elements; nothing is read.

    Parameters
    ----------
    base : TensorStore or Spec
    downsample_factors : sequence of int
        Elements of a block along each dimension. A cell of the index ``i`` stands for the elements
        from ``i * factor`` on, as far as there are any.
    method : {"stride", "mean", "min", "max", "median", "mode", "gaussian"}
        What becomes of a block: its first element; the mean, of integers rounded to the nearest,
        halves to the even one; the smallest or largest, NaN left out, and NaN for NaN alone, where
        TensorStore has an infinity; the lower median; the smallest of the most frequent ones. The
        data type stays. ``"gaussian"``, which TensorStore lacks, is for factors of 1 and 2,
        integers of up to 32 bits and floats: the mean of two elements and the one before and behind
        them with the weights 1, 3, 3, 1 along each halved dimension. At the edges the last element
        stands for those beyond, integers are rounded as by ``"mean"``, and floats are added as
        float64.

    Returns
    -------
    TensorStore or Spec
        View of the same kind as `base`, read-only. Each read reads what it needs of the base, in
        parts of at most 64 MiB.

    Raises
    ------
    MetadataError
        If the factors do not fit, or the data type has no such method.
    TypeError
        If `base` is neither a TensorStore nor a Spec.

    Examples
    --------
    >>> import gpustore
    >>> view = downsample(gpustore.array([[1, 2, 5], [3, 4, 6]]), [2, 2], "max")
    >>> view.read().result()
    array([[4, 6]])
    """
    if isinstance(base, TensorStore):
        driver = downsample_driver(base._driver, base._transform, downsample_factors, method)
        return TensorStore._of(driver, IndexTransform(driver.domain))
    if isinstance(base, Spec):
        factors = check_factors(downsample_factors, base.rank, "TensorStore")
        check_method(method, base.dtype, factors)
        spec = DownsampleSpec(base._driver, base.transform, factors, method)
        return Spec._make(spec, None, base._mode, base._context, base._bound)
    raise TypeError(f"downsample: expected a TensorStore or a Spec, but received: {base!r:.200}")
