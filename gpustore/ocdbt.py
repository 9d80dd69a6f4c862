"""Inspection of stored OCDBT databases."""

from __future__ import annotations

from functools import partial
from typing import Any

from gpustore import registry
from gpustore.errors import UnsupportedError
from gpustore.kvstores.kvstore import KvStore
from gpustore.runtime.context import Context
from gpustore.runtime.executor import shared
from gpustore.runtime.future import Future

__all__ = [
    "DistributedCoordinatorServer",
    "dump",
    "undump_manifest",
    "undump_version_tree_node",
]


class DistributedCoordinatorServer:
    """Coordinator of writers in TensorStore; not supported: writers meet at the stored manifest.

    Raises
    ------
    UnsupportedError
        Always.
    """

    def __init__(self, json: Any = None) -> None:
        del json
        raise UnsupportedError(
            "no server coordinates writers of OCDBT databases: each commits to the stored manifest"
        )


def undump_manifest(dumped_manifest: Any) -> bytes:
    """Raise UnsupportedError: what :func:`dump` shows is not made into a stored form again."""
    del dumped_manifest
    raise UnsupportedError("undump_manifest is not supported: databases change by commits alone")


def undump_version_tree_node(dumped_config: Any, dumped_node: Any) -> bytes:
    """Raise UnsupportedError: what :func:`dump` shows is not made into a stored form again."""
    del dumped_config, dumped_node
    raise UnsupportedError(
        "undump_version_tree_node is not supported: databases change by commits alone"
    )


def dump(base: KvStore, node: str | None = None, *, context: Context | None = None) -> Future[Any]:
    """Return the stored form of an OCDBT database as JSON.

    Parameters
    ----------
    base : KvStore
        Directory of the database.
    node : str, optional
        Reference ``<kind>:<base path>:<relative path>:<offset>:<length>`` of the kind ``"value"``,
        ``"btreenode"`` or ``"versionnode"``, from an earlier result of this function. By default
        the manifest is shown.
    context : Context, optional
        Context whose resource ``limits`` bounds the size of a node.

    Returns
    -------
    Future of dict or bytes
        JSON in which keys and values are bytes; the bytes of a value.

    Raises
    ------
    NotFoundError
        If there is no manifest.
    MetadataError
        If the reference is invalid.
    CorruptChunkError
        If the referenced data are damaged or missing.

    Examples
    --------
    >>> store = KvStore.open("memory://|ocdbt:").result()
    >>> store["a"] = b"value"
    >>> versions = dump(store.base).result()["versions"]
    >>> versions[-1]["generation_number"]
    2
    >>> dump(store.base, versions[-1]["root"]["location"]).result()["entries"]
    [{'inline_value': b'value', 'key': b'a'}]
    """
    if not isinstance(base, KvStore):
        raise TypeError(f"base: expected a KvStore, but received: {base!r:.200}")
    kind = registry.find("kvstores", "ocdbt")
    executor = base.driver.executor or shared()
    return executor.submit(partial(kind.dump, base.driver, base.path, node, context or Context()))
