"""Codecs by short words such as ``"zstd:5"``, and their translation between the formats of Zarr.

Lists of bytes -> bytes codecs have the form of Zarr v3; :func:`compressor_of` translates them to
Zarr v2, which has a single compressor. :func:`codec_spec` gives the meaning of ``codec=`` where
arrays are made; ``gpustore copy --codec`` takes the same words.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpustore.errors import MetadataError
from gpustore.schema.codec_spec import CodecSpec

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


def codec_spec(codec: Any, driver: str, itemsize: int) -> CodecSpec:
    """Return the constraint that `codec` stands for.

    Parameters
    ----------
    codec : CodecSpec, str, mapping or sequence
        A spec with or without its class; a word of :data:`CODEC_WORDS`; or the JSON of codecs in
        the form of any format: ``{"name": "zstd"}``, a list of such objects or words, a compressor
        ``{"id": "zstd"}``, or a compression of N5 ``{"type": "zstd"}``. In Zarr v2 also a list of
        filters, and behind them the compressor: ``[{"id": "delta", "dtype": "<u2"}, "zstd"]``.
    driver : {"zarr", "zarr2", "zarr3", "n5"}
        Format of the array.
    itemsize : int
        Bytes of an element.

    Raises
    ------
    MetadataError
        If a word or a member is not allowed, or the format cannot hold the codecs.
    TypeError
        If `codec` is nothing of all this.

    Examples
    --------
    >>> codec_spec("zstd:5", "zarr3", 2)
    CodecSpec({'codecs': [{'configuration': {'level': 5}, 'name': 'zstd'}], 'driver': 'zarr3'})
    >>> codec_spec("zstd:5", "zarr2", 2)
    CodecSpec({'compressor': {'id': 'zstd', 'level': 5}, 'driver': 'zarr', 'filters': None})
    """
    if isinstance(codec, CodecSpec):
        return codec
    if isinstance(codec, Mapping) and "driver" in codec:
        return CodecSpec(codec)
    if driver == "zarr3":
        codecs, notes = _codecs(codec, itemsize)
        spec: dict[str, Any] = {"driver": "zarr3", "codecs": codecs}
    elif driver == "n5":
        spec, notes = _of_n5(codec, itemsize), []
    elif driver not in ("zarr", "zarr2"):
        raise MetadataError(f'arrays of the driver "{driver}" have no codecs')
    elif isinstance(codec, Mapping) and "id" in codec:
        spec, notes = {"driver": "zarr", "compressor": dict(codec)}, []
    elif isinstance(codec, Sequence) and any(
        isinstance(one, Mapping) and "id" in one for one in codec
    ):
        spec, notes = _filters_and_compressor(codec, itemsize), []
    else:
        compressor, notes = compressor_of(_codecs(codec, itemsize)[0])
        spec = {"driver": "zarr", "compressor": compressor}
    if notes:
        raise MetadataError(f"{notes[0].partition(':')[0]}; codec: {codec!r:.200}")
    return CodecSpec(spec)


def _filters_and_compressor(codec: Sequence[Any], itemsize: int) -> dict[str, Any]:
    """Return the codec spec of Zarr v2 for a list of filters with the compressor behind them."""
    *filters, last = codec
    if isinstance(last, str):
        compressor, _ = compressor_of(codecs_named(last, itemsize))
    elif isinstance(last, Mapping) and last.get("id") in COMPRESSORS:
        compressor = dict(last)
    else:
        filters, compressor = [*filters, last], None
    wrong = [one for one in filters if not (isinstance(one, Mapping) and "id" in one)]
    if wrong:
        raise MetadataError(f'expected a filter of Zarr v2, {{"id": ...}}, got {wrong[0]!r:.200}')
    return {"driver": "zarr", "filters": [dict(one) for one in filters], "compressor": compressor}


def _of_n5(codec: Any, itemsize: int) -> dict[str, Any]:
    """Return the codec spec of N5 for the `codec` of :func:`codec_spec`."""
    if isinstance(codec, Mapping) and "type" in codec:
        return {"driver": "n5", "compression": dict(codec)}
    compressor, notes = compressor_of(_codecs(codec, itemsize)[0])
    if notes or (compressor is not None and compressor["id"] not in ("gzip", "zstd", "blosc")):
        raise MetadataError(f"N5 has no such compression; codec: {codec!r:.200}")
    compression = {"type": "raw"} if compressor is None else {**compressor}
    if compressor is not None:
        compression["type"] = compression.pop("id")
    return {"driver": "n5", "compression": compression}


def _codecs(codec: Any, itemsize: int) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the codecs of Zarr v3 that the `codec` of :func:`codec_spec` lists, with notes."""
    if isinstance(codec, str):
        return codecs_named(codec, itemsize), []
    if isinstance(codec, Mapping):
        return codecs_of(codec, itemsize) if "id" in codec else ([dict(codec)], [])
    if not isinstance(codec, Sequence):
        raise TypeError(
            f"Invalid codec: expected a CodecSpec, a word such as 'zstd:5', or JSON, but received: "
            f"{codec!r:.200}"
        )
    listed = [_codecs(one, itemsize) for one in codec]
    return [one for codecs, _ in listed for one in codecs], [n for _, more in listed for n in more]


def codecs_named(word: str, itemsize: int) -> list[dict[str, Any]]:
    """Return the codecs of a word of :data:`CODEC_WORDS`, as Zarr v3 JSON.

    Parameters
    ----------
    word : str
    itemsize : int
        Bytes of an element, the unit of Blosc's shuffles.

    Raises
    ------
    MetadataError
        If the word is unknown.

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
        raise MetadataError(f"expected {CODEC_WORDS}, got {word!r}")
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
    if name in ("zstd", "gzip", "zlib"):
        notes = ["Zarr v3 has no codec zlib: gzip takes its place"] if name == "zlib" else []
        name = "zstd" if name == "zstd" else "gzip"  # It differs from zlib in the header only.
        return [{"name": name, "configuration": {"level": compressor.get("level", 1)}}], notes
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
