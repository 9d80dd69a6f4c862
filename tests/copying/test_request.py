"""Names of the places of copies in messages."""

import json

from gpustore import Context, Spec
from gpustore.copying.options import Options
from gpustore.copying.request import Request


def test_places_have_names_also_without_a_url():
    kvstore = {"driver": "s3", "bucket": "bucket", "path": "a/", "endpoint": "http://127.0.0.1:9"}
    without = {"driver": "zarr3", "kvstore": kvstore}

    def name(target):
        return Request(target, Options(), None, False, 1, Context(), print).name

    assert name("a.zarr") == "a.zarr"
    assert name(Spec("s3://bucket/a|zarr3:")) == "s3://bucket/a/|zarr3:"
    assert json.loads(name(without)) == without
