"""OCDBT databases as they are stored, for looking into them."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpustore import registry
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context
from gpustore.runtime.executor import shared
from gpustore.runtime.future import Future

__all__ = ["dump"]


def dump(base: KvStore, node: str | None = None, *, context: Context | None = None) -> Future[Any]:
    """Internal representation of an OCDBT database.

    Parameters
    ----------
    base : KvStore
        The directory that holds the database.
    node : str, optional
        What to show: a reference ``<kind>:<base path>:<relative path>:<offset>:<length>``, where
        the kind is ``"value"``, ``"btreenode"`` or ``"versionnode"``, as they are found in what
        this function returns. By default the manifest.
    context : Context, optional
        Of its resource ``limits`` the largest node comes.

    Returns
    -------
    Future of dict or bytes
        JSON in which keys and values are bytes; the bytes of a value.

    Raises
    ------
    NotFoundError
        If there is no manifest.
    MetadataError
        If the reference is not valid.
    CorruptChunkError
        If what it means is damaged or not there.

    Examples
    --------
    >>> store = KvStore.open("memory://|ocdbt:").result()
    >>> store["a"] = b"value"
    >>> versions = dump(store.base).result()["versions"]
    >>> versions[-1]["generation_number"]
    2
    >>> dump(store.base, versions[-1]["root"]["location"]).result()["entries"]
    [{'key': b'a', 'inline_value': b'value'}]
    """
    if not isinstance(base, KvStore):
        raise TypeError(f"base: expected a KvStore, but received: {base!r:.200}")
    kind = registry.find("kvstores", "ocdbt")
    executor = base.driver.executor or shared()
    return executor.submit(partial(kind.dump, base.driver, base.path, node, context or Context()))
