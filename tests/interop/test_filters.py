"""Codecs that change elements, and checksums: exchanged with zarr-python, zarrs and NumPy.

Every one of them is a cell for each format that has it, some data types, layouts and further
codecs, each peer and direction. zarr-python has numcodecs' ones, zarrs some of them and
``packbits``; for those of the registry that neither has, the peer ``numpy`` is files written and
read by hand. What peers say to what they cannot do stands in :data:`REFUSED`.
"""

import itertools
import json
from dataclasses import dataclass, field

import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr

import gpustore
from tests.interop.arrays import CHUNKS, make_array
from tests.interop.libraries import Zarrs
from tests.matrix import each

SOURCE = "mri"
SHAPE, SIZE = make_array(SOURCE, "int16").shape, CHUNKS[SOURCE]
DIRECTIONS = ("from peer", "to peer")
CONTEXT = gpustore.Context({"file_io_sync": False})


def _named(name, **configuration):
    return {"name": name, "configuration": configuration}


# --------------------------------------------------------------------------- the cells


@dataclass(frozen=True)
class Cell:
    """One array.

    Attributes
    ----------
    format : str
    peer, direction : str
    dtype : str
        Of the elements; in Zarr v2 with its byte order.
    filters : tuple of dict
        Zarr v2: filters. Zarr v3: codecs before the array -> bytes codec.
    behind : tuple of dict
        Zarr v2: the compressor, if there is one. Zarr v3: codecs after it.
    layout : str
        ``C``, ``F``, or ``shards``.
    serializer : dict or None
        The array -> bytes codec of Zarr v3; None is ``bytes``.
    """

    format: str
    peer: str
    direction: str
    dtype: str
    filters: tuple = ()
    behind: tuple = ()
    layout: str = "C"
    serializer: dict | None = field(default=None)

    @property
    def id(self) -> str:
        codecs = [*self.filters, *filter(None, [self.serializer]), *self.behind]
        names = "+".join(one.get("id", one.get("name")) for one in codecs)
        return "-".join((self.format, names, self.dtype, self.layout, self.direction, self.peer))


_SCALE = {"scale": 8, "offset": -500, "dtype": "<f8", "astype": "<i4"}

SINGLE = (
    *(("delta", dtype, {"dtype": dtype}) for dtype in ("<i2", ">i4", "|u1", "<u8")),
    ("delta", "<i4", {"dtype": "<i4", "astype": "<i8"}),
    ("fixedscaleoffset", "<f8", _SCALE),
    ("fixedscaleoffset", "<f4", {"scale": 2, "offset": 0, "dtype": "<f4", "astype": "<f4"}),
    ("fixedscaleoffset", "<i2", {"scale": 1, "offset": -9, "dtype": "<i2", "astype": "<i4"}),
    ("quantize", "<f8", {"digits": 2, "dtype": "<f8"}),
    ("quantize", "<f4", {"digits": -1, "dtype": "<f4"}),
    ("astype", "<i2", {"encode_dtype": "<i4", "decode_dtype": "<i2"}),
    ("astype", "<f8", {"encode_dtype": "<f4", "decode_dtype": "<f8"}),
    ("packbits", "|b1", {}),
    ("bitround", "<f4", {"keepbits": 7}),
    ("bitround", "<f8", {"keepbits": 20}),
    *(("shuffle", f"<i{size}", {"elementsize": size}) for size in (2, 4, 8)),
    *(("crc32", dtype, {}) for dtype in ("<i2", "|b1")),
    ("adler32", "<f4", {}),
    ("fletcher32", "<i4", {}),
    ("crc32c", "<i2", {}),
    ("jenkins_lookup3", "<u4", {}),
)
"""numcodecs' codecs, a type of elements, and options."""

ONLY_ZARR2 = (
    ("base64", "<i2", {}),
    ("categorize", "<U4", {"labels": ["low", "né", "high"], "dtype": "<U4"}),
    ("categorize", ">U4", {"labels": ["né", "high"], "dtype": ">U4", "astype": "<i2"}),
    # Of another type than the array's, which Zarr v3 does not allow.
    ("quantize", "<f8", {"digits": 1, "dtype": "<f8", "astype": "<f4"}),
)

CHAINS = (
    ("<i2", ({"id": "delta", "dtype": "<i2"}, {"id": "shuffle", "elementsize": 2})),
    ("<f8", ({"id": "fixedscaleoffset", **_SCALE}, {"id": "delta", "dtype": "<i4"})),
    ("<f4", ({"id": "bitround", "keepbits": 9}, {"id": "shuffle", "elementsize": 4})),
    ("|b1", ({"id": "packbits"}, {"id": "crc32"})),
    ("<i4", ({"id": "adler32"}, {"id": "fletcher32"}, {"id": "base64"})),
)
"""Filters of Zarr v2 one after the other."""

COMPRESSORS = {
    "zarr2": (
        (),
        ({"id": "zstd", "level": 1},),
        ({"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},),
        ({"id": "zlib", "level": 1},),
        ({"id": "crc32c"},),
    ),
    "zarr3": (
        (),
        (_named("zstd", level=1, checksum=False),),
        ({"name": "crc32c"},),
        (_named("numcodecs.zlib", level=1),),
    ),
}

TO_BYTES = frozenset(("shuffle", "crc32", "adler32", "fletcher32", "crc32c", "jenkins_lookup3"))

_ZARRS = ("fixedscaleoffset", "shuffle")
"""What zarrs has of numcodecs'."""


def _made():
    """What is stored how: format, type, filters, what follows, layout."""
    singles = [(dtype, ({"id": id, **options},)) for id, dtype, options in (*SINGLE, *ONLY_ZARR2)]
    turns = itertools.cycle(COMPRESSORS["zarr2"])
    for (dtype, filters), layout in itertools.product((*singles, *CHAINS), "CF"):
        yield "zarr2", dtype, filters, next(turns), layout
    layouts, turns = itertools.cycle(("C", "F", "shards")), itertools.cycle(COMPRESSORS["zarr3"])
    for (id, dtype, options), _ in itertools.product(SINGLE, range(2)):
        if dtype[0] == ">":
            continue
        codec = _named(f"numcodecs.{id}", **options)
        before, behind = ((), (codec,)) if id in TO_BYTES else ((codec,), ())
        yield "zarr3", dtype, before, (*behind, *next(turns)), next(layouts)


REGISTERED = (
    *(
        (dtype, (), _named("packbits", **options))
        for dtype, options in (
            *(("|b1", {}), ("<u2", {"last_bit": 11}), ("<i4", {"first_bit": 0, "last_bit": 12})),
            *(("|b1", {"padding_encoding": "first_byte"}), ("<i2", {"last_bit": 14})),
            ("<u4", {"padding_encoding": "last_byte", "last_bit": 16}),
        )
    ),
    ("<f8", (_named("cast_value", data_type="float32"),), None),
    ("<i2", (_named("cast_value", data_type="uint8", out_of_range="wrap"),), None),
    ("<f4", (_named("cast_value", data_type="uint8", out_of_range="clamp"),), None),
    ("<f8", (_named("scale_offset", offset=5, scale=2),), None),
    ("<i4", (_named("scale_offset", offset=-3, scale=2),), None),
    ("<f4", (_named("bitround", keepbits=7),), None),
    ("<u2", (_named("bitround", keepbits=3),), None),
    ("<i2", (_named("reshape", shape=[[0, 1], [2], -1]),), None),
    (
        "<f8",
        (_named("scale_offset", offset=5, scale=2), _named("cast_value", data_type="float32")),
        None,
    ),
)
"""Codecs of the registry of Zarr v3: type, array -> array codecs, array -> bytes codec."""


def _cells():
    for format, dtype, filters, behind, layout in _made():
        ids = {one.get("id", one.get("name", "").removeprefix("numcodecs.")) for one in filters}
        peers = ["zarr-python"]
        if layout != "F" and format == "zarr3" and ids <= set(_ZARRS) and not behind[1:]:
            peers += ["zarrs"] if all("zlib" in str(b) or "zstd" in str(b) for b in behind) else []
        for peer, direction in itertools.product(peers, DIRECTIONS):
            yield Cell(format, peer, direction, dtype, filters, behind, layout)
    turns = itertools.cycle(COMPRESSORS["zarr3"][:2])
    for (dtype, filters, serializer), direction in itertools.product(REGISTERED, DIRECTIONS):
        peers = ("numpy", "zarrs") if serializer and dtype != "<i4" else ("numpy",)
        for peer in peers:
            behind = next(turns)
            yield Cell("zarr3", peer, direction, dtype, filters, behind, "C", serializer)


def _writes_in_wrong_order(cell) -> bool:
    """Whether zarr-python 3.1.6 stores elements in the order of C, which it does not read so."""
    name = cell.filters[0].get("id", cell.filters[0].get("name")) if cell.filters else ""
    ordered = {
        "zarr2": ("bitround",),
        "zarr3": ("numcodecs.delta", "numcodecs.fixedscaleoffset", "numcodecs.packbits"),
    }
    given = (cell.peer, cell.direction, cell.layout)
    return given == ("zarr-python", "from peer", "F") and name in ordered[cell.format]


ALL = tuple(_cells())
CELLS = tuple(cell for cell in ALL if not _writes_in_wrong_order(cell))
WRONG = tuple(cell for cell in ALL if _writes_in_wrong_order(cell))


def _each(peers, cells=CELLS):
    chosen = [cell for cell in cells if cell.peer in peers]
    return each("cell", chosen, ids=(cell.id for cell in chosen))


# --------------------------------------------------------------------------- what they hold


def data_of(cell) -> np.ndarray:
    """Elements of the image in the type of the cell, all of them ordinary numbers."""
    samples = make_array(SOURCE, "int16")
    dtype = np.dtype(cell.dtype)
    if dtype.kind == "b":
        return samples > np.median(samples)
    if dtype.kind == "U":
        return np.array(["low", "né", "high", "none"])[samples % 4].astype(dtype)
    if dtype.kind == "f":
        return ((samples - 300) / 7).astype(dtype)
    return np.abs(samples // 8).astype(dtype) if dtype.itemsize == 1 else samples.astype(dtype)


def held(cell) -> np.ndarray:
    """What such an array holds of these: lossy codecs do not give everything back."""
    found, decoders = data_of(cell), []
    for codec in cell.filters:
        id, options = _as_in_numcodecs(codec)
        if id is None:
            dtype, found = found.dtype, _done(found, codec)
            decoders.append(lambda x, codec=codec, dtype=dtype: _undone(x, codec, dtype))
            continue
        library, dtype = numcodecs.get_codec({"id": id, **options}), found.dtype
        found = np.asarray(library.encode(found.reshape(-1).copy()))
        decoders.append(lambda x, library=library, dtype=dtype: _viewed(library.decode(x), dtype))
    if cell.serializer is not None:
        found = _kept_bits(found, cell.serializer)
    for decode in reversed(decoders):
        found = decode(found)
    return found.reshape(SHAPE)


def _as_in_numcodecs(codec):
    """Id and options, if it is one of numcodecs'."""
    if "id" in codec:
        return codec["id"], {name: codec[name] for name in codec if name != "id"}
    name = codec["name"]
    is_one = name.startswith("numcodecs.")
    return (name.removeprefix("numcodecs."), codec["configuration"]) if is_one else (None, None)


def _viewed(decoded, dtype):
    return np.asarray(decoded).reshape(-1).view(dtype)


def _kept_bits(values, codec):
    """What ``packbits`` keeps of integers."""
    if values.dtype.kind == "b":
        return values
    options, width = codec["configuration"], 8 * values.itemsize
    first, last = options.get("first_bit", 0), options.get("last_bit", width - 1)
    kept = values & values.dtype.type((1 << (last + 1)) - (1 << first))
    if values.dtype.kind == "i":
        kept = kept << (width - 1 - last) >> (width - 1 - last)
    return kept


def _done(values, codec):
    """A registered array -> array codec, by NumPy."""
    name, options = codec["name"], codec["configuration"]
    if name == "scale_offset":
        one = values.dtype.type
        return (values - one(options["offset"])) * one(options.get("scale", 1))
    if name == "cast_value":
        target = np.dtype(options["data_type"])
        if options.get("out_of_range") == "clamp":
            return np.clip(np.rint(values), 0, 255).astype(target)
        return (
            values.astype(np.int64).astype(target) if target.kind == "u" else values.astype(target)
        )
    if name == "bitround" and values.dtype.kind == "f":
        return numcodecs.BitRound(options["keepbits"]).encode(values.copy()).view(values.dtype)
    if name == "bitround":
        exact = [_rounded(int(value), options["keepbits"]) for value in values.reshape(-1)]
        return np.array(exact, values.dtype).reshape(values.shape)
    assert name == "reshape"
    a, b, c, d = values.shape
    return values.reshape(a * b, c, d)


def _rounded(value, keepbits):
    """Half to even, at the lowest of the kept bits."""
    drop = max(value.bit_length() - keepbits, 0)
    half, kept = (1 << drop) >> 1, value >> drop
    rest = value - (kept << drop)
    up = rest > half or (rest == half and drop and kept & 1)
    return (kept + bool(up)) << drop


def _undone(values, codec, dtype):
    """The other way round."""
    name, options = codec["name"], codec["configuration"]
    if name == "scale_offset":
        one = values.dtype.type
        if values.dtype.kind == "f":
            return values / one(options.get("scale", 1)) + one(options["offset"])
        return values // one(options.get("scale", 1)) + one(options["offset"])
    return values.astype(dtype) if name == "cast_value" else values


def chunks_by_hand(cell) -> dict[str, bytes]:
    """The files of the chunks."""
    values, files = data_of(cell), {}
    counts = [-(-size // part) for size, part in zip(SHAPE, SIZE, strict=True)]
    for place in itertools.product(*map(range, counts)):
        chunk = np.zeros(SIZE, values.dtype)
        cut = values[tuple(slice(i * n, i * n + n) for i, n in zip(place, SIZE, strict=True))]
        chunk[tuple(slice(0, size) for size in cut.shape)] = cut
        if not chunk.any():
            continue
        for codec in cell.filters:
            chunk = _done(chunk, codec)
        data = _packed(chunk, cell.serializer) if cell.serializer else chunk.tobytes()
        files["c/" + "/".join(map(str, place))] = data
    return files


def _packed(chunk, codec):
    options = codec["configuration"]
    last = options.get("last_bit", 0 if chunk.dtype == bool else 8 * chunk.itemsize - 1)
    words = np.unpackbits(
        chunk.reshape(-1, 1).view(np.uint8).reshape(chunk.size, -1), axis=1, bitorder="little"
    )
    bits = words[:, options.get("first_bit", 0) : last + 1].reshape(-1)
    packed = np.packbits(bits, bitorder="little").tobytes()
    count = bytes([8 * len(packed) - len(bits)])
    padding = options.get("padding_encoding", "none")
    return {"none": packed, "first_byte": count + packed, "last_byte": packed + count}[padding]


# --------------------------------------------------------------------------- the arrays


def _v3_codecs(cell):
    bytes_ = {"name": "bytes", "configuration": {"endian": "little"}}
    codecs = [*cell.filters, cell.serializer or bytes_, *cell.behind]
    if cell.layout == "F":
        return [_named("transpose", order=[3, 2, 1, 0]), *codecs]
    if cell.layout == "shards":
        index = [bytes_, {"name": "crc32c"}]
        inner = {"chunk_shape": list(SIZE), "codecs": codecs, "index_codecs": index}
        return [_named("sharding_indexed", **inner)]
    return codecs


def _shards(cell):
    return [2 * n for n in SIZE] if cell.layout == "shards" else list(SIZE)


def metadata_of(cell):
    if cell.format == "zarr2":
        return {
            **{"shape": list(SHAPE), "chunks": list(SIZE), "dtype": cell.dtype},
            **{"order": cell.layout, "filters": list(cell.filters), "dimension_separator": "."},
            "compressor": cell.behind[0] if cell.behind else None,
            "fill_value": _fill(cell),
        }
    return {
        **{"shape": list(SHAPE), "data_type": np.dtype(cell.dtype).name},
        "chunk_grid": _named("regular", chunk_shape=_shards(cell)),
        **{"chunk_key_encoding": _named("default"), "fill_value": _fill(cell)},
        "codecs": _v3_codecs(cell),
    }


def _fill(cell):
    return {"b": False, "U": ""}.get(np.dtype(cell.dtype).kind, 0)


def _spec(cell, path):
    driver = {"zarr2": "zarr"}.get(cell.format, cell.format)
    return {"driver": driver, "kvstore": f"file://{path}/"}


def make_with_gpustore(cell, path):
    spec = {**_spec(cell, path), "metadata": metadata_of(cell)}
    return gpustore.open(spec, create=True, context=CONTEXT).result()


def make_with_zarr_python(cell, path):
    common = {"shape": SHAPE, "chunks": SIZE, "fill_value": _fill(cell)}
    if cell.format == "zarr2":
        compressor = numcodecs.get_codec(dict(cell.behind[0])) if cell.behind else None
        return zarr.create_array(
            str(path),
            zarr_format=2,
            dtype=np.dtype(cell.dtype),
            order=cell.layout,
            filters=[numcodecs.get_codec(dict(one)) for one in cell.filters],
            compressors=compressor,
            **common,
        )
    transposes = [_named("transpose", order=[3, 2, 1, 0])] if cell.layout == "F" else []
    return zarr.create_array(
        str(path),
        zarr_format=3,
        dtype=np.dtype(cell.dtype),
        filters=[*transposes, *cell.filters] or None,
        serializer=_named("bytes", endian="little"),
        compressors=list(cell.behind) or None,
        shards=_shards(cell) if cell.layout == "shards" else None,
        **common,
    )


def assert_same(found, expected):
    found = np.asarray(found)
    found = found.astype(found.dtype.newbyteorder("="))
    expected = expected.astype(expected.dtype.newbyteorder("="))
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == expected.tobytes()


def _chunks(path):
    files = {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    return {k: v for k, v in files.items() if not k.endswith((".zarray", ".zattrs", "zarr.json"))}


_IGNORED = pytest.mark.filterwarnings(
    "ignore:Numcodecs codecs are not in the Zarr version 3", "ignore:.*does not have a Zarr V3"
)


def check_with_peer(cell, path, make_theirs):
    """Either direction; `make_theirs` opens or makes an array that takes and gives elements."""
    expected = held(cell)
    if cell.direction == "from peer":
        theirs = make_theirs(path, create=True)
        theirs[...] = data_of(cell)
        ours = gpustore.open(_spec(cell, path), context=CONTEXT).result()
        found = ours.read().result()
        assert_same(found, np.asarray(theirs[...]))
        assert_same(found, expected)
        assert_same(ours[20:2:-3, ::-1, 1].read().result(), expected[20:2:-3, ::-1, 1])
        return
    ours = make_with_gpustore(cell, path)
    ours[...] = data_of(cell)
    assert_same(ours.read().result(), expected)
    assert_same(make_theirs(path, create=False)[...], expected)


@_IGNORED
@pytest.mark.matrix
@_each(["zarr-python"])
def test_zarr_python(cell, tmp_path):
    def make(path, *, create):
        return make_with_zarr_python(cell, path) if create else zarr.open_array(path, mode="r")

    check_with_peer(cell, tmp_path / "a", make)
    is_wrong = _writes_in_wrong_order(Cell(**{**vars(cell), "direction": "from peer"}))
    if cell.direction == "to peer" and not cell.behind and not is_wrong:
        theirs = make_with_zarr_python(cell, tmp_path / "b")
        theirs[...] = data_of(cell)
        if cell.layout != "shards":
            assert _chunks(tmp_path / "a") == _chunks(tmp_path / "b")


@_IGNORED
@_each(["zarr-python"], WRONG)
def test_zarr_python_writes_in_the_wrong_order(cell, tmp_path):
    """It cannot read its own either; gpustore reads the same elements."""
    theirs = make_with_zarr_python(cell, tmp_path)
    theirs[...] = data_of(cell)
    found = np.asarray(theirs[...])
    assert found.tobytes() != held(cell).tobytes()
    assert_same(gpustore.open(_spec(cell, tmp_path)).result().read().result(), found)


@pytest.fixture
def zarrs_pipeline(monkeypatch):
    """zarr-python with the codec pipeline of zarrs, and nothing of it afterwards."""
    pytest.importorskip("zarrs")
    names = vars(zarr.registry)["__codec_registries"]
    before = dict(names)
    with zarr.config.set({}):
        Zarrs()
        yield
    names.clear()
    names.update(before)
    zarr.config.refresh()


@_IGNORED
@_each(["zarrs"])
def test_zarrs(cell, tmp_path, zarrs_pipeline):
    def make(path, *, create):
        if create:
            make_with_gpustore(cell, path)  # zarr-python cannot make all of them.
        return zarr.open_array(path, mode="r+")

    check_with_peer(cell, tmp_path / "a", make)


def test_zarrs_does_not_extend_signs_rightly(tmp_path, zarrs_pipeline):
    """The registry has it so: the highest of the bits of a signed integer is its sign."""
    serializer = _named("packbits", last_bit=12)
    cell = Cell("zarr3", "zarrs", "to peer", "<i4", (), (), "C", serializer)
    make_with_gpustore(cell, tmp_path)[...] = data_of(cell)
    expected, found = held(cell), zarr.open_array(tmp_path, mode="r")[...]
    assert expected.min() < 0
    assert (found != expected).any()
    assert_same(found & 0x1FFF, expected & 0x1FFF)


@pytest.mark.matrix
@_each(["numpy"])
def test_numpy(cell, tmp_path):
    path = tmp_path / "a"
    plain = Cell(**{**vars(cell), "behind": ()})
    expected = held(cell)
    store = make_with_gpustore(plain, path)
    if cell.direction == "to peer":
        store[...] = data_of(cell)
        assert _chunks(path) == chunks_by_hand(plain)
        return
    for name, data in chunks_by_hand(plain).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    assert_same(store.read().result(), expected)
    assert_same(store[20:2:-3, ::-1, 1].read().result(), expected[20:2:-3, ::-1, 1])


# --------------------------------------------------------------------------- what cannot be


def _codecs_of(cell):
    return (cell.format, *(one.get("id", one.get("name")) for one in cell.filters), cell.serializer)


_TOLD = {json.dumps(_codecs_of(cell)): cell for cell in CELLS if cell.filters or cell.serializer}


@each("cell", _TOLD.values(), ids=_TOLD)
def test_tensorstore_has_none_of_them(cell, tmp_path):
    make_with_gpustore(cell, tmp_path / "a")
    message = "filters are not supported|is not registered|Unsupported zarr dtype"
    with pytest.raises((ValueError, NotImplementedError), match=message):
        tensorstore.open(_spec(cell, tmp_path / "a")).result()


REFUSED = {
    name: f"Unknown codec: '{name}'"
    for name in ("packbits", "cast_value", "scale_offset", "bitround", "reshape")
}
"""What zarr-python says to the codecs of the registry."""


@pytest.mark.parametrize("name", REFUSED)
def test_zarr_python_has_none_of_the_registry(name, tmp_path):
    cell = next(
        cell for cell in CELLS if name in [one["name"] for one in _v3_codecs(cell) if "name" in one]
    )
    make_with_gpustore(cell, tmp_path / "a")
    with pytest.raises(Exception, match=REFUSED[name]):
        zarr.open_array(tmp_path / "a", mode="r")


# --------------------------------------------------------------------------- the cells themselves


@pytest.mark.parametrize(
    ("peer", "direction", "least"),
    [
        (peer, direction, least)
        for (peer, least), direction in itertools.product(
            (("zarr-python", 100), ("zarrs", 8), ("numpy", 14)), DIRECTIONS
        )
    ],
)
def test_number_of_cells(peer, direction, least):
    assert len([c for c in CELLS if (c.peer, c.direction) == (peer, direction)]) >= least


def test_every_codec_occurs_in_both_formats_and_directions():
    for format, direction in itertools.product(("zarr2", "zarr3"), DIRECTIONS):
        found = set()
        for cell in CELLS:
            if (cell.format, cell.direction, cell.peer) == (format, direction, "zarr-python"):
                found |= {one.get("id", one.get("name")) for one in (*cell.filters, *cell.behind)}
        prefix = "" if format == "zarr2" else "numcodecs."
        singles = (*SINGLE, *ONLY_ZARR2) if format == "zarr2" else SINGLE
        assert found >= {f"{prefix}{id}" for id, *_ in singles}


def test_what_is_lost_is_lost_somewhere():
    """Otherwise the lossy codecs had not been asked."""
    lossy = ("fixedscaleoffset", "quantize", "bitround", "categorize", "cast_value", "packbits")
    for name in lossy:
        cells = [cell for cell in CELLS if name in cell.id]
        assert any(held(cell).tobytes() != data_of(cell).tobytes() for cell in cells), name
