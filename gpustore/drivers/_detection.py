"""Detection of the format at a path of a kvstore: by the bytes of a file, or by the names in a
directory.

A *step* of detection first looks at the path as one file, if it can be one: the beginning and end
of the file, read in one request, show its format. Without a file there, the names in the directory
show the format; one request looks for all of them and also reads the metadata of arrays, so that
opening them needs no further request. The result is a TensorStore driver, an adapter in which the
next step is taken, or a known format without a driver.

Source: the algorithms of TensorStore's auto driver page.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from gpustore import registry
from gpustore.drivers._absence import (
    group_error,
    is_v2_group,
    names_below,
    names_like,
    some_of,
)
from gpustore.drivers.base import FoundMetadata
from gpustore.errors import (
    GpustoreError,
    LimitError,
    MetadataError,
    MismatchError,
    PathNotFoundError,
    StoreIOError,
    UnsupportedError,
)
from gpustore.kvstores.columns import ReadRequest, ReadState
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.spec import adapted, as_directory
from gpustore.runtime.context import Context
from gpustore.strict_json.parsing import parse, quote
from gpustore.url import UrlComponent

_PREFIX_NBYTES: Final = 32
_END_RECORD: Final = struct.Struct("<4s16xH")
# The end record of a zip file, behind which there may be a comment.
_SUFFIX_NBYTES: Final = _END_RECORD.size + 0xFFFF
_MAX_STEPS: Final = 16


@dataclass(frozen=True, slots=True)
class _Format:
    """A format that can be told.

    Attributes
    ----------
    name : str
        TensorStore's name in lists of candidates.
    what : str
        Noun for an object of this format, for messages.
    folder : str
        ``"drivers"`` or ``"kvstores"`` of the registry.
    """

    name: str
    what: str
    folder: str = "drivers"


def _is_zip(prefix: bytes, suffix: bytes) -> bool:
    """Whether the last end record, and the comment it tells of, are the end of the file."""
    del prefix
    at = suffix.rfind(b"PK\5\6")
    while at >= 0:
        if at + _END_RECORD.size <= len(suffix):
            _, comment_nbytes = _END_RECORD.unpack_from(suffix, at)
            if at + _END_RECORD.size + comment_nbytes == len(suffix):
                return True
        at = suffix.rfind(b"PK\5\6", 0, at)
    return False


def _begins(*signatures: bytes) -> Callable[[bytes, bytes], bool]:
    return lambda prefix, _: prefix.startswith(signatures)


def _is_avif(prefix: bytes, suffix: bytes) -> bool:
    del suffix
    # mif1 and msf1 are images and sequences of any kind, whose other brands say which.
    brands = (prefix[8:12], *(prefix[i : i + 4] for i in range(16, len(prefix), 4)))
    return prefix[4:8] == b"ftyp" and not {b"avif", b"avis"}.isdisjoint(brands)


def _is_webp(prefix: bytes, suffix: bytes) -> bool:
    del suffix
    return prefix[:4] == b"RIFF" and prefix[8:12] == b"WEBP"


_OF_FILES: Final[dict[_Format, Callable[[bytes, bytes], bool]]] = {
    _Format("avif", "an AVIF image"): _is_avif,
    _Format("bmp", "a BMP image"): _begins(b"BM"),
    _Format("jpeg", "a JPEG image"): _begins(b"\xff\xd8\xff"),
    _Format("png", "a PNG image"): _begins(b"\x89PNG\r\n\x1a\n"),
    _Format("tiff", "a TIFF image"): _begins(b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"),
    _Format("webp", "a WebP image"): _is_webp,
    _Format("zip", "a zip file", "kvstores"): _is_zip,
}

_OTHERS: Final = {
    b"\x89HDF\r\n\x1a\n": "an HDF5 or netCDF-4 file, which h5py reads and gpustore.copy copies",
    b"CDF\x01": "a netCDF-3 file, which scipy.io.netcdf_file reads",
    b"CDF\x02": "a netCDF-3 file, which scipy.io.netcdf_file reads",
    b"CDF\x05": "a netCDF-3 file, which the package netCDF4 reads",
    b"\x93NUMPY": "an array in NumPy's format, which numpy.load reads and gpustore.copy copies",
    b"ZISRAWFILE": "a CZI image of ZEISS, which the package bioio-czi reads",
    b"\xda\xce\xbe\n": "an ND2 image of Nikon, which the package nd2 reads",
    b"PAR1": "a Parquet table, which the package pyarrow reads",
    b"\x1f\x8b": "compressed by gzip: unpack it first",
}
"""Beginnings of files that are no stores, and what they are."""

_ZARR2: Final = _Format("zarr2", "a Zarr v2 array")
_ZARR3: Final = _Format("zarr3", "a Zarr v3 array")
_OF_DIRECTORIES: Final = {
    "attributes.json": _Format("n5", "an N5 array"),
    "info": _Format("neuroglancer-precomputed", "a Neuroglancer precomputed volume"),
    ".zarray": _ZARR2,
    "zarr.json": _ZARR3,
    "manifest.ocdbt": _Format("ocdbt", "an OCDBT database", "kvstores"),
}
_METADATA: Final = frozenset({".zarray", "zarr.json"})


@dataclass(frozen=True, slots=True)
class Found:
    """Result of one step of detection.

    Attributes
    ----------
    formats : tuple of _Format
        The candidates, in the order in which messages name them.
    looked_for : str
        The names and bytes that were tried and the contents found, for the message without a
        candidate.
    is_directory : bool
        Whether detection looked at names instead of bytes.
    metadata : FoundMetadata or None
        Metadata of the only candidate, if it is an array and `max_nbytes` allowed reading them.
    """

    formats: tuple[_Format, ...]
    looked_for: str
    is_directory: bool = False
    metadata: FoundMetadata | None = None


def detect(store: KvStore, max_nbytes: int = 0) -> Found:
    """Take one step of detection at the path of a kvstore. Blocks.

    Parameters
    ----------
    store : KvStore
    max_nbytes : int
        Longest metadata document to read, in bytes; 0 to read none.

    Raises
    ------
    StoreIOError
        If a read fails.
    """
    found = None
    if store.path and not store.path.endswith("/"):
        try:
            found = _detect_file(store)
        except StoreIOError as error:
            if error.status != "PERMISSION_DENIED" or store.driver.can_list:
                raise
            # An HTTP server that lists nothing refuses a directory, but not what is in it.
            below = _detect_directory(store, max_nbytes)
            if not below.formats and not is_v2_group(store):
                raise
            return below
    if found is None:
        return _detect_directory(store, max_nbytes)
    if not found.formats and not store.driver.can_list:
        # An HTTP server answers for a directory too, with a page about it.
        below = _detect_directory(store, max_nbytes)
        return below if below.formats else found
    return found


def one_of(found: Found, store: KvStore) -> _Format:
    """Return the only candidate.

    Raises
    ------
    PathNotFoundError
        If nothing is known to be at the path; the message names the nearest names beside it.
    MismatchError
        If there is none, or more than one; the message lists the formats that were tried. If it is
        a group.
    UnsupportedError
        If its format has no driver.
    """
    where = store.driver.describe(store.path)
    formats = found.formats
    if not formats:
        text = f"Failed to detect format for {where}: {found.looked_for}"
        if found.is_directory and is_v2_group(store):
            raise group_error(store, 2)
        if found.is_directory:
            below = names_below(store)
            if not below:
                nothing = "" if below is None else "; there is nothing"
                raise PathNotFoundError(f"{text}{nothing}{names_like(store)}", key=store.path)
            text += f"; there is {some_of(below)}"
        raise MismatchError(text, key=store.path)
    usable = [format_ for format_ in formats if _kind(format_) is not None]
    if len(formats) > 1:
        names = ", ".join(format_.name for format_ in formats)
        hint = f'; name one, e.g. "...|{usable[-1].name}:"' if usable else ""
        raise MismatchError(
            f"Multiple possible formats detected for {where}: {{{names}}}{hint}", key=store.path
        )
    if not usable:
        only = formats[0]
        copied = "; gpustore.copy makes one of it" if only.name == "tiff" else ""
        raise UnsupportedError(
            f'{where} is {only.what}, and gpustore has no driver "{only.name}"; it opens zarr2 and '
            f"zarr3 arrays{copied}",
            key=store.path,
        )
    if found.metadata is not None and _is_group_document(found.metadata.value):
        raise group_error(store, 3)
    return formats[0]


def through_adapters(
    store: KvStore, spec: KvStore.Spec, context: Context, max_nbytes: int = 0
) -> tuple[KvStore, KvStore.Spec, Found]:
    """Take steps of detection as long as exactly an adapter is found.

    Parameters
    ----------
    store : KvStore
    spec : KvStore.Spec
        Spec of `store`.
    context : Context
        Context of the adapters' resources.
    max_nbytes : int
        Longest metadata document to read, in bytes; 0 to read none.

    Returns
    -------
    tuple of KvStore, KvStore.Spec, Found
        The last kvstore, a spec that opens it, and the result of the step there.
    """
    spec = spec.retaining(store.driver)
    for _ in range(_MAX_STEPS):
        found = detect(store, max_nbytes)
        if len(found.formats) != 1 or found.formats[0].folder != "kvstores":
            return store, spec, found
        kind = _kind(found.formats[0])
        if kind is None:
            return store, spec, found
        spec = adapted(kind, UrlComponent(found.formats[0].name), spec)
        store = KvStore(spec.open_driver(context), spec.path)
        spec = spec.retaining(store.driver)
    where = store.driver.describe(store.path)
    raise MismatchError(
        f"Failed to detect format for {where}: more than {_MAX_STEPS} adapters within each other",
        key=store.path,
    )


def _kind(format_: _Format) -> Any:
    return registry.find_scheme(format_.folder, format_.name)


def _detect_file(store: KvStore) -> Found | None:
    """Return the result for the path as a file, None if there is no file."""
    ends = _read_ends(store)
    if ends is None:
        return None
    prefix, suffix = ends
    names = [format_.name for format_ in _OF_FILES]
    begin = " ".join(f"{byte:02x}" for byte in prefix[:12]) or "nothing"
    for signature, what in _OTHERS.items():
        if prefix.startswith(signature):
            begin += f": it is {what}"
            break
    within = _OF_DIRECTORIES.get(store.path.rpartition("/")[2])
    hint = "" if within is None else f"; if it is a part of {within.what}, open its directory"
    return Found(
        tuple(format_ for format_, matches in _OF_FILES.items() if matches(prefix, suffix)),
        f"it is a file, but none of {', '.join(names)}: it begins with {begin}{hint}",
    )


def _read_ends(store: KvStore) -> tuple[bytes, bytes] | None:
    """Return the beginning and end of a file; None if there is no file."""
    path = store.path
    columns = store.driver.read_many(
        ReadRequest([path, path], start=[0, -_SUFFIX_NBYTES], stop=[_PREFIX_NBYTES, None])
    )
    errors = [columns.error.get(row) for row in (0, 1)]
    for error in errors:
        if error is not None and error.status != "OUT_OF_RANGE":
            if _is_no_file(error):
                return None
            raise error
    if errors[1] is None:
        begin, end = columns.value
    else:
        # The file is shorter than the bytes asked for.
        whole = store.driver.read_many(ReadRequest([path], max_nbytes=_SUFFIX_NBYTES))
        whole.raise_first()
        begin = end = whole.value[0]
    if begin is None or end is None:
        return None
    return bytes(begin[:_PREFIX_NBYTES]), bytes(end)


def _is_no_file(error: GpustoreError) -> bool:
    """Whether a key could not be read because it is a directory."""
    return isinstance(error, StoreIOError) and error.status == "FAILED_PRECONDITION"


def _detect_directory(store: KvStore, max_nbytes: int) -> Found:
    """Return the result for the path as a directory."""
    names = list(_OF_DIRECTORIES)
    keys = [as_directory(store.path) + name for name in names]
    reads = [max_nbytes > 0 and name in _METADATA for name in names]
    read_at = time.time()
    columns = store.driver.read_many(
        ReadRequest(
            keys,
            start=[0] * len(keys),
            stop=[None if whole else 0 for whole in reads],
            max_nbytes=max_nbytes,
        )
    )
    # A document that is too long exists; opening it raises the error.
    there = [
        row
        for row, state in enumerate(columns.state)
        if state is ReadState.VALUE or isinstance(columns.error.get(row), LimitError)
    ]
    for error in columns.error.values():
        if store.driver.may_be_missing(error):
            if not there and not is_v2_group(store):
                raise error.suffixed("; there may be nothing: some servers deny that, too")
        elif not _is_no_file(error) and not isinstance(error, LimitError):
            raise error
    for row, name in enumerate(names):
        # An error of a metadata key, such as a directory in its place, explains why.
        error_of = columns.error.get(row)
        if error_of is None or there or store.driver.may_be_missing(error_of):
            continue
        if name in _METADATA:
            raise error_of
    listed = ", ".join(quote(name) for name in names)
    metadata = None
    if len(there) == 1 and reads[there[0]]:
        value = columns.value[there[0]]
        metadata = None if value is None else FoundMetadata(bytes(value), read_at)
    return Found(
        tuple(_OF_DIRECTORIES[names[row]] for row in there),
        f"looked for {listed} in it and found none of them",
        is_directory=True,
        metadata=metadata,
    )


def _is_group_document(data: bytes) -> bool:
    """Return whether a ``zarr.json`` is that of a group.

    >>> _is_group_document(b'{"node_type": "group"}'), _is_group_document(b"{")
    (True, False)
    """
    if b'"group"' not in data:  # The documents of arrays are parsed elsewhere.
        return False
    try:
        document = parse(data, where="", non_finite=True)
    except MetadataError:
        return False
    return isinstance(document, dict) and document.get("node_type") == "group"
