"""Opening arrays, compared with TensorStore: keywords, modes, constraints and messages."""

import os
import pathlib
import re

import numpy as np
import pytest
import tensorstore as ts

import gpustore
from gpustore.backends.selection import missing_for_cuda
from tests.drivers.parity import LIBRARIES, agree, both, check, description, files, outcome
from tests.kvstores.http.http_server import HttpServer
from tests.matrix import each

ZARR3 = {
    "shape": [10, 20],
    "data_type": "uint16",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3, 4]}},
    "fill_value": 7,
    "dimension_names": ["x", None],
    "attributes": {"dimension_units": ["4 nm", None], "a": 1},
    "codecs": [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "gzip", "configuration": {"level": 5}},
    ],
}
ZARR2 = {
    "shape": [10, 20],
    "dtype": "<u2",
    "chunks": [3, 4],
    "fill_value": 7,
    "compressor": {"id": "zlib", "level": 3},
    "order": "F",
}
FORMATS = {"zarr3": ZARR3, "zarr2": ZARR2}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A folder with an array of each format, written by TensorStore."""
    root = tmp_path_factory.mktemp("stored")
    for name, metadata in FORMATS.items():
        spec = {"driver": name, "kvstore": f"file://{root}/{name}", "metadata": metadata}
        ts.open(spec, create=True).result()
    return root


def layout(**keywords):
    return lambda library: {"chunk_layout": library.ChunkLayout(**keywords)}


def codec(json):
    return lambda library: {"codec": library.CodecSpec(json)}


def gzip(level):
    return {"driver": "zarr3", "codecs": [{"name": "gzip", "configuration": {"level": level}}]}


def zlib(level):
    return {"driver": "zarr", "compressor": {"id": "zlib", "level": level}}


def schema(**keywords):
    return lambda library: {"schema": library.Schema(**keywords)}


def domain(**keywords):
    return lambda library: {"domain": library.IndexDomain(**keywords)}


KEYWORDS = {
    "nothing": {},
    "dtype": {"dtype": "uint16"},
    "dtype of NumPy": {"dtype": np.uint16},
    "dtype of the library": lambda library: {"dtype": library.uint16},
    "another dtype": {"dtype": "int8"},
    "unknown dtype": {"dtype": "nope"},
    "rank": {"rank": 2},
    "another rank": {"rank": 3},
    "rank 33": {"rank": 33},
    "rank of text": {"rank": "2"},
    "shape": {"shape": [10, 20]},
    "another shape": {"shape": [10, 21]},
    "shape of rank 1": {"shape": [10]},
    "domain": domain(shape=[10, 20]),
    "domain with labels": domain(labels=["x", "y"], shape=[10, 20]),
    "domain with other labels": domain(labels=["q", "y"], shape=[10, 20]),
    "domain with an origin": domain(inclusive_min=[1, 0], shape=[10, 20]),
    "resizable domain": domain(
        inclusive_min=[0, 0], exclusive_max=[5, 5], implicit_upper_bounds=[1, 1]
    ),
    "domain and shape": lambda library: {
        "domain": library.IndexDomain(shape=[10, 20]),
        "shape": [10, 20],
    },
    "fill_value": {"fill_value": 7},
    "fill_value as float": {"fill_value": 7.0},
    "another fill_value": {"fill_value": 8},
    "fill_value of rank 1": {"fill_value": [1, 2]},
    "dimension_units": {"dimension_units": ["4nm", None]},
    "more dimension_units": {"dimension_units": [None, "3s"]},
    "no dimension_units": {"dimension_units": [None, None]},
    "other dimension_units": {"dimension_units": ["5nm", None]},
    "dimension_units of rank 1": {"dimension_units": ["5nm"]},
    "Unit": lambda library: {"dimension_units": [library.Unit(4, "nm"), None]},
    "chunk_shape": layout(chunk_shape=[3, 4]),
    "another chunk_shape": layout(chunk_shape=[3, 5]),
    "another write_chunk_shape": layout(write_chunk_shape=[3, 5]),
    "another read_chunk_shape": layout(read_chunk_shape=[3, 5]),
    "write_chunk_elements": layout(write_chunk_elements=5),
    "chunk_aspect_ratio": layout(chunk_aspect_ratio=[1, 2]),
    "chunk_shape of rank 3": layout(chunk_shape=[3, 4, 5]),
    "soft chunk_shape": layout(chunk_shape_soft_constraint=[3, 5]),
    "inner_order F": layout(inner_order=[1, 0]),
    "inner_order C": layout(inner_order=[0, 1]),
    "codec_chunk": lambda library: {
        "chunk_layout": library.ChunkLayout(codec_chunk=library.ChunkLayout.Grid(shape=[1, 1]))
    },
    "grid_origin": layout(grid_origin=[0, 0]),
    "zarr3 codec": codec({"driver": "zarr3"}),
    "zarr3 gzip": codec({"driver": "zarr3", "codecs": ["gzip"]}),
    "zarr3 gzip 5": codec(gzip(5)),
    "zarr3 gzip 6": codec(gzip(6)),
    "zarr3 zstd": codec({"driver": "zarr3", "codecs": ["zstd"]}),
    "zarr3 bytes": codec({"driver": "zarr3", "codecs": ["bytes"]}),
    "zarr3 big endian": codec(
        {
            "driver": "zarr3",
            "codecs": [{"name": "bytes", "configuration": {"endian": "big"}}, "gzip"],
        }
    ),
    "zarr2 codec": codec({"driver": "zarr"}),
    "zarr2 zlib 3": codec(zlib(3)),
    "zarr2 zlib 4": codec(zlib(4)),
    "zarr2 none": codec({"driver": "zarr", "compressor": None}),
    "zarr2 blosc": codec({"driver": "zarr", "compressor": {"id": "blosc"}}),
    "schema": schema(dtype="uint16", rank=2),
    "another schema": schema(dtype="int8", rank=2),
    "schema and dtype": lambda library: {"schema": library.Schema(dtype="int8"), "dtype": "uint16"},
    "context": lambda library: {
        "context": library.Context({"cache_pool": {"total_bytes_limit": 1000}})
    },
    "context is a number": {"context": 5},
    "read": {"read": True},
    "write": {"write": True},
    "read, write": {"read": True, "write": True},
    "read, not write": {"read": True, "write": False},
    "create": {"create": True},
    "create, read": {"create": True, "read": True},
    "create, open": {"create": True, "open": True},
    "create, open, another dtype": {"create": True, "open": True, "dtype": "int8"},
    "delete_existing": {"delete_existing": True},
    "delete_existing, open": {"delete_existing": True, "open": True},
    "delete_existing, open, create": {"delete_existing": True, "open": True, "create": True},
    "delete_existing, assume_metadata": {
        "delete_existing": True,
        "assume_metadata": True,
        "create": True,
    },
    "create, assume_metadata": {"create": True, "assume_metadata": True},
    "create, assume_cached_metadata": {"create": True, "assume_cached_metadata": True},
    "open_mode": lambda library: {"open_mode": library.OpenMode(open=True)},
    "open_mode create": lambda library: {"open_mode": library.OpenMode(create=True)},
    "not open": {"open": False},
    "not open, not create": {"open": False, "create": False},
    "kvstore twice": lambda library: {"kvstore": library.KvStore.Spec("memory://")},
    "recheck_cached_data": {"recheck_cached_data": False},
    "recheck_cached_data open": {"recheck_cached_data": "open"},
    "recheck_cached_data time": {"recheck_cached_data": 100.5},
    "recheck_cached_metadata": {"recheck_cached_metadata": "open"},
    "recheck_cached": {"recheck_cached": False},
    "unknown keyword": {"foo": 1},
}


def keywords_for(name, library):
    keywords = KEYWORDS[name]
    return keywords(library) if callable(keywords) else keywords


def test_the_error_about_an_existing_array_names_the_remedy(tmp_path):
    path = f"{tmp_path}/a|zarr3:"
    for _ in range(2):
        gpustore.open(path, create=True, open=True, dtype="uint8", shape=[1]).result()
    expected = "it exists: open=True opens it; delete_existing=True, or overwrite=True of"
    with pytest.raises(gpustore.AlreadyExistsError, match=expected):
        gpustore.open(path, create=True, dtype="uint8", shape=[1]).result()
    gpustore.open(path, create=True, delete_existing=True, dtype="uint8", shape=[1]).result()


@pytest.mark.matrix("costly")
@each("driver", FORMATS)
@each("name", KEYWORDS)
def test_keyword_on_an_existing_array(name, driver, stored):
    """The same store, or the same refusal, and nothing changed."""
    outcomes = [
        outcome(
            lambda library=library: description(
                library.open(
                    f"file://{stored}/{driver}|{driver}:", **keywords_for(name, library)
                ).result()
            ),
            root=stored,
        )
        for library in LIBRARIES
    ]
    assert agree(*outcomes), f"ours: {outcomes[0]}\ntheirs: {outcomes[1]}"


@pytest.mark.parametrize("driver", FORMATS)
def test_text_is_no_fill_value_of_numbers(driver, stored):
    """TensorStore, which has no arrays of text, refuses it before it opens anything."""
    sentence = "No TensorStore data type corresponding to NumPy dtype: dtype('<U1')"
    for library in LIBRARIES:
        with pytest.raises(ValueError, match=re.escape(sentence)):
            library.open(f"file://{stored}/{driver}|{driver}:", fill_value="x").result()


@pytest.mark.parametrize(
    ("keywords", "mode"),
    [
        ({"write": False}, "r"),
        ({"read": False}, "w"),
        ({"read": True, "write": False}, "r"),
        ({"read": False, "write": False}, ""),
    ],
)
def test_false_means_no(keywords, mode, stored):
    """TensorStore takes False as not given: ``write=False`` would be writable."""
    assert gpustore.open(stored / "zarr3", **keywords).result().mode == mode


def test_grid_origin_other_than_zero(stored):
    """The error is TensorStore's, raised when the spec is made."""
    for driver in FORMATS:
        with pytest.raises(gpustore.MetadataError, match="does not match existing hard constraint"):
            gpustore.open(
                f"file://{stored}/{driver}|{driver}:",
                chunk_layout=gpustore.ChunkLayout(grid_origin=[1, 1]),
            ).result()


METADATA = {
    "zarr3": {
        "shape": {"shape": [10, 21]},
        "chunk_shape": {
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 1]}}
        },
        "data_type": {"data_type": "int8"},
        "fill_value": {"data_type": "uint16", "fill_value": 8},
        "codecs": {"codecs": ["zstd"]},
        "codecs option": {"codecs": [{"name": "gzip", "configuration": {"level": 6}}]},
        "codecs of another length": {"codecs": []},
        "chunk_key_encoding": {"chunk_key_encoding": {"name": "v2"}},
        "attributes": {"attributes": {"a": 2}},
        "another attribute": {"attributes": {"b": 2}},
        "dimension_units": {"attributes": {"dimension_units": ["5 nm", None]}},
        "same": ZARR3,
        "same shape": {"shape": [10, 20]},
        "same names": {"dimension_names": ["x", None]},
        "same attribute": {"attributes": {"a": 1}},
    },
    "zarr2": {
        "shape": {"shape": [10, 21]},
        "chunks": {"chunks": [1, 1]},
        "dtype": {"dtype": "<i2"},
        "byte order": {"dtype": ">u2"},
        "fill_value": {"dtype": "<u2", "fill_value": 8},
        "fill_value null": {"fill_value": None},
        "order": {"order": "C"},
        "compressor": {"compressor": None},
        "compressor option": {"compressor": {"id": "zlib", "level": 4}},
        "dimension_separator": {"dimension_separator": "/"},
        "same": ZARR2,
        "same shape": {"shape": [10, 20]},
    },
}


@each(("driver", "name"), [(driver, name) for driver, cases in METADATA.items() for name in cases])
def test_metadata_of_the_spec_constrain_those_stored(driver, name, stored):
    spec = {"driver": driver, "kvstore": f"file://{stored}/{driver}"}
    spec["metadata"] = METADATA[driver][name]
    ours, theirs = (
        outcome(lambda library=library: description(library.open(spec).result()), root=stored)
        for library in LIBRARIES
    )
    assert agree(ours, theirs), f"ours: {ours}\ntheirs: {theirs}"


def test_other_dimension_names_are_named(stored):
    """TensorStore prints an unnamed dimension as ``<discarded>``."""
    spec = {"driver": "zarr3", "kvstore": f"file://{stored}/zarr3"}
    spec["metadata"] = {"dimension_names": ["x", "y"]}
    with pytest.raises(gpustore.MismatchError, match=r'\["x","y"\] but received: \["x",null\]'):
        gpustore.open(spec).result()


CREATE = {
    "dtype and shape": {"dtype": "int8", "shape": [2, 3]},
    "dtype only": {"dtype": "int8"},
    "shape only": {"shape": [2]},
    "rank 0": {"dtype": "int8", "rank": 0},
    "rank 2": {"dtype": "int8", "rank": 2},
    "no dimensions": {"dtype": "int8", "shape": []},
    "no elements": {"dtype": "int8", "shape": [0, 3]},
    "negative shape": {"dtype": "int8", "shape": [-1, 3]},
    "shape of text": {"dtype": "int8", "shape": "ab"},
    "unit without dimension": {"dtype": "int8", "shape": [2], "dimension_units": [""]},
    "write only": {"dtype": "int8", "shape": [2], "write": True},
    "read only": {"dtype": "int8", "shape": [2], "read": True},
    "delete_existing": {"dtype": "int8", "shape": [2], "delete_existing": True},
    "open": {"dtype": "int8", "shape": [2], "open": True},
}


@each("driver", FORMATS)
@each("name", CREATE)
def test_creating(name, driver, tmp_path):
    def create(library, root):
        store = library.open(f"memory://a|{driver}:", create=True, **CREATE[name]).result()
        return description(store)

    check(create, tmp_path)


DOMAINS = {
    "origin": {"inclusive_min": [1], "shape": [3]},
    "infinite": {"inclusive_min": [0]},
    "lower bound unknown": {"inclusive_min": ["-inf"], "exclusive_max": [5]},
    "implicit lower bound": {"inclusive_min": [["-inf"]], "exclusive_max": [5]},
    "resizable": {"inclusive_min": [0], "shape": [[3]]},
    "labels": {"shape": [3], "labels": ["x"]},
}


@each("driver", FORMATS)
@each("name", DOMAINS)
def test_creating_with_a_domain(name, driver, tmp_path):
    spec = {"driver": driver, "kvstore": "memory://", "schema": {"domain": DOMAINS[name]}}
    check(
        lambda library, root: description(library.open(spec, create=True, dtype="int8").result()),
        tmp_path,
    )


@pytest.mark.parametrize("driver", FORMATS)
def test_modes_step_by_step(driver, tmp_path):
    """Open what is missing, create it, create it again, open or create it, replace it."""

    def steps(library, root):
        url = f"file://{root}/a|{driver}:"
        new = {"dtype": "uint8", "shape": [3]}

        def step(**keywords):
            result = outcome(lambda: description(library.open(url, **keywords).result()), root=root)
            # Ours may say more, and is of more kinds.
            return result if isinstance(result, str) else result[1].split("; ")[0]

        return [
            step(),
            step(create=True, open=True, **new),
            step(create=True, **new),
            step(create=True, open=True),
            step(create=True, open=True, dtype="int8", shape=[3]),
            step(create=True, delete_existing=True, dtype="int8", shape=[4]),
            step(),
            sorted(files(root)),
        ]

    check(steps, tmp_path)


@pytest.mark.parametrize("driver", FORMATS)
def test_creating_over_metadata_that_are_no_json(driver, tmp_path):
    def create(library, root):
        (root / "a").mkdir()
        (root / "a" / ("zarr.json" if driver == "zarr3" else ".zarray")).write_text("{foo")
        return library.open(f"file://{root}/a|{driver}:", create=True, dtype="int8", shape=[2])

    check(lambda library, root: create(library, root).result(), tmp_path)


@pytest.mark.parametrize("driver", FORMATS)
@pytest.mark.parametrize("base", ["memory", "file"])
def test_delete_existing_deletes_exactly_the_keys_below_the_path(driver, base, tmp_path):
    def delete(library, root):
        context = library.Context()
        url = f"file://{root}/" if base == "file" else "memory://"
        store = library.KvStore.open(url, context=context).result()
        for key in ("a.x", "ab", "a/x", "a/b/c", "b/a/x"):
            store[key] = b"1"
        if base == "memory":
            store["a"] = b"1"
        library.open(
            f"{url}a|{driver}:",
            context=context,
            create=True,
            delete_existing=True,
            dtype="int8",
            shape=[2],
        ).result()
        return sorted(key.decode() for key in store.list().result())

    check(delete, tmp_path)


def test_memory_is_shared_within_a_context_only(tmp_path):
    def share(library, root):
        context = library.Context()
        url = "memory://a|zarr3:"
        first = library.open(url, context=context, create=True, dtype="int8", shape=[3]).result()
        first[...] = [1, 2, 3]
        second = library.open(url, context=context).result()
        second[0] = 9
        child = library.open(url, context=library.Context({}, context)).result()
        return [
            first.read().result().tolist(),
            child.read().result().tolist(),
            outcome(lambda: library.open(url, context=library.Context()).result())[1],
            outcome(lambda: library.open(url).result())[1],
        ]

    check(share, tmp_path)


def test_kvstore_keyword(tmp_path):
    """An array is a directory: TensorStore forgets the slash here and writes ``azarr.json``."""
    for n, kvstore in enumerate(
        (
            gpustore.KvStore.Spec(f"file://{tmp_path}/a0"),
            gpustore.KvStore.open(f"file://{tmp_path}/a1").result(),
        )
    ):
        store = gpustore.open(
            {"driver": "zarr3"}, kvstore=kvstore, create=True, dtype="int8", shape=[2]
        ).result()
        assert store.url == f"file://{tmp_path}/a{n}/|zarr3:"
        assert (tmp_path / f"a{n}" / "zarr.json").exists()
    check(lambda library, root: library.open({"driver": "zarr3"}).result(), tmp_path)
    check(lambda library, root: library.open({"driver": "zarr3"}, kvstore=5).result(), tmp_path)


def test_kvstore_keyword_shares_memory():
    kvstore = gpustore.KvStore.open("memory://a/").result()
    spec = {"driver": "zarr3"}
    gpustore.open(spec, kvstore=kvstore, create=True, dtype="int8", shape=[2]).result()[...] = 5
    assert kvstore["zarr.json"]
    assert gpustore.open(spec, kvstore=kvstore).result()[1].read().result() == 5


AUTO = {
    "plain URL": lambda url: url,
    "URL with a slash": lambda url: url + "/",
    "auto": lambda url: url + "|auto:",
    "kvstore JSON": lambda url: {"driver": "file", "path": url.removeprefix("file://")},
    "auto JSON": lambda url: {"driver": "auto", "kvstore": url},
    "driver": lambda url: url + "|{driver}:",
    "path below the driver": lambda url: url.removesuffix("/a") + "|{driver}:a",
    "path below auto": lambda url: url.removesuffix("/a") + "|auto:a",
    "missing": lambda url: url + "b",
}


@pytest.mark.matrix("costly")
@each("driver", FORMATS)
@each("name", AUTO)
@each("keywords", [{}, {"dtype": "int8"}, {"dtype": "uint8"}, {"create": True}])
def test_ways_to_name_an_array(name, driver, keywords, tmp_path):
    def run(library, root):
        url = f"file://{root}/a"
        library.open(f"{url}|{driver}:", create=True, dtype="int8", shape=[2]).result()
        spec = AUTO[name](url)
        if isinstance(spec, str):
            spec = spec.replace("{driver}", driver)
        return description(library.open(spec, **keywords).result())

    check(run, tmp_path)


def test_both_formats_in_one_place(tmp_path):
    def run(library, root):
        for driver in FORMATS:
            library.open(
                f"file://{root}/a|{driver}:", create=True, dtype="int8", shape=[2]
            ).result()
        return library.open(f"file://{root}/a").result()

    check(run, tmp_path)


def test_paths(tmp_path, monkeypatch):
    """Paths in the notation of a shell, which TensorStore does not take."""
    url = f"file://{tmp_path}/a b.zarr|zarr3:"
    gpustore.open(url, create=True, dtype="int8", shape=[2]).result()[...] = 3
    monkeypatch.chdir(tmp_path)
    for path in (
        tmp_path / "a b.zarr",
        pathlib.PurePosixPath("a b.zarr"),
        "a b.zarr",
        "./a b.zarr/",
        str(tmp_path / "a b.zarr"),
        os.path.join(os.pardir, tmp_path.name, "a b.zarr"),
        "a b.zarr|zarr3",
    ):
        assert gpustore.open(path).result().read().result().tolist() == [3, 3], path
    with pytest.raises(gpustore.NotFoundError, match="Failed to detect format"):
        gpustore.open(tmp_path / "nope").result()


@pytest.mark.parametrize("bad", [5, None, ["a"], {}, "", "nope://x", {"driver": "nope"}])
def test_no_spec(bad, tmp_path):
    check(lambda library, root: library.open(bad).result(), tmp_path)


TRANSFORMS = {
    "part": np.s_[:, 1],
    "outside": np.s_[:, 4],
    "too long": np.s_[:3, 1],
    "strided": np.s_[::-1, ::2],
    "new dimension": np.s_[None, 0],
}


@each("driver", FORMATS)
@each("name", TRANSFORMS)
def test_part_of_an_array(name, driver, tmp_path):
    def run(library, root):
        url = f"file://{root}/a"
        library.open(f"{url}|{driver}:", create=True, dtype="int8", shape=[2, 3]).result()
        spec = library.Spec({"driver": driver, "kvstore": url, "rank": 2})[TRANSFORMS[name]]
        return description(library.open(spec).result())

    check(run, tmp_path)


def test_labels_of_the_spec_replace_those_stored(stored):
    """A domain without labels is one, too."""
    url = f"file://{stored}/zarr3|zarr3:"
    assert gpustore.open(url).result().domain.labels == ("x", "")
    assert gpustore.open(url, shape=[10, 20]).result().domain.labels == ("", "")


def test_devices(stored):
    """Host memory is chosen by name, or because there is nothing else."""
    expected = gpustore.open(stored / "zarr3").result().read().result()
    for device in ("cpu", "auto"):
        found = gpustore.open(stored / "zarr3", device=device).result().read().result()
        assert np.array_equal(np.asarray(found), np.asarray(expected))
    assert isinstance(
        gpustore.open(stored / "zarr3", device="cpu").result()[0, 0].read().result(), np.ndarray
    )


def test_device_in_the_context(stored):
    context = gpustore.Context({"device": "cpu"})
    store = gpustore.open(stored / "zarr3", context=context).result()
    assert isinstance(store.read().result(), np.ndarray)


def test_cuda_that_cannot_be_used_is_one_clear_error(stored):
    error = gpustore.open(stored / "zarr3", device="cuda").exception()
    if error is None:
        assert not missing_for_cuda()
        return
    assert isinstance(error, gpustore.DeviceError)
    for text in ('device "cuda" cannot be used', *missing_for_cuda()):
        assert text in str(error)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CPU", 5])
def test_unknown_device(device, stored):
    with pytest.raises((gpustore.MetadataError, TypeError), match="device"):
        gpustore.open(stored / "zarr3", device=device).result()


def test_errors_of_the_store_come_through_the_future(stored):
    future = gpustore.open(stored / "nope" / "a", dtype="uint8")
    with pytest.raises(FileNotFoundError):
        future.result()
    assert isinstance(future.exception(), gpustore.PathNotFoundError)


@pytest.mark.parametrize("driver", ["", "|zarr2:", "|zarr3:"])
@pytest.mark.parametrize("place", ["volum.zarr", "dta/volume.zarr", "data/volume.zar/"])
def test_a_typo_anywhere_in_a_path_is_a_missing_file(tmp_path, place, driver):
    for name in ("volume.zarr", "data/volume.zarr"):
        gpustore.save(tmp_path / name, [1])
    with pytest.raises(
        FileNotFoundError, match=r'; did you mean "(volume\.zarr|data)"\?$'
    ) as error:
        gpustore.open(f"{tmp_path}/{place}{driver}").result()
    assert isinstance(error.value, gpustore.NotFoundError)


def test_a_typo_in_memory_and_on_a_web_server_is_a_missing_file():
    context = gpustore.Context()
    gpustore.open(
        "memory://a/volume/|zarr3:", create=True, dtype="bool", shape=[1], context=context
    ).result()
    with pytest.raises(FileNotFoundError, match=r'did you mean "volume"\?$'):
        gpustore.open("memory://a/volum/", context=context).result()
    with HttpServer({}) as server:
        for place in ("a", "a/", "a|zarr3:"):
            with pytest.raises(FileNotFoundError):
                gpustore.open(f"{server.url}/{place}").result()


def test_a_path_that_is_not_there_names_those_like_it(tmp_path):
    for name in ("volume.zarr", "volumes.zarr", "other"):
        gpustore.save(tmp_path / name, [1])
    with pytest.raises(
        gpustore.NotFoundError,
        match=r'there is nothing; did you mean "volume\.zarr" or "volumes\.zarr"\?$',
    ):
        gpustore.open(tmp_path / "volum.zarr").result()
    group = gpustore.open_group(tmp_path / "group", create=True).result()
    for name in ("image", "images"):
        group.create_array(f"a/{name}", data=[1]).result()
    with pytest.raises(gpustore.NotFoundError, match=r'; did you mean "image" or "images"\?$'):
        group["a/imag"]
    with pytest.raises(gpustore.NotFoundError, match=r"does not exist$"):
        group["b"]


@pytest.mark.parametrize(
    ("begin", "what"),
    [
        (
            b"\x89HDF\r\n\x1a\n",
            "an HDF5 or netCDF-4 file, which h5py reads and gpustore.copy copies",
        ),
        (
            b"\x93NUMPY",
            "an array in NumPy's format, which numpy.load reads and gpustore.copy copies",
        ),
        (b"\x1f\x8b", "compressed by gzip"),
    ],
)
def test_files_of_other_kinds_are_named(begin, what, tmp_path):
    (tmp_path / "x").write_bytes(begin + bytes(30))
    with pytest.raises(gpustore.MismatchError, match=f"it is {what}"):
        gpustore.open(tmp_path / "x").result()


def test_helpers_see_a_difference(tmp_path):
    """The comparison itself must be able to fail."""
    ours, theirs = both(lambda library, root: library.__name__, tmp_path)
    assert not agree(ours, theirs)


@pytest.mark.parametrize("value", [np.zeros(2), gpustore.array([1])], ids=["array", "store"])
def test_an_array_in_place_of_a_spec_is_not_taken_for_json(value):
    with pytest.raises(TypeError, match=r"expected a path, .*gpustore\.array makes a store"):
        gpustore.open(value)


def test_futures_of_openings_say_so_and_count_their_work(tmp_path):
    gpustore.save(f"{tmp_path}/a.zarr", np.arange(4))
    gpustore.open_group(f"{tmp_path}/g.zarr", create=True).result()
    for begun in (gpustore.open(f"{tmp_path}/a.zarr"), gpustore.open_group(f"{tmp_path}/g.zarr")):
        assert repr(begun) == "<gpustore.Future of an opening, not begun: call .result()>"
    made = gpustore.create_array(f"{tmp_path}/b.zarr", data=np.arange(4))
    made.result()
    assert made.statistics["writes"] == 1
