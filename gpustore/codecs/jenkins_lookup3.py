"""The ``jenkins_lookup3`` codec.

============  ======================================================================
content       Four bytes behind the data: Bob Jenkins' lookup3 of them as in HDF5
specification https://numcodecs.readthedocs.io/en/stable/checksum32.html
v3 name       ``numcodecs.jenkins_lookup3``
v2 id         ``jenkins_lookup3``, among the filters
============  ======================================================================

Zarr v2::

    "filters": [{"id": "jenkins_lookup3"}]

``initval``, the seed, is 0 if it is absent. ``prefix``, bytes in front of the data, has no form in
JSON: it is null.
"""

from __future__ import annotations

from numcodecs.checksum32 import JenkinsLookup3

from gpustore.codec_chain.registered import ABSENT, Codec, CodecVariant, Option, Options, integer
from gpustore.codecs._checksum import Checksum
from gpustore.errors import MetadataError
from gpustore.strict_json.parsing import JsonValue, text


def _prefix(value: JsonValue) -> None:
    if value is not None:
        raise MetadataError(f"Expected null, but received: {text(value)}")


def _prepare(options: Options, itemsize: int | None) -> Checksum:
    del itemsize
    return Checksum("jenkins_lookup3", JenkinsLookup3(initval=options["initval"]))


CODEC = Codec(
    name="jenkins_lookup3",
    filter=CodecVariant(
        options=(
            Option(name="initval", convert=integer(0, 2**32 - 1), default=0, stored_default=0),
            Option(name="prefix", convert=_prefix, default=ABSENT, stored_default=ABSENT),
        ),
        prepare=_prepare,
    ),
)
