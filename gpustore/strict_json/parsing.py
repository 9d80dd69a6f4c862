"""Strict JSON: bytes to values, values to bytes, and validation of what they hold.

:func:`parse` refuses what :func:`json.loads` lets through: duplicate members, ``NaN``, numbers
beyond float64, a byte order mark, lone surrogates. It looks at the size and the nesting before
any recursive code runs. :class:`Members` and the ``expect_*`` functions validate a parsed value;
their messages are worded as TensorStore words them, nested outside-in::

    Error parsing object member "codecs": Error parsing value at position 0: Expected object, ...
"""

from __future__ import annotations

import gc
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np

from gpustore.errors import GpustoreError, MetadataError, prefixing

# None, bool, int, float, str, or a list or a dict (with str keys) of them. Not a recursive union:
# Members and the expect functions are what narrows, and lists are invariant.
JsonValue: TypeAlias = Any

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1

# User attributes may hold integers beyond 64 bits, but Python converts no more than 4300 digits.
_MAX_INT_DIGITS = 1000

# A value of a hostile file may be megabytes long; this much of it goes into a message.
_MAX_QUOTED = 1000
_LONG_NBYTES = 1 << 20

T = TypeVar("T")
V = TypeVar("V")


class Required(Enum):
    """Type of :data:`REQUIRED`, the default of members that have to be given."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


def parse(
    data: bytes | bytearray | memoryview,
    *,
    where: str,
    max_nbytes: int = 16 << 20,
    max_depth: int = 64,
    status: str = "",
    non_finite: bool = False,
    long_nbytes: int | None = None,
) -> JsonValue:
    """Parse one JSON document strictly.

    Parameters
    ----------
    data : bytes-like
        UTF-8 without a byte order mark.
    where : str
        Description of the document, for messages: ``local file "/p/zarr.json"``.
    max_nbytes : int
        Longest document accepted, in bytes.
    max_depth : int
        Deepest nesting of arrays and objects accepted.
    status : str
        Status name of the error; TensorStore has one for each format.
    non_finite : bool
        Whether ``NaN``, ``Infinity`` and ``-Infinity`` are numbers, as Python writes them.
    long_nbytes : int, optional
        Length in bytes above which duplicate members are not looked for and the last one counts:
        in consolidated metadata of thousands of arrays the search takes as long as the parsing.

    Returns
    -------
    JsonValue

    Raises
    ------
    MetadataError
        If the document is not JSON as :rfc:`8259` defines it, is longer or deeper than allowed, or
        has duplicate members, a byte order mark, lone surrogates or numbers beyond float64.
    """
    try:
        is_long = long_nbytes is not None and len(data) > long_nbytes
        return _parse(bytes(data), max_nbytes, max_depth, non_finite, is_long)
    except InvalidJsonError as error:
        raise MetadataError(f"Invalid JSON: {error} (in {where})", status=status) from None


class InvalidJsonError(Exception):
    """Reason why a document is not JSON; :func:`parse` adds the place."""


def _parse(
    data: bytes, max_nbytes: int, max_depth: int, non_finite: bool, is_long: bool
) -> JsonValue:
    if len(data) > max_nbytes:
        raise InvalidJsonError(f"{len(data)} bytes, the limit is {max_nbytes} bytes")
    if data.startswith(b"\xef\xbb\xbf"):
        raise InvalidJsonError("byte order mark at byte 0")
    try:
        document = data.decode()
    except UnicodeDecodeError as error:
        raise InvalidJsonError(f"not UTF-8 at byte {error.start}") from None
    check_depth(data, max_depth)
    decoder = _LENIENT if non_finite else _DECODER
    if non_finite and is_long:
        decoder = _LONG
    elif non_finite and len(data) <= _MAX_INT_DIGITS:
        decoder = _SHORT
    try:
        if len(data) <= _LONG_NBYTES:
            value = decoder.decode(document)
        else:
            with _collector_paused():
                value = decoder.decode(document)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno} column {error.colno}"
        raise InvalidJsonError(f"{error.msg} at {place}") from None
    except ValueError as error:
        # An integer of more digits than Python takes.
        raise InvalidJsonError(str(error)) from None
    if "\\" in document and re.search(r"\\u[dD][89a-fA-F]", document):
        # Pairs have become one character.
        lone = re.search(r"[\ud800-\udfff]", json.dumps(value, ensure_ascii=False))
        if lone:
            raise InvalidJsonError(f"lone surrogate \\u{ord(lone[0]):04x} in a string")
    return value


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the search for reference cycles while a long document is parsed.

    JSON has no cycles, and looking for them takes a third of the time of parsing 10 MB (2 cores,
    2026-11).
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# Only brackets and quotes survive, as steps of the depth: +1, -1 and 0 in int8.
_STEPS = bytes(1 if c in b"[{" else 255 if c in b"]}" else 0 for c in range(256))
_NO_STEP = bytes(c for c in range(256) if c not in b'[]{}"')


def check_depth(data: bytes, max_depth: int) -> None:
    """Raise InvalidJsonError if arrays and objects are nested deeper."""
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    if b"\\" in data:
        data = re.sub(rb"\\.", b"", data, flags=re.DOTALL)
    steps = np.frombuffer(data.translate(_STEPS, _NO_STEP), np.int8)
    # Behind an odd number of quotes is a string, whose brackets do not count.
    outside = ~np.logical_xor.accumulate(steps == 0)
    depth = np.cumsum(steps * outside, dtype=np.int32)
    deepest = int(depth.max(initial=0))
    if deepest > max_depth:
        raise InvalidJsonError(f"values nested {deepest} deep, the limit is {max_depth}")


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    value = dict(pairs)
    if len(value) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise InvalidJsonError(f"duplicate member {quote(counts.most_common(1)[0][0])}")
    return value


def _int(digits: str) -> int:
    if len(digits) > _MAX_INT_DIGITS:
        raise InvalidJsonError(f"integer of {len(digits)} digits, limit is {_MAX_INT_DIGITS}")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise InvalidJsonError(f"not a finite float64: {digits[:40]}")
    return value


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_float
)
_LONG = json.JSONDecoder()
_LENIENT = json.JSONDecoder(object_pairs_hook=_object, parse_int=_int, parse_float=_float)
# No integer in a short document has too many digits.
_SHORT = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float)
STRICT_SHORT: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_float, parse_constant=_float
)
"""Decoder of texts that cannot hold an integer of too many digits; raises also InvalidJsonError."""


def dump(
    value: JsonValue,
    *,
    indent: int | None = None,
    sort_keys: bool = False,
    non_finite: bool = False,
) -> bytes:
    """Encode `value` as UTF-8 JSON, compact unless `indent` (spaces a level) is given.

    NaN and infinities (unless `non_finite`: other readers may refuse them), strings that are not
    Unicode and other objects raise MetadataError.

    >>> dump({"b": [1, 2], "a": None}, sort_keys=True)
    b'{"a":null,"b":[1,2]}'
    """
    encoder = json.JSONEncoder(
        ensure_ascii=False,
        allow_nan=non_finite,
        indent=indent,
        separators=(",", ":" if indent is None else ": "),
        sort_keys=sort_keys,
    )
    try:
        return encoder.encode(value).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise MetadataError(f"Cannot be written as JSON: {error}") from error


_TEXT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=repr)


def text(value: object) -> str:
    """Return `value` as compact JSON with sorted members for a message, cut when very long.

    Unlike :func:`dump` it never fails: an object that is not JSON is shown as its repr.
    """
    try:
        encoded = _TEXT.encode(value)
    except (TypeError, ValueError, RecursionError):
        encoded = f"<{type(value).__name__}>"
    if len(encoded) > _MAX_QUOTED:
        return f"{encoded[:_MAX_QUOTED]}... ({len(encoded)} characters)"
    return encoded


def quote(string: str) -> str:
    """Return `string` in double quotes, escaped and cut, for an error message."""
    if len(string) > _MAX_QUOTED:
        return f'"{escape(string[:_MAX_QUOTED])}"... ({len(string)} characters)'
    return f'"{escape(string)}"'


def escape(string: str) -> str:
    r"""Return `string` with C escapes for quotes, backslashes and bytes beyond printable ASCII.

    As in TensorStore's messages and reprs, a hexadecimal digit after a ``\x..`` is escaped too,
    since C would read it as part of the escape.

    >>> print(escape("é or éa"))
    \xc3\xa9 or \xc3\xa9\x61
    """
    if _PLAIN.fullmatch(string):
        return string
    pieces = []
    after_hex = False
    for byte in string.encode("utf-8", "surrogatepass"):
        piece = _ESCAPES[byte]
        if after_hex and byte in b"0123456789abcdefABCDEF":
            piece = f"\\x{byte:02x}"
        after_hex = piece.startswith("\\x")
        pieces.append(piece)
    return "".join(pieces)


_PLAIN = re.compile(r"[ -!#-&(-\[\]-~]*")
_ESCAPES = [chr(c) if 32 <= c < 127 else f"\\x{c:02x}" for c in range(256)]
for _char, _name in {'"': '"', "'": "'", "\\": "\\", "\n": "n", "\r": "r", "\t": "t"}.items():
    _ESCAPES[ord(_char)] = "\\" + _name


_PLAIN_TYPES = frozenset({bool, int, float, str, type(None)})
_NAME_TYPES = frozenset({str})


def from_python(value: object) -> JsonValue:
    """Convert an argument of a Python caller to JSON.

    Sequences and NumPy arrays become lists, NumPy scalars Python ones; an object with a
    ``to_json`` method becomes the result of that. The result shares no mutable object with `value`.

    Raises
    ------
    TypeError
        If `value` holds any other object.

    >>> from_python({"shape": (np.int64(3), 4)})
    {'shape': [3, 4]}
    """
    if type(value) in _PLAIN_TYPES:
        return value
    if type(value) is dict and _NAME_TYPES.issuperset(map(type, value)):
        return {
            name: item if type(item) in _PLAIN_TYPES else from_python(item)
            for name, item in value.items()
        }
    if type(value) is list or type(value) is tuple:
        return [item if type(item) in _PLAIN_TYPES else from_python(item) for item in value]
    for plain in (int, float, str):
        # Not a subclass such as an enumeration or numpy.float64.
        if isinstance(value, plain):
            return plain(value)
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise TypeError("Names of JSON members must be strings")
        return {str(name): from_python(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [from_python(item) for item in value]
    if isinstance(value, (np.ndarray, np.number, np.bool_)):
        return from_python(value.tolist())
    to_json = getattr(value, "to_json", None)
    if callable(to_json) and not isinstance(value, type):
        return from_python(to_json())
    raise TypeError(f"Object '{type(value).__name__}' does not support conversion to JSON")


def in_member(name: str) -> prefixing:
    """Return a context manager that puts ``Error parsing object member "<name>": `` first."""
    return prefixing(partial(_member_context, name))


def at_position(index: int) -> prefixing:
    """Return a context manager that puts ``Error parsing value at position <index>: `` first."""
    return prefixing(partial(_position_context, index))


def _member_context(name: str) -> str:
    return f"Error parsing object member {quote(name)}"


def _position_context(index: int) -> str:
    return f"Error parsing value at position {index}"


def _unexpected(expected: str, value: object) -> MetadataError:
    found = "member is missing" if value is REQUIRED else f"received: {text(value)}"
    return MetadataError(f"Expected {expected}, but {found}")


def expect_object(value: JsonValue) -> dict[str, JsonValue]:
    """Return `value` if it is a JSON object, raise MetadataError otherwise."""
    if not isinstance(value, dict):
        raise _unexpected("object", value)
    return value


def expect_list(value: JsonValue, *, length: int | None = None) -> list[JsonValue]:
    """Return `value` as a list if it is an array (of `length`), raise MetadataError otherwise."""
    if not isinstance(value, (list, tuple)):
        raise _unexpected("array", value)
    if length is not None and len(value) != length:
        raise MetadataError(f"Array has length {len(value)} but should have length {length}")
    return list(value)


def expect_bool(value: JsonValue) -> bool:
    """Return `value` if it is true or false, raise MetadataError otherwise."""
    if not isinstance(value, bool):
        raise _unexpected("boolean", value)
    return value


def expect_int(
    value: JsonValue,
    minimum: int = INT64_MIN,
    maximum: int = INT64_MAX,
    *,
    integral_floats: bool = False,
) -> int:
    """Return `value` if it is an integer in ``[minimum, maximum]``, raise MetadataError otherwise.

    With `integral_floats`, ``3.0`` counts as 3, as in TensorStore's specs.
    """
    number = value
    if isinstance(value, float) and integral_floats and value.is_integer():
        number = int(value)
    if isinstance(number, int) and not isinstance(number, bool) and minimum <= number <= maximum:
        return number
    raise _unexpected(_describe_int(minimum, maximum), value)


def _describe_int(minimum: int, maximum: int) -> str:
    if (minimum, maximum) == (INT64_MIN, INT64_MAX):
        return "64-bit signed integer"
    if (minimum, maximum) == (0, 2**64 - 1):
        return "64-bit unsigned integer"
    return f"integer in the range [{minimum}, {maximum}]"


def expect_float(value: JsonValue) -> float:
    """Return a number as a float, raise MetadataError for other values."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _unexpected("64-bit floating-point number", value)
    try:
        return float(value)
    except OverflowError:
        raise _unexpected("64-bit floating-point number", value) from None


def expect_str(value: JsonValue, *, choices: Sequence[str] | None = None) -> str:
    """Return `value` if it is a string (one of `choices`), raise MetadataError otherwise."""
    if isinstance(value, str) and (choices is None or value in choices):
        return value
    if choices is None:
        raise _unexpected("string", value)
    expected = ", ".join(map(text, choices))
    raise _unexpected(expected if len(choices) == 1 else f"one of {expected}", value)


class Members:
    """Cursor over the members of a JSON object: take each once, then :meth:`finish`.

    A value that is not as expected raises MetadataError, also here if `value` is no object.

    Parameters
    ----------
    value : JsonValue
        The object.
    where : str
        Name of the document, added to messages as ``(in <where>)`` if not empty.
    pointer : str
        JSON pointer of `value` in the document; messages begin with it, in TensorStore's words.
    status : str
        Status name of the errors.
    integral_floats : bool
        Whether ``3.0`` counts as an integer.

    Examples
    --------
    >>> Members({"level": 4}).take_int("level", 0, 9)
    4
    """

    __slots__ = ("_contexts", "_integral_floats", "_rest", "_status", "_where", "pointer")

    def __init__(
        self,
        value: JsonValue,
        where: str = "",
        pointer: str = "",
        *,
        status: str = "",
        integral_floats: bool = False,
    ) -> None:
        self._where = where
        self._status = status
        self._integral_floats = integral_floats
        self.pointer = pointer
        self._contexts: tuple[str | int, ...] = ()
        if pointer:
            self._contexts = tuple(map(_pointer_context, pointer.split("/")[1:]))
        try:
            self._rest = dict(expect_object(value))
        except MetadataError as error:
            raise self._located(error) from error.__cause__

    def __contains__(self, name: str) -> bool:
        """Whether the object has a member `name` that has not been taken."""
        return name in self._rest

    def names(self) -> tuple[str, ...]:
        """Return the names of the members not taken yet."""
        return tuple(self._rest)

    def take(self, name: str, default: JsonValue = REQUIRED) -> JsonValue:
        """Take member `name`, any JSON value; `default` if it is missing."""
        return self.take_with(name, _unchanged, default)

    # With the default Required, T is inferred as nothing at all: take_int("a") is an int.

    def take_with(
        self, name: str, convert: Callable[[JsonValue], V], default: T | Required = REQUIRED
    ) -> V | T:
        """Take member `name` as ``convert(value)``; `default` if it is missing.

        Errors of `convert` get the place of the member in front. Without a default, `convert` is
        given :data:`REQUIRED` for a missing member and must raise the same error as for a wrong
        value, as the ``expect_*`` functions do.
        """
        value = self._rest.pop(name, REQUIRED)
        if value is REQUIRED and not isinstance(default, Required):
            return default
        try:
            converted = convert(value)
        except GpustoreError as error:
            raise self.error(error, name) from error.__cause__
        if value is REQUIRED:
            raise self.error(_unexpected("value", value), name)
        return converted

    def take_int(
        self,
        name: str,
        minimum: int = INT64_MIN,
        maximum: int = INT64_MAX,
        default: T | Required = REQUIRED,
    ) -> int | T:
        """Take member `name`, an integer in ``[minimum, maximum]`` (see :func:`expect_int`)."""
        if name not in self._rest and not isinstance(default, Required):
            return default

        def convert(value: JsonValue) -> int:
            return expect_int(value, minimum, maximum, integral_floats=self._integral_floats)

        return self.take_with(name, convert, default)

    def take_bool(self, name: str, default: T | Required = REQUIRED) -> bool | T:
        """Take member `name`, true or false."""
        return self.take_with(name, expect_bool, default)

    def take_str(
        self,
        name: str,
        default: T | Required = REQUIRED,
        *,
        choices: Sequence[str] | None = None,
    ) -> str | T:
        """Take member `name`, a string, one of `choices` if they are given."""
        convert = expect_str if choices is None else partial(expect_str, choices=choices)
        return self.take_with(name, convert, default)

    def take_object(self, name: str, default: T | Required = REQUIRED) -> Members | T:
        """Take member `name`, an object, as a cursor whose errors name its place."""
        return self.take_with(name, lambda value: self._child(expect_object(value), name), default)

    def _child(self, value: JsonValue, name: str) -> Members:
        child = Members(
            value, self._where, status=self._status, integral_floats=self._integral_floats
        )
        child.pointer = f"{self.pointer}/{name.replace('~', '~0').replace('/', '~1')}"
        # A name: a member "0" would be taken for a position if it came from the pointer.
        child._contexts = (*self._contexts, name)
        return child

    def finish(self) -> None:
        """Raise MetadataError if members have not been taken."""
        if self._rest:
            names = ",".join(map(quote, sorted(self._rest)))[:_MAX_QUOTED]
            raise self.error(MetadataError(f"Object includes extra members: {names}"))

    def error(self, error: GpustoreError | str, name: str | None = None) -> GpustoreError:
        """Return `error` with the place of this object, or of its member `name`, in its message."""
        if isinstance(error, str):
            error = MetadataError(error)
        return self._located(error if name is None else error.prefixed(_member_context(name)))

    def _located(self, error: GpustoreError) -> GpustoreError:
        for context in reversed(self._contexts):
            error = error.prefixed(
                _position_context(context) if isinstance(context, int) else _member_context(context)
            )
        suffix = f" (in {self._where})" if self._where else ""
        located = type(error)(
            error.text + suffix,
            status=error.status or self._status,
            key=error.key,
            codec=error.codec,
        )
        located.__cause__ = error.__cause__
        return located


def _unchanged(value: JsonValue) -> JsonValue:
    return value


def _pointer_context(segment: str) -> str | int:
    name = segment.replace("~1", "/").replace("~0", "~")
    return int(name) if name.isdecimal() else name
