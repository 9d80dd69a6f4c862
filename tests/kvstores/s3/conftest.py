"""A server that the environment has keys for."""

import pytest

from tests.kvstores.s3.s3_server import S3Server


@pytest.fixture(scope="module")
def shared_server():
    with S3Server() as server:
        yield server


@pytest.fixture
def server(shared_server, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    yield shared_server
    shared_server.forget()
