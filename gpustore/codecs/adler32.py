"""The ``adler32`` codec.

============  ======================================================================
content       Four bytes before the data: their Adler-32 (as in zlib), little endian
specification https://numcodecs.readthedocs.io/en/stable/checksum32.html
v3 name       ``numcodecs.adler32``
v2 id         ``adler32``, among the filters
============  ======================================================================

Zarr v2::

    "filters": [{"id": "adler32", "location": "start"}]

``location``, before (``start``) or behind (``end``) the data, is ``start`` if it is absent.
"""

from __future__ import annotations

from numcodecs.checksum32 import Adler32

from gpustore.codecs._checksum import checksum_codec

CODEC = checksum_codec("adler32", Adler32)
