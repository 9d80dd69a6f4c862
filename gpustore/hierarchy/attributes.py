"""Attributes of an array or a group: :class:`Attributes`.

Source: Zarr v2 specification, "Attributes" (``.zattrs``); Zarr v3 core specification, the member
``attributes`` of ``zarr.json``. Names follow zarr-python.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from gpustore.errors import MetadataError, NotFoundError, prefixing
from gpustore.kvstores.json_file import JsonFile
from gpustore.runtime.executor import Executor
from gpustore.runtime.future import Future, failed
from gpustore.strict_json.parsing import (
    InvalidJsonError,
    JsonValue,
    check_depth,
    dump,
    expect_object,
    from_python,
    in_member,
    quote,
)

_MAX_DEPTH: Final = 60
"""Nesting of attributes: consolidated metadata have them four levels deep, of 64 that are read."""


class Attributes(Mapping[str, JsonValue]):
    """User attributes of an array or a group, a mutable mapping of names to JSON values.

    Lookups cost no I/O: they show the attributes as of the last reading, or of the last change
    through this object. Every change is atomic: it applies to the attributes stored at that moment,
    under their generation, so that writers of different attributes do not undo each other.

    Parameters
    ----------
    file : JsonFile
        The document that holds the attributes.
    member : str or None
        Member of the document with the attributes; None if the whole document is the attributes,
        which then need not exist.
    executor : Executor
        Threads for reading and writing.
    values : mapping, optional
        Attributes read before; read on the first lookup by default.
    reserved : frozenset of str
        Members of the document that are no attributes and stay as they are.
    writable : bool
    before : callable, optional
        Called before each change is stored.

    Examples
    --------
    >>> import gpustore
    >>> group = gpustore.open_group("memory://a", create=True, attributes={"unit": "mm"}).result()
    >>> group.attrs["n"] = 3
    >>> group.attrs.update({"unit": "m"}, author="me").result()
    >>> group.attrs
    Attributes({'author': 'me', 'n': 3, 'unit': 'm'})
    """

    __slots__ = ("_before", "_executor", "_file", "_member", "_reserved", "_values", "_writable")

    def __init__(
        self,
        file: JsonFile,
        member: str | None,
        executor: Executor,
        *,
        values: Mapping[str, JsonValue] | None = None,
        reserved: frozenset[str] = frozenset(),
        writable: bool = True,
        before: Callable[[], None] | None = None,
    ) -> None:
        self._file = file
        self._member = member
        self._executor = executor
        self._values = values
        self._reserved = reserved
        self._writable = writable
        self._before = before

    # ---- looking

    def _known(self) -> Mapping[str, JsonValue]:
        if self._values is None:
            self._values = self._part(self._file.read()[0])
        return self._values

    def __getitem__(self, name: str) -> JsonValue:
        # A copy, since a change in the cached value would not be stored.
        return copy.deepcopy(self._known()[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())

    def __contains__(self, name: object) -> bool:
        return name in self._known()

    def asdict(self) -> dict[str, JsonValue]:
        """Return all attributes as a new dict."""
        return copy.deepcopy(dict(self._known()))

    def read(self) -> Future[dict[str, JsonValue]]:
        """Read the attributes again and return them as a new dict.

        Raises
        ------
        NotFoundError, MetadataError, StoreIOError
            Through the Future.
        """

        def run() -> dict[str, JsonValue]:
            self._values = self._part(self._file.read()[0])
            return self.asdict()

        if self._file.store.is_local:
            return Future.deferred(run, self._executor)
        return self._executor.submit(run)

    # ---- changing

    def __setitem__(self, name: str, value: Any) -> None:
        """Set one and wait until it is stored."""
        self.update({name: value}).result()

    def __delitem__(self, name: str) -> None:
        """Remove one and wait; KeyError if it is not stored."""

        def without(stored: dict[str, JsonValue]) -> dict[str, JsonValue]:
            if name not in stored:
                raise NotFoundError(f"attribute {quote(name)} is not in {self._file.where}")
            return {other: value for other, value in stored.items() if other != name}

        self._change(without).result()

    def update(self, values: Mapping[str, Any] | None = None, /, **more: Any) -> Future[None]:
        """Set some attributes and keep the others.

        Parameters
        ----------
        values, **more : mapping of str to JSON values
            NumPy scalars count as numbers.

        Returns
        -------
        Future
            Resolves when the attributes are stored.

        Raises
        ------
        MetadataError
            Through the Future, if a value is not JSON (NaN and infinities are not) or the
            attributes are read-only; known before any I/O.
        NotFoundError, ConflictError, StoreIOError
            Through the Future.
        """
        return self._set({**(values or {}), **more}, keep=True)

    def put(self, values: Mapping[str, Any]) -> Future[None]:
        """Set these attributes and remove all others; arguments and errors of :meth:`update`."""
        return self._set(values, keep=False)

    def change(self, changed: Callable[[dict[str, JsonValue]], Mapping[str, Any]]) -> Future[None]:
        """Replace the attributes by what a function makes of those that are stored.

        Parameters
        ----------
        changed : callable
            Gets a dict of its own of the stored attributes and returns the new ones; called again
            if another writer was faster. NumPy scalars count as numbers.

        Returns
        -------
        Future
            Resolves when the attributes are stored.

        Raises
        ------
        MetadataError, NotFoundError, ConflictError, StoreIOError
            Through the Future, and errors of the function.

        Examples
        --------
        >>> import gpustore
        >>> group = gpustore.open_group("memory://c", create=True, attributes={"n": 1}).result()
        >>> group.attrs.change(lambda stored: {"n": stored["n"] + 1}).result()
        >>> group.attrs
        Attributes({'n': 2})
        """
        return self._change(lambda stored: self._checked(changed(copy.deepcopy(stored))))

    def _set(self, values: Mapping[str, Any], *, keep: bool) -> Future[None]:
        try:
            given = self._checked(values)
        except MetadataError as error:
            return failed(error)
        return self._change(lambda stored: {**stored, **given} if keep else given)

    def _checked(self, values: Mapping[str, Any]) -> dict[str, JsonValue]:
        given = json_attributes(values)
        wrong = ", ".join(map(quote, sorted(self._reserved.intersection(given))))
        if wrong:
            raise MetadataError(f"{wrong} of the metadata of the array is no attribute")
        return given

    def _change(
        self, changed: Callable[[dict[str, JsonValue]], dict[str, JsonValue]]
    ) -> Future[None]:
        if not self._writable:
            return failed(MetadataError("Destination does not support writing."))

        def document(stored: dict[str, JsonValue] | None) -> dict[str, JsonValue]:
            part = changed(dict(self._part(stored)))
            if self._member is not None:
                return {**(stored or {}), self._member: part}
            kept = {n: one for n, one in (stored or {}).items() if n in self._reserved}
            return {**kept, **part}

        def run() -> None:
            if self._before is not None:
                self._before()
            self._values = self._part(self._file.change(document))

        return self._executor.submit(run, drain=True)

    def _part(self, document: dict[str, JsonValue] | None) -> Mapping[str, JsonValue]:
        """Return the attributes in a document."""
        where = self._file.where
        if self._member is None and not self._reserved:
            return document or {}
        if document is None:
            raise NotFoundError(f"Metadata at {where} does not exist", key=self._file.key)
        if self._member is None:
            return {name: one for name, one in document.items() if name not in self._reserved}
        with prefixing(f"Error reading {where}"), in_member(self._member):
            return expect_object(document.get(self._member, {}))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            return dict(self._known()) == dict(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def _ipython_key_completions_(self) -> list[str]:
        """Return what IPython and Jupyter offer behind ``attrs["``."""
        return list(self)

    def __repr__(self) -> str:
        members = ", ".join(f"{name!r}: {self._known()[name]!r}" for name in sorted(self._known()))
        return f"Attributes({{{members}}})"


def json_attributes(values: Mapping[str, Any]) -> dict[str, JsonValue]:
    """Return attributes as JSON values.

    Raises
    ------
    MetadataError
        If a value cannot be written as JSON.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"Invalid attributes: expected a mapping, got {values!r:.200}")
    given = expect_object(from_python(dict(values)))
    written = dump(given)  # Raises MetadataError, also for NaN, which other readers may reject.
    try:
        check_depth(written, _MAX_DEPTH)
    except InvalidJsonError as error:
        raise MetadataError(f"Invalid attributes: {error}") from None
    return given
