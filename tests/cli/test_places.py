"""``--anon`` and ``--endpoint``."""

import os
from argparse import Namespace

import numpy as np

import gpustore
from gpustore.cli.places import reading_context, spec_of
from tests.kvstores.http.http_server import HttpServer


def test_anonymous_requests_with_few_retries(monkeypatch):
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "")
    context = reading_context(Namespace(anon=True, endpoint=None))
    assert context["aws_credentials"].to_json() == {"type": "anonymous"}
    assert os.environ["GOOGLE_SKIP_SIGNATURE"] == "true"
    for kind in ("http", "s3", "gcs"):
        assert context[f"{kind}_request_retries"].to_json()["max_retries"] == 4
    plain = reading_context(Namespace(anon=False, endpoint=None))
    assert plain["aws_credentials"].to_json() == {"type": "default"}


def test_an_endpoint_goes_into_the_spec(gpustore_command, tmp_path):
    arguments = Namespace(anon=False, endpoint="http://127.0.0.1:9")
    spec = spec_of("s3://bucket/x.zip|zip:a|zarr3:|cast:float32", arguments)
    zipped = spec["base"]["kvstore"]
    assert zipped["base"]["endpoint"] == "http://127.0.0.1:9"
    assert gpustore.Spec(spec).to_json() == spec
    assert spec_of("x.zarr", Namespace(anon=False, endpoint=None)) == "x.zarr"
    code, out, err = gpustore_command("ls", tmp_path, "--endpoint", "http://127.0.0.1:9")
    assert (code, out) == (1, "")
    assert "--endpoint is the server of s3:// URLs" in err


def test_a_public_bucket_of_another_server(gpustore_command, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "")
    data = np.arange(4, dtype="uint8")
    gpustore.open(f"{tmp_path}/a|zarr3:", create=True, data=data).result()
    files = {f"bucket/a/{name}": (tmp_path / "a" / name).read_bytes() for name in ("zarr.json",)}
    with HttpServer(files) as server:
        at = ("s3://bucket/a/zarr.json", "--endpoint", server.url)
        code, out, _ = gpustore_command("cat", *at, "--anon")
        assert (code, '"shape"' in out) == (0, True)
        assert not any("authorization" in str(one).lower() for one in server.requests)
