"""Errors of credential services."""

import threading

import pytest

from gpustore.errors import StoreIOError
from gpustore.kvstores.buckets.credential_service import CredentialServices
from gpustore.resources._retries import Retries
from gpustore.resources.http_request_timeouts import Timeouts
from tests.kvstores.http.http_server import HttpServer


def test_refusal_is_told_to_the_thread_that_was_refused():
    services = CredentialServices(Retries(0, 0.1, 0.1), Timeouts(5.0, 5.0, 5.0, 5.0), "keyless")

    def fetch():
        services.send("GET", f"{server.url}/missing", {}, None)
        other = threading.Thread(target=services.ask, args=("library", lambda: None))
        other.start()
        other.join()
        raise LookupError

    with HttpServer() as server, pytest.raises(StoreIOError, match=r"HTTP code 404\]"):
        services.ask("library", fetch)
