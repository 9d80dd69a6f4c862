"""moto, a double of S3 that is neither ours nor Amazon's, on loopback."""

import logging
import urllib.request
from contextlib import contextmanager

import pytest


@contextmanager
def moto():
    """Yield the URL of a server; skip the test where moto is not installed."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


def make_bucket(endpoint, name="bucket"):
    """Create a bucket of a server that may have it already."""
    request = urllib.request.Request(f"{endpoint}/{name}", method="PUT")
    with urllib.request.urlopen(request) as response:
        assert response.status == 200
