"""Servers that tests of several kvstores stand on, one for each module."""

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
