"""What holds of every bucket.

Modules that import it have the fixtures `server`, `other_server` (a context manager that makes
another one) and `open_bucket`.
"""

import pytest

from gpustore.errors import StoreIOError
from tests.kvstores.http.http_server import Fault, head
from tests.kvstores.s3.s3_server import refuse

__all__ = [
    "ACTIONS",
    "test_redirect_is_not_followed",
    "test_retry_after_is_obeyed",
]

ACTIONS = {
    "read": lambda store: store.read("a").result(),
    "write": lambda store: store.write("a", b"1").result(),
    "write in parts": lambda store: store.write("a", bytes(100)).result(),
    "delete": lambda store: store.write("a", None).result(),
    "list": lambda store: store.list().result(),
    "list names": lambda store: store.driver.list_names(""),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_redirect_is_not_followed(server, other_server, open_bucket, short_parts, action):
    with other_server() as other:
        other.values["bucket/a"] = b"other"

        def redirect(server, connection, request):
            fields = [("Location", other.url + request.target), ("Content-Length", 0)]
            connection.sendall(head(307, fields))

        server.faults = [Fault(redirect)]
        with pytest.raises(StoreIOError, match=r"Temporary Redirect \[HTTP code 307\]"):
            ACTIONS[action](open_bucket())
        assert other.requests == []


@pytest.mark.parametrize("action", ACTIONS)
def test_retry_after_is_obeyed(server, open_bucket, short_parts, action):
    later = [("Retry-After", "31")]
    server.faults = [Fault(lambda s, c, r: refuse(c, 503, "SlowDown", later))]
    with pytest.raises(StoreIOError, match="SlowDown, and the server wants to be left alone"):
        ACTIONS[action](open_bucket())
    assert len(server.requests) == 1
