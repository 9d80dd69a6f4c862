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

from gpustore.codec_chain.registered import Codec
from gpustore.codecs._deflate import LEVEL_V2, deflate_variant

CODEC = Codec(name="zlib", v2=deflate_variant("zlib", LEVEL_V2))
