"""The ``fletcher32`` codec.

============  ======================================================================
content       Four bytes behind the data: their Fletcher-32 as in HDF5
specification https://numcodecs.readthedocs.io/en/stable/checksum32.html
v3 name       ``numcodecs.fletcher32``
v2 id         ``fletcher32``, among the filters
============  ======================================================================

Zarr v2::

    "filters": [{"id": "fletcher32"}]

The bytes are those of HDF5's filter of that name. The codec has no options.
"""

from __future__ import annotations

from numcodecs.fletcher32 import Fletcher32

from gpustore.codec_chain.registered import Codec, CodecVariant, Options
from gpustore.codecs._checksum import Checksum


def _prepare(options: Options, itemsize: int | None) -> Checksum:
    del options, itemsize
    return Checksum("fletcher32", Fletcher32())


CODEC = Codec(name="fletcher32", filter=CodecVariant(options=(), prepare=_prepare))
