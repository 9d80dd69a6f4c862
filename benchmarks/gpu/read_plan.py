"""Which volumes, formats and accesses ``reads`` asks for, in which order."""

from benchmarks.gpu.format import Format

_SMALL, _MIDDLE, _LARGE = "64KiB", "1MiB", "16MiB"
_WHOLE = ("whole",)
_SOME = ("whole", "crop")
_FEW = ("whole", "few")
_ALL = ("whole", "slab", "crop", "crops", "one by one")

# Of each codec what matters most comes first: a probe takes what its time allows.
_CAMERA = {
    "zstd": [
        (Format("zstd", 3, _MIDDLE), _ALL),
        (Format("zstd", 3, _LARGE), _FEW),
        (Format("zstd", 3, _MIDDLE, sharded=True), _SOME),
        (Format("zstd", 3, _SMALL), _WHOLE),
        (Format("zstd", 3, _SMALL, sharded=True), _SOME),
        (Format("zstd", 2, _MIDDLE), _WHOLE),
    ],
    "blosc-zstd": [
        (Format("blosc-zstd", 2, _MIDDLE), _ALL),
        (Format("blosc-zstd", 2, _LARGE), _FEW),
        (Format("blosc-zstd", 3, _MIDDLE, sharded=True), _SOME),
        (Format("blosc-zstd", 2, _SMALL), _WHOLE),
        (Format("blosc-zstd", 3, _MIDDLE), _WHOLE),
    ],
    "raw": [
        (Format("raw", 3, _MIDDLE), _ALL),
        (Format("raw", 3, _LARGE), _FEW),
        (Format("raw", 3, _SMALL), _WHOLE),
    ],
    "gzip": [
        (Format("gzip", 3, _MIDDLE), ("whole", "slab", "crop")),
        (Format("gzip", 3, _LARGE), _FEW),
        (Format("gzip", 3, _SMALL), _WHOLE),
    ],
    "blosc-lz4": [
        (Format("blosc-lz4", 2, _MIDDLE), _ALL),
        (Format("blosc-lz4", 2, _LARGE), _FEW),
        (Format("blosc-lz4", 3, _SMALL, sharded=True), _SOME),
        (Format("blosc-lz4", 2, _SMALL), _WHOLE),
        (Format("blosc-lz4", 3, _MIDDLE), _WHOLE),
    ],
    "lz4": [(Format("lz4", 2, _MIDDLE), _SOME), (Format("lz4", 2, _LARGE), _FEW)],
    "zlib": [(Format("zlib", 2, _MIDDLE), _SOME), (Format("zlib", 2, _LARGE), _FEW)],
    "blosc-blosclz": [(Format("blosc-blosclz", 2, _MIDDLE), _SOME)],
}

_OTHER = {
    "zstd": [(Format("zstd", 3, _MIDDLE), _WHOLE)],
    "blosc-zstd": [(Format("blosc-zstd", 2, _MIDDLE), _WHOLE)],
    "blosc-lz4": [(Format("blosc-lz4", 2, _MIDDLE), _WHOLE)],
}

_SPARSE = {codec: _OTHER[codec] for codec in ("zstd", "blosc-lz4")}

_FORMATS = {"camera_u2": _CAMERA, "weather_f4": _OTHER, "labels_u4": _SPARSE}


def cells(variant):
    """Formats, each with its accesses, of a probe's variant: ``<volume>-<codec>``."""
    volume, _, codec = variant.partition("-")
    return _FORMATS[volume][codec]


def variants():
    """All variants in order, and the most seconds that each takes."""
    for volume, formats in _FORMATS.items():
        for codec, found in formats.items():
            yield f"{volume}-{codec}", 20 + 12 * len(found) if volume == "camera_u2" else 25
