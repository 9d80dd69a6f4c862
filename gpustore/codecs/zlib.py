"""The ``zlib`` codec.

============  ====================================================================
what          Deflate in a zlib wrapper with an Adler-32 (RFC 1950)
specification https://numcodecs.readthedocs.io/en/stable/compression/zlib.html
v3 name       none
v2 id         ``zlib``
============  ====================================================================

Zarr v2::

    {"id": "zlib", "level": 1}

The default level is 1, TensorStore's. Level -1, zlib's own default, is read because numcodecs
writes it; TensorStore refuses such an array.
"""

from __future__ import annotations

from gpustore.codecs._deflate import Deflate
from gpustore.codecs.base import Codec, Face, Option, Options, integer

__all__ = ["CODEC"]


def _prepare(options: Options, itemsize: int | None) -> Deflate:
    del itemsize
    return Deflate("zlib", options["level"])


CODEC = Codec(
    name="zlib",
    v2=Face(
        options=(
            Option(
                name="level",
                convert=integer(0, 9),
                convert_stored=integer(-1, 9),
                default=1,
                stored_default=1,
            ),
        ),
        prepare=_prepare,
    ),
)
