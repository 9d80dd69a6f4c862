"""Commands that only read give up soon where a server fails."""

import random

import pytest

from tests.kvstores.http.http_server import Fault, HttpServer


@pytest.mark.parametrize("command", ["info", "cat", "du"])
def test_reading_commands_end_after_four_retries(gpustore_command, monkeypatch, command):
    monkeypatch.setattr(random, "uniform", lambda low, high: 0.0)
    with HttpServer({}) as server:
        server.faults = [Fault(lambda s, c, r: s.serve(c, r, status=503, body=b""))]
        code, _, err = gpustore_command(command, f"{server.url}/a.zarr")
        assert code == 1
        assert "All 4 retry attempts failed" in err
        # At most the beginning and the end of a file, and no second look for a group.
        assert len(server.requests) <= 10
