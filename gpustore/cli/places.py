"""Places that the URLs of a command name, under the options ``--anon`` and ``--endpoint``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import gpustore
from gpustore.cli.failure import CommandError
from gpustore.copying.elements import find_group, open_whole

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


_S3 = "s3://"
_NETWORKS = ("http", "s3", "gcs")

_MAX_RETRIES = 4
"""About seven seconds of pauses, because a person waits. Copies keep the library's default."""


def reading_context(arguments: argparse.Namespace) -> gpustore.Context:
    """Make the context of a command that reads: few retries, and ``--anon``."""
    retries = {"max_retries": _MAX_RETRIES}
    return _context(arguments, {f"{kind}_request_retries": retries for kind in _NETWORKS})


def copying_context(arguments: argparse.Namespace) -> gpustore.Context:
    """Make the context of a copy: the library's retries, and ``--anon``."""
    return _context(arguments, {})


def _context(arguments: argparse.Namespace, resources: dict[str, Any]) -> gpustore.Context:
    """Add ``--anon``, which Google Cloud Storage takes from the environment of the process."""
    if arguments.anon:
        resources["aws_credentials"] = {"type": "anonymous"}
        os.environ["GOOGLE_SKIP_SIGNATURE"] = "true"
    return gpustore.Context(resources)


def specs_of(urls: Sequence[str], arguments: argparse.Namespace) -> list[str | dict[str, Any]]:
    """Return specs for URLs or paths: themselves, or with ``--endpoint`` JSON that names it.

    Raises
    ------
    CommandError
        ``--endpoint`` is given and none of them is in s3.
    """
    if arguments.endpoint is None:
        return list(urls)
    if not any(url.startswith(_S3) for url in urls):
        raise CommandError(
            f"--endpoint is the server of {_S3} URLs, but {' and '.join(urls)} is none; the server "
            "of gs:// URLs stands in the environment variable STORAGE_EMULATOR_HOST"
        )
    return [_at(url, arguments.endpoint) if url.startswith(_S3) else url for url in urls]


def spec_of(url: str, arguments: argparse.Namespace) -> str | dict[str, Any]:
    """Return the spec for one URL or path; see :func:`specs_of`."""
    return specs_of([url], arguments)[0]


def _at(url: str, endpoint: str) -> dict[str, Any]:
    spec: dict[str, Any] = gpustore.Spec(url).to_json()
    below = spec
    while below["driver"] != "s3":
        below = below.get("kvstore") or below["base"]
    below["endpoint"] = endpoint
    return spec


def open_node(
    url: str, arguments: argparse.Namespace, context: gpustore.Context, **keywords: Any
) -> gpustore.TensorStore | gpustore.Group:
    """Open the array or the group at a URL; arrays as :func:`open_whole` does.

    Parameters
    ----------
    url : str
        URL or path.
    arguments : argparse.Namespace
        Options of :func:`gpustore.cli.options.add_place_options`.
    context : Context
    **keywords
        Further arguments of :func:`open_whole`.

    Raises
    ------
    GpustoreError
        That of opening an array, unless what is there is a group.
    CommandError
        The place is a JSON value, which commands for arrays do not take.
    """
    spec = spec_of(url, arguments)
    try:
        store = open_whole(spec, context=context, **keywords)
    except gpustore.GpustoreError as error:
        return find_group(spec, error, context=context)
    if store.spec().to_json()["driver"] == "json":
        raise CommandError(f"{url} is a JSON value: `gpustore cat` prints it")
    return store


def open_member(
    group: gpustore.Group, path: str, context: gpustore.Context
) -> gpustore.TensorStore:
    """Open an array of a group, records as bytes."""
    kvstore = (group.kvstore.spec() / path).to_json()
    kvstore["path"] = f"{kvstore['path']}/"
    return open_whole(
        {"driver": f"zarr{group.zarr_format}", "kvstore": kvstore}, context=context, read=True
    )
