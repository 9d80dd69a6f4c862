"""The ``vlen-bytes`` codec.

============  ===========================================================================
content       Bytes of any length, each element as its length and its bytes
specification https://github.com/zarr-developers/zarr-extensions/tree/main/codecs/vlen-bytes
v3 name       ``vlen-bytes``, of data type ``bytes`` or ``variable_length_bytes``
v2 id         ``vlen-bytes``, the first of the filters of dtype ``|O``
============  ===========================================================================

Zarr v3::

    {"name": "vlen-bytes"}

Zarr v2::

    "filters": [{"id": "vlen-bytes"}]

TensorStore has no such arrays.
"""

from __future__ import annotations

from numcodecs.vlen import VLenBytes

from gpustore.codec_chain.vlen import VlenCodec
from gpustore.data_types.dtype import string

_LIBRARY = VLenBytes()

CODEC = VlenCodec(
    name="vlen-bytes",
    dtype=string,
    encode_library=_LIBRARY.encode,
    decode_library=_LIBRARY.decode,
)
