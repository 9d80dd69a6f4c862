"""The ``zlib`` codec.

============  ====================================================================
content       Deflate in a zlib wrapper with an Adler-32 (RFC 1950)
specification https://numcodecs.readthedocs.io/en/stable/compression/zlib.html
v3 name       none
v2 id         ``zlib``
============  ====================================================================

Zarr v2::

    {"id": "zlib", "level": 1}

The default level is 1, TensorStore's. A stored level of -1, which numcodecs writes, is 6, as in
zlib itself. TensorStore refuses such an array.
"""

from __future__ import annotations

from gpustore.codec_chain.base import Codec, CodecVariant, Option, Options, integer
from gpustore.codecs._deflate import Deflate, stored_level


def _prepare(options: Options, itemsize: int | None) -> Deflate:
    del itemsize
    return Deflate("zlib", options["level"])


CODEC = Codec(
    name="zlib",
    v2=CodecVariant(
        options=(
            Option(
                name="level",
                convert=integer(0, 9),
                convert_stored=stored_level,
                default=1,
                stored_default=1,
            ),
        ),
        prepare=_prepare,
    ),
)
