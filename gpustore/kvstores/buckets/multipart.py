"""Multipart uploads: long values are stored in parts that the server puts together.

1. An upload is begun; the server returns its identifier.
2. Parts are sent, as many at once as requests are permitted.
3. The server puts them together, under a condition if there is one. It may answer 200 and have
   failed.
4. After a failure all requests under way are waited for, and then the parts are deleted: a part
   that arrived later would be stored, and charged, for ever.

Source: Amazon S3 API reference, "Uploading and copying objects using multipart upload"; Google
Cloud Storage documentation, "XML API multipart uploads", which are the same requests.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, tostring

from gpustore.errors import GpustoreError, StoreIOError
from gpustore.kvstores.buckets.authorization import Asked
from gpustore.kvstores.buckets.listing import parse_xml
from gpustore.kvstores.http.client import HttpClient
from gpustore.kvstores.http.message import HttpRequest, HttpResponse
from gpustore.runtime.cancel_token import Cancelled

PART_NBYTES: Final = 16 << 20
_MOST_PARTS: Final = 10_000
_AT_ONCE: Final = 32
"""Number of parts that are sent together, before their responses are checked."""

_PASSING_CODES: Final = (b">InternalError<", b">ServiceUnavailable<", b">SlowDown<")
"""Codes of transient errors in a response of status 200."""


@dataclass(frozen=True, slots=True)
class MultipartUpload:
    """Uploads values to one bucket in parts.

    Attributes
    ----------
    client : HttpClient
    requests : callable
        Makes requests with credentials, :meth:`Authorization.requests`.
    """

    client: HttpClient
    requests: Callable[[Iterable[Asked]], Iterator[HttpRequest]]

    def store(
        self, path: str, value: memoryview, condition: tuple[str, str] | None
    ) -> HttpResponse:
        """Store a value in parts of at least 16 MiB, at most 10,000 of them.

        Parameters
        ----------
        path : str
            Path of the object, percent-encoded.
        value : memoryview
            Contiguous bytes in host memory.
        condition : tuple of str, optional
            Name and value of a header field of the last request.

        Returns
        -------
        HttpResponse
            Response to the last request, of any status. A successful one gets the field ``etag``
            from its body.

        Raises
        ------
        GpustoreError
            If another request fails, or the last one gets no response.
        """
        response = self._send("POST", path, "uploads=")
        upload = _element(response, "InitiateMultipartUploadResult", "UploadId")
        if not upload:
            raise StoreIOError("the response does not name an upload", status="UNKNOWN")
        query = f"uploadId={quote(upload, safe='')}"
        try:
            tags = self._parts(path, query, value)
            response = self._complete(path, query, tags, condition)
            if 200 <= response.status < 300:
                tag = _element(response, "CompleteMultipartUploadResult", "ETag")
                if not tag:
                    raise StoreIOError(
                        "the response does not say what was written", status="UNKNOWN"
                    )
                response.headers["etag"] = tag
        except Cancelled:
            # Requests of this thread are cancelled; another thread deletes the parts.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._abort, args=(path, query), daemon=True).start()
            raise
        except GpustoreError:
            self._abort(path, query)
            raise
        if not 200 <= response.status < 300:
            self._abort(path, query)
        return response

    def _send(self, method: str, path: str, query: str, body: bytes = b"") -> HttpResponse:
        [request] = self.requests([(method, path, query)])
        request.body = body
        response = self.client.send_one(request)
        if not 200 <= response.status < 300:
            raise self.client.status_error(response)
        return response

    def _abort(self, path: str, query: str) -> None:
        """Delete the parts if the server can be reached."""
        with contextlib.suppress(GpustoreError, Cancelled):
            self._send("DELETE", path, query)

    def _parts(self, path: str, query: str, value: memoryview) -> list[str]:
        """Send the parts and return their entity tags."""
        nbytes = max(PART_NBYTES, -(-len(value) // _MOST_PARTS))
        starts = range(0, len(value), nbytes)
        tags: list[str] = []
        while len(tags) < len(starts):
            numbers = range(len(tags), min(len(tags) + _AT_ONCE, len(starts)))
            # Signatures require names in this order.
            asked = [("PUT", path, f"partNumber={number + 1}&{query}") for number in numbers]
            parts = (value[starts[number] : starts[number] + nbytes] for number in numbers)
            for response in self.client.send(map(_with_body, self.requests(asked), parts)):
                if isinstance(response, GpustoreError):
                    raise response
                if not 200 <= response.status < 300:
                    raise self.client.status_error(response)
                tags.append(response.headers.get("etag", ""))
        if "" in tags:
            raise StoreIOError("a response does not say which part was stored", status="UNKNOWN")
        return tags

    def _complete(
        self, path: str, query: str, tags: list[str], condition: tuple[str, str] | None
    ) -> HttpResponse:
        """Have the server put the parts together; transient errors of status 200 are retried."""
        root = Element("CompleteMultipartUpload")
        for number, tag in enumerate(tags, 1):
            part = SubElement(root, "Part")
            SubElement(part, "PartNumber").text = str(number)
            SubElement(part, "ETag").text = tag
        body = tostring(root)
        retries, attempts, lost = self.client.retries, 0, False
        until = time.monotonic() + self.client.timeouts.total_s
        while True:
            [request] = self.requests([("POST", path, query)])
            request.body = body
            if condition is not None:
                request.headers[condition[0]] = condition[1]
            response = self.client.send_one(request)
            attempts += response.attempts
            lost |= response.lost
            response.attempts, response.lost = attempts, lost
            answer = bytes(response.body)
            if response.status != 200 or b"<Error>" not in answer:
                return response
            passes = any(code in answer for code in _PASSING_CODES)
            if not passes or attempts > retries.max_retries or time.monotonic() > until:
                raise self.client.status_error(response)
            lost = True
            longest = min(retries.max_delay_s, retries.initial_delay_s * 2.0 ** min(attempts, 60))
            time.sleep(random.uniform(0.0, min(longest, max(0.0, until - time.monotonic()))))


def _with_body(request: HttpRequest, body: memoryview) -> HttpRequest:
    request.body = body
    return request


def _element(response: HttpResponse, root: str, name: str) -> str:
    """Return the text of an element of a response; empty if there is none."""
    try:
        found = parse_xml(bytes(response.body), root)
    except ValueError:
        return ""
    return (found.findtext(found.tag.removesuffix(root) + name) or "").strip()
