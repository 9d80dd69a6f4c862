"""Servers that tests of several kvstores stand on, one for each module."""

import select
import socket

import pytest

from tests.kvstores.gcs.gcs_server import GcsServer
from tests.kvstores.s3.s3_server import S3Server


@pytest.fixture(scope="module")
def s3():
    with S3Server() as server:
        yield server


@pytest.fixture(scope="module")
def gcs():
    with GcsServer() as server:
        yield server


@pytest.fixture
def short_parts(monkeypatch):
    """Values of 100 bytes are written in parts."""
    monkeypatch.setattr("gpustore.kvstores.buckets.bucket.WHOLE_NBYTES", 99)


@pytest.fixture
def silent():
    """An address that answers no attempt to connect."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        for _ in range(50):
            one = socket.socket()
            waiting.append(one)
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
            poll = select.poll()
            poll.register(one, select.POLLOUT)
            if not poll.poll(200):
                break
        else:
            pytest.skip("this system accepts any number of connections")
        yield listener.getsockname()
        for one in waiting:
            one.close()
