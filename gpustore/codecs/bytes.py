"""The ``bytes`` codec.

============  ====================================================================
content       The elements in C order, each in its own bytes, little or big endian
specification https://zarr-specs.readthedocs.io/en/latest/v3/codecs/bytes/index.html
v3 name       ``bytes``
v2 id         none: ``order`` and the byte order of ``dtype`` say the same
============  ====================================================================

Zarr v3::

    {"name": "bytes", "configuration": {"endian": "little"}}

``endian`` is required in stored metadata if elements have more than one byte, and means nothing
otherwise; new arrays get the byte order of this machine. Elements narrower than a byte take a
whole one each.
"""

from __future__ import annotations

import sys

from gpustore.codec_chain.layout import ChunkBytes
from gpustore.codec_chain.registered import ABSENT, LayoutCodec, Option, Options, choice
from gpustore.errors import MetadataError
from gpustore.metadata.component import Component
from gpustore.strict_json.parsing import JsonValue


def _complete(options: Options, itemsize: int) -> dict[str, JsonValue]:
    if itemsize == 1:
        return {}
    return {"endian": options.get("endian", sys.byteorder)}


def _layout(options: Options, component: Component, shape: tuple[int, ...]) -> ChunkBytes:
    if component.stored.itemsize == 1:
        return ChunkBytes.of_component(component, shape)
    endian = options.get("endian")
    if endian is None and component.name:
        endian = "little"  # Of records zarr-python does not say it.
    if endian is None:
        raise MetadataError(
            f'"bytes" codec requires that "endian" option is specified for data type '
            f"{component.dtype.name}"
        )
    ordered = component.with_byteorder("<" if endian == "little" else ">")
    return ChunkBytes.of_component(ordered, shape)


CODEC = LayoutCodec(
    name="bytes",
    options=(
        Option(
            name="endian",
            convert=choice("little", "big"),
            default=sys.byteorder,
            stored_default=ABSENT,
        ),
    ),
    layout=_layout,
    complete=_complete,
)
