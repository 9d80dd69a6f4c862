"""Checks that bytes are legal elements: bools are 0 or 1, unused bits of narrow types are 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np

from gpustore.codec_chain.layout import ChunkBytes
from gpustore.data_types.dtype import dtype as DataType
from gpustore.data_types.dtype import float4_e2m1fn, int2, int4
from gpustore.errors import CorruptChunkError
from gpustore.runtime.buffer import Buffer

# Bits that hold the value. ml_dtypes has zeros above them, also for negative values.
_MASKS: Final = {
    int2.numpy_dtype: 0x03,
    int4.numpy_dtype: 0x0F,
    float4_e2m1fn.numpy_dtype: 0x0F,
    DataType("uint2").numpy_dtype: 0x03,
    DataType("uint4").numpy_dtype: 0x0F,
    DataType("float6_e2m3fn").numpy_dtype: 0x3F,
    DataType("float6_e3m2fn").numpy_dtype: 0x3F,
}


def checker(dtype: np.dtype[Any]) -> Callable[[Buffer], Buffer] | None:
    r"""Return the check of decoded bytes of elements of `dtype`, None if all bytes are legal.

    The check raises CorruptChunkError for bools other than 0 and 1. It clears the unused bits of
    types narrower than a byte, which other writers may set: in place if the bytes are writable,
    else in a copy, which it returns.

    >>> checker(int4.numpy_dtype)(b"\xff\x71")
    b'\x0f\x01'
    """
    if dtype.names is not None:
        return _of_parts(dtype, checker)
    return _check_bools if dtype == np.bool_ else normalizer(dtype)


def normalizer(dtype: np.dtype[Any]) -> Callable[[Buffer], Buffer] | None:
    """Return the function that clears unused bits before encoding, None if there are none."""
    if dtype.names is not None:
        return _of_parts(dtype, normalizer)
    mask = _MASKS.get(dtype)
    return None if mask is None else partial(_clear_unused_bits, mask)


def _of_parts(
    record: np.dtype[Any], check_of: Callable[[np.dtype[Any]], Callable[[Buffer], Buffer] | None]
) -> Callable[[Buffer], Buffer] | None:
    """Return a check of all parts of a record that need one, None if none does."""
    checks = [
        (layout, check)
        for layout in _parts(record, 0)
        if (check := check_of(layout.dtype)) is not None
    ]

    def check_record(decoded: Buffer) -> Buffer:
        count = len(memoryview(decoded)) // record.itemsize
        for layout, check in checks:
            strides = (record.itemsize, *layout.strides)
            placed = replace(layout, shape=(count, *layout.shape), strides=strides)
            decoded = _check_part(placed, check, decoded)
        return decoded

    return check_record if checks else None


def _parts(record: np.dtype[Any], offset: int) -> Iterator[ChunkBytes]:
    """Yield the layouts of the elements of one record that are no records themselves."""
    fields: Mapping[str, Any] = record.fields or {}
    for part, start in (fields[name][:2] for name in record.names or ()):
        whole = ChunkBytes.contiguous(part.base, part.shape)
        if part.base.names is None:
            yield replace(whole, offset=offset + start)
            continue
        for inner in _parts(part.base, offset + start):
            yield replace(
                inner, shape=(*whole.shape, *inner.shape), strides=(*whole.strides, *inner.strides)
            )


def illegal_bits(layout: ChunkBytes) -> tuple[bytes, bytes]:
    r"""Return the bits that legal elements do not have, as masks of a stored element's bytes.

    Returns
    -------
    bytes, bytes
        Bits that are an error, and bits that are cleared; empty if there are none.

    >>> illegal_bits(ChunkBytes.contiguous(int4.numpy_dtype, (5,)))
    (b'', b'\xf0')
    >>> illegal_bits(ChunkBytes.contiguous(np.dtype([("a", "i1"), ("b", "?", 2)]), (5,)))
    (b'\x00\xfe\xfe', b'')
    """
    period = layout.record or layout.dtype.itemsize
    inside = [(n, step) for n, step in zip(layout.shape, layout.strides) if step < period]
    errors, cleared = bytearray(period), bytearray(period)
    for part in _parts_of(layout.dtype):
        is_bool = part.dtype == np.bool_
        bits = 0xFE if is_bool else 0xFF & ~_MASKS.get(part.dtype, 0xFF)
        if not bits:
            continue
        shape = (*(n for n, _ in inside), *part.shape)
        strides = (*(step for _, step in inside), *part.strides)
        start = layout.offset + part.offset
        place = np.ndarray(shape, np.uint8, errors if is_bool else cleared, start, strides)
        place[...] = bits
    return bytes(errors if any(errors) else b""), bytes(cleared if any(cleared) else b"")


def _parts_of(dtype: np.dtype[Any]) -> Iterator[ChunkBytes]:
    """Yield the layouts of the elements of `dtype` that are no records: one, or its fields."""
    if dtype.names is None:
        yield ChunkBytes.contiguous(dtype, ())
    else:
        yield from _parts(dtype, 0)


def in_records(
    layout: ChunkBytes, check: Callable[[Buffer], Buffer] | None
) -> Callable[[Buffer], Buffer] | None:
    """Return a check of elements as one of whole chunks of records that contain them."""
    if check is None or not layout.record:
        return check

    return partial(_check_part, layout, check)


def _check_part(layout: ChunkBytes, check: Callable[[Buffer], Buffer], decoded: Buffer) -> Buffer:
    element = np.dtype(np.uint8) if layout.dtype.itemsize == 1 else _opaque(layout.dtype)
    there = np.ndarray(layout.shape, element, decoded, layout.offset, layout.strides)
    elements = there.tobytes()
    checked = check(elements)
    if checked is elements:
        return decoded
    changed = np.array(np.frombuffer(decoded, np.uint8))
    np.ndarray(layout.shape, element, changed, layout.offset, layout.strides)[...] = np.frombuffer(
        checked, element
    ).reshape(layout.shape)
    return changed.data


def _opaque(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(f"V{dtype.itemsize}")


def _check_bools(decoded: Buffer) -> Buffer:
    elements = np.frombuffer(decoded, np.uint8)
    if elements.size and elements.max() > 1:
        position = int(np.argmax(elements > 1))
        raise CorruptChunkError(
            f"Invalid bool value: {elements[position]}; at byte {position}", codec="bytes"
        )
    return decoded


def _clear_unused_bits(mask: int, decoded: Buffer) -> Buffer:
    elements = np.frombuffer(decoded, np.uint8)
    if not elements.size or elements.max() <= mask:
        return decoded
    if elements.flags.writeable:
        np.bitwise_and(elements, np.uint8(mask), out=elements)
        return decoded
    return (elements & np.uint8(mask)).tobytes()
