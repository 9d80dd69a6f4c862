"""Requests to a bucket that show who asks, in header fields.

Credentials are asked for once a batch; whoever has them renews them in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from gpustore.kvstores.http.message import HttpRequest

Asked: TypeAlias = tuple[str, str, str]
"""Method, path and query of a request, both percent-encoded; the query may be empty."""


class Authorization(Protocol):
    """Makes requests that show who asks. Thread-safe."""

    @property
    def is_anonymous(self) -> bool:
        """Whether requests show nobody, as far as is known before the first one."""

    def requests(self, asked: Iterable[Asked]) -> Iterator[HttpRequest]:
        """Make a request for each member of `asked`, when its turn comes.

        Raises
        ------
        StoreIOError
            If there are no credentials, or they cannot be fetched; before the first request.
        UnsupportedError
            If a package that would fetch them is not installed.
        """


@dataclass(frozen=True, slots=True)
class SameFields:
    """The same header fields for all requests of a batch.

    Attributes
    ----------
    is_anonymous : bool
    fields : callable
        Returns them.
    """

    is_anonymous: bool
    fields: Callable[[], Mapping[str, str]] = field(repr=False)

    def requests(self, asked: Iterable[Asked]) -> Iterator[HttpRequest]:
        fields = self.fields()
        return (request_for(one, fields) for one in asked)


def request_for(asked: Asked, fields: Mapping[str, str]) -> HttpRequest:
    """Make a request with a copy of `fields`."""
    method, path, query = asked
    return HttpRequest(method, f"{path}?{query}" if query else path, dict(fields))
