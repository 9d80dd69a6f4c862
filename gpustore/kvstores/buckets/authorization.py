"""Requests to a bucket with credentials in their header fields.

Credentials are fetched once for a batch of requests; their owner renews them in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from gpustore.kvstores.http.message import HttpRequest

Asked: TypeAlias = tuple[str, str, str]
"""Method, path and query of a request, both percent-encoded; the query may be empty."""


class Authorization(Protocol):
    """Makes requests with credentials in their header fields. Thread-safe."""

    @property
    def is_anonymous(self) -> bool:
        """Whether requests carry no credentials, as far as is known before the first one."""

    def requests(self, asked: Iterable[Asked]) -> Iterator[HttpRequest]:
        """Make a request for each member of `asked`, each when the iterator reaches it.

        Raises
        ------
        StoreIOError
            If credentials are missing or cannot be fetched; before the first request.
        UnsupportedError
            If the package that fetches credentials is not installed.
        """


@dataclass(frozen=True, slots=True)
class SameFields:
    """Authorization by the same header fields for all requests of a batch.

    Attributes
    ----------
    is_anonymous : bool
        Whether the fields hold no credentials.
    fields : callable
        Returns the header fields, fetched once a batch.
    """

    is_anonymous: bool
    fields: Callable[[], Mapping[str, str]] = field(repr=False)

    def requests(self, asked: Iterable[Asked]) -> Iterator[HttpRequest]:
        fields = self.fields()
        return (request_for(one, fields) for one in asked)


def request_for(asked: Asked, fields: Mapping[str, str]) -> HttpRequest:
    """Make a request for `asked` whose header fields are a copy of `fields`."""
    method, path, query = asked
    return HttpRequest(method, f"{path}?{query}" if query else path, dict(fields))
