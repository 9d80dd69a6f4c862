"""A server that takes Google's place, and a token for it."""

import pytest

from gpustore.kvstores import gcs
from gpustore.kvstores.http.message import Origin
from tests.kvstores.gcs.gcs_server import GcsServer


@pytest.fixture(scope="module")
def shared_server():
    with GcsServer() as server:
        yield server


@pytest.fixture
def server(shared_server, monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.delenv("GOOGLE_SKIP_SIGNATURE", raising=False)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "TOKEN")
    monkeypatch.setattr(gcs, "GOOGLE", Origin("http", "127.0.0.1", shared_server.port))
    yield shared_server
    shared_server.forget()
