"""Compression in ``gpustore copy``: the words of ``--codec``, and translation between formats.

Lists of bytes -> bytes codecs have the form of Zarr v3; :func:`compressor_of` translates them to
Zarr v2, which has a single compressor.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


CODEC_WORDS = "none, zstd, gzip, blosc or blosc-CNAME, with :LEVEL if wanted, e.g. zstd:9"

_WORD = re.compile(r"(?P<name>none|zstd|gzip|blosc)(-(?P<cname>[a-z0-9]+))?(:(?P<level>-?\d+))?")
_LEVELS = {"zstd": 3, "gzip": 5, "blosc": 5}
_CNAMES = ("lz4", "lz4hc", "blosclz", "zstd", "zlib", "snappy")
_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
NUMCODECS = "numcodecs."
"""Prefix of the ids of Zarr v2 in Zarr v3."""
COMPRESSORS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
VLEN = ("vlen-utf8", "vlen-bytes")
"""Codecs of Zarr v3, and filters of Zarr v2, of strings and bytes of any length."""
NOT_BYTES = ("bytes", "transpose", "sharding_indexed", "crc32c", *VLEN)
"""Codecs of Zarr v3 that Zarr v2 says in other ways, or that are named apart if they are lost."""


def codecs_named(word: str, itemsize: int) -> list[dict[str, Any]]:
    """Return the codecs of a word of :data:`CODEC_WORDS`, as Zarr v3 JSON.

    Parameters
    ----------
    word : str
    itemsize : int
        Bytes of an element, the unit of Blosc's shuffles.

    Raises
    ------
    ValueError
        The word is unknown.

    Examples
    --------
    >>> codecs_named("zstd:9", 2)
    [{'name': 'zstd', 'configuration': {'level': 9}}]
    """
    match = _WORD.fullmatch(word)
    name = match["name"] if match else ""
    if (
        match is None
        or (match["cname"] and (name != "blosc" or match["cname"] not in _CNAMES))
        or (match["level"] and name == "none")
    ):
        raise ValueError(f"expected {CODEC_WORDS}, got {word!r}")
    if name == "none":
        return []
    level = int(match["level"] or _LEVELS[name])
    if name == "blosc":
        return [_blosc(match["cname"] or "lz4", level, 2, itemsize, 0)]
    return [{"name": name, "configuration": {"level": level}}]


def codecs_of(
    compressor: Mapping[str, Any] | None, itemsize: int
) -> tuple[list[dict[str, Any]], list[str]]:
    """Translate a compressor of Zarr v2 to codecs of Zarr v3, with notes."""
    if compressor is None:
        return [], []
    name = str(compressor["id"])
    if name in ("zstd", "gzip", "zlib"):  # gzip and zlib differ in the header only.
        name = "zstd" if name == "zstd" else "gzip"
        return [{"name": name, "configuration": {"level": compressor.get("level", 1)}}], []
    if name == "blosc":
        shuffle = int(compressor.get("shuffle", -1))
        if shuffle < 0:  # "auto"
            shuffle = 2 if itemsize == 1 else 1
        cname, clevel = compressor["cname"], compressor["clevel"]
        return [_blosc(cname, clevel, shuffle, itemsize, compressor.get("blocksize", 0))], []
    note = f"Zarr v3 has no codec {name}: zstd takes its place"
    return codecs_named("zstd", itemsize), [note]


def compressor_of(
    codecs: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, Any] | None, list[str]]:
    """Translate bytes -> bytes codecs of Zarr v3 to a compressor of Zarr v2, with notes."""
    notes = []
    if any(codec["name"] == "crc32c" for codec in codecs):
        notes.append("Zarr v2 has no checksums: they are not kept")
    codecs = [codec for codec in codecs if codec["name"] not in NOT_BYTES]
    match codecs:
        case []:
            return None, notes
        case [{"name": "zstd" | "gzip" as name, "configuration": {"level": level}}]:
            return {"id": name, "level": level}, notes
        case [{"name": "blosc", "configuration": {"cname": cname, "clevel": clevel, **options}}]:
            return {
                "id": "blosc",
                "cname": cname,
                "clevel": clevel,
                "shuffle": _SHUFFLES.index(options.get("shuffle", "noshuffle")),
                "blocksize": options.get("blocksize", 0),
            }, notes
        case [{"name": str(name)} as codec] if name.removeprefix(NUMCODECS) in COMPRESSORS:
            return {"id": name.removeprefix(NUMCODECS), **codec.get("configuration", {})}, notes
    names = ", ".join(codec["name"] for codec in codecs)
    notes.append(f"Zarr v2 cannot encode as {names}: zstd takes its place")
    return {"id": "zstd", "level": _LEVELS["zstd"]}, notes


def _blosc(cname: str, clevel: int, shuffle: int, itemsize: int, blocksize: int) -> dict[str, Any]:
    configuration = {
        "cname": cname,
        "clevel": clevel,
        "shuffle": _SHUFFLES[shuffle],
        "typesize": itemsize,
        "blocksize": blocksize,
    }
    return {"name": "blosc", "configuration": configuration}
