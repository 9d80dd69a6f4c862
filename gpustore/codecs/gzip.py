"""The ``gzip`` codec.

============  ====================================================================
content       Deflate in a gzip wrapper with a CRC-32 (RFC 1952)
specification https://zarr-specs.readthedocs.io/en/latest/v3/codecs/gzip/index.html
v3 name       ``gzip``
v2 id         ``gzip``
============  ====================================================================

Zarr v3::

    {"name": "gzip", "configuration": {"level": 6}}

Zarr v2::

    {"id": "gzip", "level": 1}

The default level is 6 in v3 and 1 in v2, TensorStore's; a level of -1 stored in v2 is 6, see
``zlib``. A level is the effort of zlib at it; other libraries make the streams
(:mod:`gpustore.codecs._deflate`). Several gzip members in a row are read
if together they are exactly one chunk; TensorStore reads the first alone. Bytes after the end
are an error; TensorStore ignores them in v3.
"""

from __future__ import annotations

from gpustore.codec_chain.registered import Codec, Option, integer
from gpustore.codecs._deflate import LEVEL_V2, deflate_variant

CODEC = Codec(
    name="gzip",
    # Decoding needs no level: codecs may be given by name alone.
    v3=deflate_variant(
        "gzip", Option(name="level", convert=integer(0, 9), default=6, stored_default=6)
    ),
    v2=deflate_variant("gzip", LEVEL_V2),
)
