"""The ``categorize`` codec.

============  ======================================================================
content       The number of each string in a list of labels
specification https://numcodecs.readthedocs.io/en/stable/filter/categorize.html
v3 name       none
v2 id         ``categorize``, among the filters
============  ======================================================================

Zarr v2::

    "filters": [{"id": "categorize", "labels": ["male", "female"], "dtype": "<U6", "astype": "|u1"}]

Labels count from 1; another string is stored as 0, and a number without a label decodes to the
empty string. numcodecs also has the codec for Python objects, which gpustore refuses.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpustore.codec_chain.registered import ABSENT, Codec, Option, Options
from gpustore.codec_chain.value import Elements, Types, ValueStage, ValueVariant, numpy_type
from gpustore.errors import MetadataError, UnsupportedError
from gpustore.strict_json.parsing import (
    REQUIRED,
    JsonValue,
    at_position,
    expect_list,
    expect_str,
    text,
)

_STRINGS = re.compile(r"[<>]U[1-9][0-9]{0,5}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Categorize(ValueStage):
    name = "categorize"
    decode_ns = 1.0
    labels: tuple[str, ...]

    def to_encoded(self, decoded: NDArray[Any], encoded: NDArray[Any]) -> None:
        """Return the number of the last label that equals each string."""
        encoded[:] = 0
        for i, label in enumerate(self.labels):
            encoded[decoded == label] = i + 1

    def to_decoded(self, encoded: NDArray[Any], decoded: NDArray[Any]) -> None:
        """Return the labels, cut to the length of the strings."""
        table = np.array(["", *self.labels]).astype(self.decoded)
        known = (encoded > 0) & (encoded < len(table))
        decoded[:] = table[np.where(known, encoded, 0).astype(np.intp)]


def _labels(value: JsonValue) -> JsonValue:
    labels = []
    for index, label in enumerate(expect_list(value)):
        with at_position(index):
            labels.append(expect_str(label))
    return labels


def _strings(value: JsonValue) -> JsonValue:
    word = expect_str(value)
    if word in ("|O", "O", "object"):
        raise UnsupportedError(f"strings that are Python objects are not supported: {text(word)}")
    if not _STRINGS.fullmatch(word):
        raise MetadataError(f"Expected a data type of strings, but received: {text(value)}")
    return word


def _types(options: Options, dtype: np.dtype[Any]) -> Types:
    del dtype
    return np.dtype(options["dtype"]), np.dtype(options["astype"])


def _prepare(options: Options, decoded: Elements, encoded: Elements) -> _Categorize:
    labels = tuple(options["labels"])
    if len(labels) > np.iinfo(encoded.dtype).max:
        raise MetadataError(
            f"{len(labels)} labels are more than type {encoded.dtype.name} has numbers for"
        )
    return _Categorize(decoded.dtype, encoded.dtype, labels)


CODEC = Codec(
    name="categorize",
    filter=ValueVariant(
        options=(
            Option(name="labels", convert=_labels, default=ABSENT, constraint_default=REQUIRED),
            Option(name="dtype", convert=_strings, default=ABSENT, constraint_default=REQUIRED),
            Option(name="astype", convert=numpy_type("iu"), default="|u1", stored_default="|u1"),
        ),
        prepare=_prepare,
        types=_types,
        type_option="dtype",
    ),
)
