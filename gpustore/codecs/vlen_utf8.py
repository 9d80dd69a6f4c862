"""The ``vlen-utf8`` codec.

============  ==========================================================================
content       Strings of any length, each as its length and its UTF-8
specification https://github.com/zarr-developers/zarr-extensions/tree/main/codecs/vlen-utf8
v3 name       ``vlen-utf8``, of data type ``string``
v2 id         ``vlen-utf8``, the first of the filters of dtype ``|O``
============  ==========================================================================

Zarr v3::

    {"name": "vlen-utf8"}

Zarr v2::

    "filters": [{"id": "vlen-utf8"}]

NUL characters are kept. TensorStore has no such arrays.
"""

from __future__ import annotations

from numcodecs.vlen import VLenUTF8

from gpustore.codec_chain.vlen import VlenCodec
from gpustore.data_types.dtype import ustring

_LIBRARY = VLenUTF8()

CODEC = VlenCodec(
    name="vlen-utf8",
    dtype=ustring,
    encode_library=_LIBRARY.encode,
    decode_library=_LIBRARY.decode,
)
