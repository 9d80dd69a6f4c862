"""Component of stored elements that an opened array shows: the whole element, a field, its bytes.

A stored element of Zarr may be a record of named fields, and a field may be an array of its own or
a string of bytes. TensorStore shows one field at a time; the dimensions of a field become inner
dimensions behind the chunked ones, always in C order and never resizable. So do the two parts of
complex numbers that NumPy has no type for. A field that is a record again is shown whole, as an
element with NumPy's structured type, and so are strings of wide characters, dates and durations.

Source: Zarr v2 specification, "Data type encoding"; TensorStore's zarr2 driver page, "Domain".
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gpustore.data_types.dtype import DTYPES, of_elements
from gpustore.data_types.dtype import dtype as DataType
from gpustore.errors import MismatchError, UnsupportedError
from gpustore.metadata.object_type import is_object, object_dtype, object_type
from gpustore.strict_json.parsing import quote, text

_STATUS = "FAILED_PRECONDITION"


@dataclass(frozen=True, slots=True)
class Component:
    """Part of each stored element that an array shows.

    Attributes
    ----------
    name : str
        Name of the field, empty for the whole element.
    dtype : dtype
        Data type of the elements shown.
    stored : numpy.dtype
        NumPy type of one element shown as it is stored, with its byte order.
    shape : tuple of int
        Sizes of the inner dimensions.
    offset, nbytes : int
        First byte of the component, and bytes of the whole stored element.
    """

    name: str
    dtype: DataType
    stored: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    @classmethod
    def whole(cls, data_type: DataType) -> Component:
        """Return the component of stored elements of `data_type` that is the whole element."""
        stored = object_dtype(data_type) if is_object(data_type) else data_type.array_dtype
        return _component("", stored, 0, stored.itemsize)

    def with_byteorder(self, order: Literal["<", ">"]) -> Component:
        """Return the component for elements that are stored in byte order ``"<"`` or ``">"``."""
        return replace(self, stored=self.stored.newbyteorder(order))

    @property
    def rank(self) -> int:
        """Number of inner dimensions."""
        return len(self.shape)

    @property
    def is_element(self) -> bool:
        """Whether the component is a whole stored element, without inner dimensions."""
        return not self.shape and self.nbytes == self.stored.itemsize

    def of(self, element: NDArray[Any]) -> NDArray[Any]:
        """Return the component of one stored element.

        Parameters
        ----------
        element : ndarray of shape ()
            The stored element, in the stored byte order if it is a record.

        Returns
        -------
        ndarray of shape :attr:`shape`
            Host memory, native byte order, read-only.
        """
        part: NDArray[Any] = np.ndarray(self.shape, self.stored, element.tobytes(), self.offset)
        found = part.astype(self.dtype.array_dtype)
        found.flags.writeable = False
        return found


def is_opaque(stored: np.dtype[Any]) -> bool:
    """Whether elements are records, strings of bytes or raw bytes, which are shown in parts."""
    return stored.subdtype is None and stored.type in (np.void, np.bytes_)


def select(stored: np.dtype[Any], field: str, *, as_void: bool) -> Component:
    """Return the component that the members ``field`` and ``open_as_void`` of a spec ask for.

    Parameters
    ----------
    stored : numpy.dtype
        Type of the stored elements, with their byte orders.
    field : str
        Name of the field, empty if none is given.
    as_void : bool
        Whether to show the bytes of the stored elements.

    Raises
    ------
    MismatchError
        If there is no such field, or one has to be named.

    Examples
    --------
    >>> records = np.dtype([("x", "<u2", (2, 3)), ("y", "S5")])
    >>> select(records, "y", as_void=False)
    Component(name='y', dtype=dtype("char"), stored=dtype('S1'), shape=(5,), offset=12, nbytes=17)
    """
    if as_void and stored.hasobject:
        raise UnsupportedError(
            f'"open_as_void" is not supported: elements of data type {object_type(stored).name} '
            f"have any length"
        )
    if as_void:
        return _component("", np.dtype(f"V{stored.itemsize}"), 0, stored.itemsize)
    if stored.fields is None or stored.names is None:
        if field:
            raise MismatchError(
                f"Requested field {quote(field)} but dtype does not have named fields",
                status=_STATUS,
            )
        return _component("", stored, 0, stored.itemsize)
    names = text(list(stored.names))
    if not field:
        if len(stored.names) != 1:
            raise MismatchError(f'Must specify a "field" that is one of: {names}', status=_STATUS)
        field = stored.names[0]
    if field not in stored.names:
        raise MismatchError(
            f"Requested field {quote(field)} is not one of: {names}", status=_STATUS
        )
    part, offset = stored.fields[field][:2]
    return _component(field, part, offset, stored.itemsize)


def _component(name: str, part: np.dtype[Any], offset: int, nbytes: int) -> Component:
    base, shape = part.base, part.shape
    if base.hasobject:
        return Component(name, object_type(base), base, shape, offset, nbytes)
    if base.names is None and is_opaque(base):
        kind = "char" if base.type is np.bytes_ else "byte"
        shape = (*shape, base.itemsize)
        return Component(name, DTYPES[kind], np.dtype(f"{base.kind}1"), shape, offset, nbytes)
    stored = base
    if base.kind in "Mm" and np.datetime_data(base)[0] == "generic":
        # NumPy 2.4 casts those between byte orders without swapping their bytes.
        stored = np.dtype(f"{base.str[0]}i8")
    return Component(name, of_elements(base), stored, shape, offset, nbytes)
