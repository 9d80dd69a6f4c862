"""Which volumes, formats and accesses the second part of the report asks for, in which order."""

from benchmarks.gpu.format import Format
from benchmarks.gpu.plan import Probe

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
    "gzip": [(Format("gzip", 3, _MIDDLE), _WHOLE)],
}

_QUICK = {
    "zstd": [(Format("zstd", 3, _MIDDLE), _WHOLE), (Format("zstd", 3, _LARGE), ("few",))],
    "blosc-zstd": [(Format("blosc-zstd", 2, _MIDDLE), ("whole", "crops", "one by one"))],
    "raw": [(Format("raw", 3, _MIDDLE), _WHOLE)],
    "gzip": [(Format("gzip", 3, _MIDDLE), _WHOLE)],
}

_FORMATS = {"camera_u2": _CAMERA, "weather_f4": _OTHER, "labels_u4": _OTHER}


def cells(variant, *, quick=False):
    """Formats, each with its accesses, of a probe's variant: ``<volume>-<codec>``."""
    volume, _, codec = variant.partition("-")
    return (_QUICK if quick else _FORMATS[volume])[codec]


def probes(*, emulated=False):
    """The probes; on the emulated device each is a moment's work and needs no GPU."""

    def limit(found, cells):
        return 20 + 12 * len(cells) if found == "camera_u2" else 25

    return tuple(
        Probe(
            f"reads:{found}-{codec}",
            60 if emulated else limit(found, cells),
            8,
            13 if found == "camera_u2" and codec in _QUICK else None,
            needs_gpu=not emulated,
            elastic=not emulated,
        )
        for found, formats in _FORMATS.items()
        for codec, cells in formats.items()
    )
