"""Servers that are never reached, over all kvstores that send HTTP requests."""

import socket
import warnings

import pytest

from gpustore.errors import NetworkWarning, StoreIOError
from gpustore.kvstores.http import client
from gpustore.kvstores.http.message import Origin
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context
from tests.kvstores.http.http_server import Fault, HttpServer
from tests.matrix import each

PATIENT = {"max_retries": 1_000_000, "initial_delay": "1ms", "max_delay": "5ms"}


@pytest.fixture(autouse=True)
def unknown(monkeypatch):
    """Nothing was reached yet, and there was no warning."""
    monkeypatch.setattr(client, "_reached", set())
    monkeypatch.setattr(client, "_warned", set())


@pytest.fixture
def refusing():
    """An address at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = closed.getsockname()
    return address


@pytest.fixture(params=["http", "s3", "gcs"])
def at(request, monkeypatch):
    """Open a kvstore of each kind at an address."""

    def open_store(address, **timeouts):
        url = f"http://{address[0]}:{address[1]}"
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        spec = {
            "http": {"base_url": url},
            "s3": {"bucket": "bucket", "endpoint": url, "aws_credentials": {"type": "anonymous"}},
            "gcs": {"bucket": "bucket"},
        }[request.param]
        context = {f"{request.param}_request_retries": PATIENT, "http_request_timeouts": timeouts}
        spec = {"driver": request.param, **spec}
        return KvStore.open(spec, context=Context(context)).result()

    return open_store


def error_of(store):
    with pytest.raises(StoreIOError) as caught:
        store.read("a").result()
    return str(caught.value)


def test_default_of_reach():
    assert Context()["http_request_timeouts"].value.reach_s == 10


@pytest.mark.filterwarnings("ignore::gpustore.NetworkWarning")
def test_server_that_refuses_is_given_up_soon_if_it_was_never_reached(at, refusing):
    text = error_of(at(refusing, reach="50ms"))
    assert "retry attempts failed, within 0." in text
    assert f"cannot connect to http://127.0.0.1:{refusing[1]}: Connection refused" in text
    assert "the server was never reached, and is tried for 0.05 s" in text
    assert text.endswith('(member "reach" of the context resource "http_request_timeouts")')


@pytest.mark.filterwarnings("ignore::gpustore.NetworkWarning")
def test_address_that_does_not_answer_is_given_up_soon_if_it_was_never_reached(at, silent):
    text = error_of(at(silent, reach="50ms"))
    assert "no connection within 0.0" in text
    assert "the server was never reached, and is tried for 0.05 s" in text


@pytest.mark.filterwarnings("ignore::gpustore.NetworkWarning")
def test_name_that_cannot_be_looked_up_for_now_is_given_up_soon(monkeypatch):
    real = socket.getaddrinfo

    def busy(host, *args, **options):
        if host == "busy.test":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", busy)
    context = Context({"http_request_retries": PATIENT, "http_request_timeouts": {"reach": "50ms"}})
    store = KvStore.open("http://busy.test:80/", context=context).result()
    text = error_of(store)
    assert "cannot resolve host 'busy.test': Temporary failure in name resolution" in text
    assert "the server was never reached, and is tried for 0.05 s" in text


@each(("failure", "said"), [("refusing", "Connection refused"), ("silent", "no ")])
def test_there_is_one_warning_on_the_way(request, failure, said):
    address = request.getfixturevalue(failure)
    url = f"http://127.0.0.1:{address[1]}"
    timeouts = {"reach": "80ms", "connect": "20ms"}
    context = Context({"http_request_retries": PATIENT, "http_request_timeouts": timeouts})
    store = KvStore.open(f"{url}/", context=context).result()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        error_of(store)
        error_of(store)
    [warning] = caught
    assert warning.category is NetworkWarning
    text = str(warning.message)
    assert text.startswith(f"{url} has not been reached for 0.0 s: ")
    assert said in text
    assert text.endswith(f"it is tried for 0.08 s {client._REACH}")


def test_server_that_was_reached_has_the_whole_time():
    """A server that fails after it has answered is tried as often as before."""
    with HttpServer({"a": b"1"}) as server:
        timeouts = {"reach": "1ms", "total": "20s"}
        retries = {"max_retries": 5, "initial_delay": "1ms", "max_delay": "5ms"}
        context = Context({"http_request_retries": retries, "http_request_timeouts": timeouts})
        store = KvStore.open(f"{server.url}/", context=context).result()
        client._reached.add(Origin.parse("http", server.url.partition("//")[2]))
        server.faults = [Fault(lambda s, c, r: s.serve(c, r, status=503, body=b""))]
        text = error_of(store)
    assert "All 5 retry attempts failed" in text
    assert "reach" not in text
