"""A double of S3 on loopback, as fast as the tests of every day want it; it can also do wrong.

How S3 answers was taken from its documentation; moto, another double, is asked the same questions
in the long tests (test_s3_moto.py).
"""

import hashlib
from urllib.parse import parse_qs, quote_plus
from xml.sax.saxutils import escape

from gpustore.kvstores.kvstore import KvStore
from tests.kvstores.http.http_server import HttpServer, head

SOON = {"max_retries": 3, "initial_delay": "1ms", "max_delay": "2ms"}

DATE = "Thu, 01 Jan 2026 00:00:00 GMT"
DATE_XML = "2026-01-01T00:00:00.000Z"


def open_s3(server, path="", **members):
    """The bucket of a server."""
    spec = {"driver": "s3", "bucket": "bucket", "endpoint": server.url, "path": path}
    return KvStore.open({"s3_request_retries": SOON, **spec, **members}).result()


def shown_by(request):
    """The parts of the field that shows who asks."""
    field = request.headers.get("authorization", "").removeprefix("AWS4-HMAC-SHA256 ")
    return dict(part.split("=", 1) for part in field.split(", ")) if field else {}


def refuse(connection, status, code, fields=()):
    """Answer with an error as S3 does."""
    body = f"<Error><Code>{code}</Code><Message>about it</Message><Key>SECRET</Key></Error>"
    found = {"Content-Length": len(body), "Content-Type": "application/xml", **dict(fields)}
    connection.sendall(head(status, found.items()) + body.encode())


class S3Server(HttpServer):
    """Values are by bucket and key: ``"bucket/a/b"``. `buckets` are those that there are.

    `encodes` says whether names in lists are percent-encoded if it is asked for.
    """

    def __init__(self, buckets=("bucket",)):
        self.buckets = set(buckets)
        self.encodes = True
        self.page_keys = 1000
        self.parts = {}
        super().__init__()

    def forget(self):
        """Forget parts and the length of a page, too."""
        super().forget()
        self.parts.clear()
        self.page_keys = 1000

    def serve(self, connection, request, **different):
        path = request.path.removeprefix("/")
        bucket, _, key = path.partition("/")
        if bucket not in self.buckets:
            if request.method == "HEAD":
                connection.sendall(head(404, [("Content-Length", 0)]))
                return
            refuse(connection, 404, "NoSuchBucket")
        elif "upload" in request.query.lower():
            self._upload(connection, request, path)
        elif request.method == "GET" and not key:
            self._list(connection, request, bucket)
        elif request.method in ("PUT", "DELETE"):
            self._change(connection, request, path, **different)
        elif request.method == "GET" and path not in self.values and "body" not in different:
            refuse(connection, 404, "NoSuchKey")
        else:
            fields = {"Last-Modified": DATE, **dict(different.pop("fields", ()))}
            super().serve(connection, request, fields=fields, **different)

    def _change(self, connection, request, path, **different):
        with self._changed:
            stored = self.values.get(path)
            tag = None if stored is None else f'"{hashlib.md5(stored).hexdigest()}"'
            wanted = request.headers.get("if-match")
            new = None
            if request.headers.get("if-none-match") == "*" and tag is not None:
                wrong = 412, "PreconditionFailed"
            elif wanted is not None and tag is None:
                wrong = 404, "NoSuchKey"
            elif wanted is not None and tag != wanted:
                wrong = 412, "PreconditionFailed"
            else:
                wrong = None
                if request.method == "PUT":
                    self.values[path] = request.body
                    new = f'"{hashlib.md5(request.body).hexdigest()}"'
                else:
                    self.values.pop(path, None)
        if wrong:
            refuse(connection, *wrong)
        else:
            fields = [("Content-Length", 0)] + ([("ETag", new)] if new else [])
            status = different.get("status") or (200 if new else 204)
            connection.sendall(head(status, fields))

    def _upload(self, connection, request, path):
        """Begin a value in parts, take one, put them together, or forget them."""
        query = {name: values[0] for name, values in parse_qs(request.query, True).items()}
        fields, body = [], b""
        with self._changed:
            if "uploads" in query:
                name = f"upload{len(self.parts)}"
                self.parts[name] = {}
                root = "InitiateMultipartUploadResult"
                body = f"<{root}><UploadId>{name}</UploadId></{root}>".encode()
            elif request.method == "PUT":
                self.parts[query["uploadId"]][int(query["partNumber"])] = request.body
                fields = [("ETag", f'"{query["partNumber"]}"')]
            elif request.method == "POST":
                parts = self.parts.pop(query["uploadId"])
                self.values[path] = b"".join(parts[number] for number in sorted(parts))
                fields = [("x-goog-generation", 77)]
                root = "CompleteMultipartUploadResult"
                body = f'<{root}><ETag>"whole"</ETag></{root}>'.encode()
            else:
                self.parts.pop(query["uploadId"], None)
        fields.append(("Content-Length", len(body)))
        connection.sendall(head(200, fields) + body)

    def _about(self, kind, path):
        if kind != "Contents":
            return ""
        fields = {"Size": len(self.values[path]), "LastModified": DATE_XML, "ETag": "&quot;x&quot;"}
        return "".join(f"<{name}>{text}</{name}>" for name, text in fields.items())

    def _list(self, connection, request, bucket):
        query = {name: values[0] for name, values in parse_qs(request.query).items()}
        encodes = self.encodes and query.get("encoding-type") == "url"
        prefix, after = query.get("prefix", ""), query.get("start-after", "")
        after = query.get("continuation-token", after)
        names = []
        for path in sorted(self.values):
            key = path.removeprefix(f"{bucket}/")
            if key == path or not key.startswith(prefix):
                continue
            if query.get("delimiter") and query["delimiter"] in key[len(prefix) :]:
                key = prefix + key[len(prefix) :].partition("/")[0] + "/"
                name = "CommonPrefixes", key
            else:
                name = "Contents", key
            if key > after and name not in names:
                names.append(name)
        page, rest = names[: self.page_keys], names[self.page_keys :]
        inner = {"Contents": "Key", "CommonPrefixes": "Prefix"}
        body = ""
        for kind, name in page:
            about = self._about(kind, f"{bucket}/{name}")
            text = quote_plus(name, safe="/") if encodes else escape(name)
            body += f"<{kind}><{inner[kind]}>{text}</{inner[kind]}>{about}</{kind}>"
        if rest:
            body += f"<NextContinuationToken>{escape(page[-1][1])}</NextContinuationToken>"
        body = (
            '<?xml version="1.0" encoding="utf-8"?>\n'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"{'<EncodingType>url</EncodingType>' if encodes else ''}"
            f"<IsTruncated>{str(bool(rest)).lower()}</IsTruncated>"
            f"{body}</ListBucketResult>"
        ).encode()
        connection.sendall(head(200, [("Content-Length", len(body))]) + body)
