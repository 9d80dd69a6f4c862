"""The ``crc32`` codec.

============  ======================================================================
content       Four bytes before the data: their CRC-32 (as in gzip), little endian
specification https://numcodecs.readthedocs.io/en/stable/checksum32.html
v3 name       ``numcodecs.crc32``
v2 id         ``crc32``, among the filters
============  ======================================================================

Zarr v2::

    "filters": [{"id": "crc32", "location": "start"}]

``location``, before (``start``) or behind (``end``) the data, is ``start`` if it is absent.
"""

from __future__ import annotations

from numcodecs.checksum32 import CRC32

from gpustore.codecs._checksum import checksum_codec

CODEC = checksum_codec("crc32", CRC32)
