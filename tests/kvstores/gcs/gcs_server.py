"""A double of the XML API of Google Cloud Storage on loopback: S3's, with numbered generations."""

import itertools

from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.http.http_server import head
from tests.kvstores.s3.s3_server import SOON, S3Server, refuse


def open_gcs(path="", **members):
    """The bucket of a server that the environment, or a constant, names."""
    spec = {"driver": "gcs", "bucket": "bucket", "path": path, "gcs_request_retries": SOON}
    return KvStore.open({**spec, **members}).result()


class GcsServer(S3Server):
    def __init__(self, buckets=("bucket",)):
        self._numbers = itertools.count(1_700_000_000_000_001)
        self.generations = {}
        super().__init__(buckets)

    def serve(self, connection, request, **different):
        path = request.path.removeprefix("/")
        if path in self.values and request.method in ("GET", "HEAD"):
            number = self.generations.setdefault(path, next(self._numbers))
            fields = {"x-goog-generation": number, **dict(different.pop("fields", ()))}
            different["fields"] = fields.items()
        super().serve(connection, request, **different)

    def _change(self, connection, request, path, **different):
        with self._changed:
            number = self.generations.get(path, 0) if path in self.values else 0
            wanted = request.headers.get("x-goog-if-generation-match")
            right = wanted is None or int(wanted) == number
            missing = request.method == "DELETE" and path not in self.values
            if right and request.method == "PUT":
                self.values[path] = request.body
                number = self.generations[path] = next(self._numbers)
            elif right:
                self.values.pop(path, None)
        if not right:
            refuse(connection, 412, "PreconditionFailed")
        elif missing:
            refuse(connection, 404, "NoSuchKey")
        else:
            fields = [("Content-Length", 0), ("ETag", '"x"'), ("x-goog-generation", number)]
            status = 200 if request.method == "PUT" else 204
            connection.sendall(head(different.get("status") or status, fields))
