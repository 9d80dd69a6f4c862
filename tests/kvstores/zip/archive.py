"""Archives for the tests of the zip kvstore: good ones, and ways to damage them."""

import io
import struct
import zipfile

from gpustore.kvstores.kvstore import KvStore

__all__ = ["central", "local", "made", "opened", "patched"]


def made(members, *, method=zipfile.ZIP_STORED, comment=b""):
    """The bytes of an archive; `members` are (name, data) or (name, data, method)."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data, *other in members:
            info = zipfile.ZipInfo(name)
            archive.writestr(info, data, *(other or [method]))
        archive.comment = comment
    return buffer.getvalue()


def central(data, row=0):
    """Return the beginning of record `row` of the directory, if only records look like one."""
    at = -1
    for _ in range(row + 1):
        at = data.index(b"PK\1\2", at + 1)
    return at


def local(data, row=0):
    """Return the beginning of the local header of the member of record `row`."""
    return struct.unpack_from("<I", data, central(data, row) + 42)[0]


def patched(data, at, layout, *values):
    """The same bytes with some of them replaced; `at` counts from the end if it is negative."""
    changed = bytearray(data)
    struct.pack_into(f"<{layout}", changed, at if at >= 0 else len(data) + at, *values)
    return bytes(changed)


def opened(data=None, **members):
    """A zip kvstore in memory that holds the bytes of an archive."""
    store = KvStore.open({"driver": "zip", "base": "memory://a.zip", **members}).result()
    if data is not None:
        store.base[""] = data
    return store
