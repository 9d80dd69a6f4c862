"""Effects of each option of a chunked array, compared with TensorStore."""

import numpy as np
import pytest

from tests.drivers.parity import both, check, description, files, outcome
from tests.matrix import each

DRIVERS = ("zarr3", "zarr2")

TRANSFORMS = {
    "identity": {"input_shape": [6, 5]},
    "part": {"input_inclusive_min": [1, 2], "input_exclusive_max": [4, 5]},
    "implicit": {"input_inclusive_min": [["-inf"], 1], "input_exclusive_max": [["+inf"], 3]},
    "implicit upper": {"input_shape": [6, [5]]},
    "moved": {
        "input_shape": [2, 3],
        "output": [{"input_dimension": 0, "offset": 2}, {"input_dimension": 1}],
    },
    "permuted": {
        "input_shape": [5, 6],
        "output": [{"input_dimension": 1}, {"input_dimension": 0}],
    },
    "strided": {
        "input_shape": [3, 2],
        "output": [{"input_dimension": 0, "stride": 2}, {"input_dimension": 1, "stride": 3}],
    },
    "reversed": {
        "input_shape": [6],
        "output": [{"input_dimension": 0, "stride": -1, "offset": 5}, {"offset": 2}],
    },
    "diagonal": {
        "input_shape": [5],
        "output": [{"input_dimension": 0}, {"input_dimension": 0}],
    },
    "constant": {"input_rank": 0, "output": [{"offset": 1}, {"offset": 2}]},
    "labels": {"input_shape": [6, 5], "input_labels": ["x", ""]},
    "rank only": {"input_rank": 2},
    "another rank": {"input_rank": 3},
    "one dimension": {"input_shape": [6]},
    "outside": {"input_inclusive_min": [4, 0], "input_exclusive_max": [8, 5]},
    "outside, implicit": {"input_inclusive_min": [4, 0], "input_exclusive_max": [[8], 5]},
    "before": {"input_inclusive_min": [-1, 0], "input_exclusive_max": [3, 5]},
    "empty": {"input_shape": [0, 5]},
    "index array": {
        "input_shape": [3],
        "output": [{"index_array": [5, 0, 5]}, {"input_dimension": 0, "offset": 1}],
    },
}

MEMBERS = {
    "path": {"path": "b"},
    "path with slash": {"path": "b/"},
    "deep path": {"path": "b/c"},
    "empty path": {"path": ""},
    "path is a number": {"path": 3},
    "rank": {"rank": 2},
    "another rank": {"rank": 3},
    "rank is no number": {"rank": "2"},
    "negative rank": {"rank": -1},
    "rank and transform": {"rank": 2, "transform": {"input_rank": 2}},
    "rank and another transform": {"rank": 2, "transform": {"input_rank": 1}},
    "one thread": {"data_copy_concurrency": {"limit": 1}},
    "shared threads": {"data_copy_concurrency": {"limit": "shared"}},
    "no thread": {"data_copy_concurrency": {"limit": 0}},
    "threads by name": {"data_copy_concurrency": "data_copy_concurrency#two"},
    "threads by a name that is not there": {"data_copy_concurrency": "data_copy_concurrency#x"},
    "store fill": {"store_data_equal_to_fill_value": True},
    "store fill is no boolean": {"store_data_equal_to_fill_value": 1},
    "missing": {"fill_missing_data_reads": False},
    "missing is no boolean": {"fill_missing_data_reads": None},
    "both": {"store_data_equal_to_fill_value": True, "fill_missing_data_reads": False},
    "an option of the kvstore": {"file_io_sync": False},
}

KVSTORE = {
    "no sync": {"file_io_sync": False},
    "no locks": {"file_io_locking": {"mode": "none"}},
    "lock files": {"file_io_locking": {"mode": "lockfile"}},
    "locks of the system": {"file_io_locking": {"mode": "os"}},
    "an unknown lock": {"file_io_locking": {"mode": "x"}},
    "time of locks": {"file_io_locking": {"mode": "os", "acquire_timeout": "1s"}},
    "concurrency": {"file_io_concurrency": {"limit": 1}},
    "no concurrency": {"file_io_concurrency": {"limit": 0}},
    "an unknown mode": {"file_io_mode": {"mode": "x"}},
    "retries": {"file_io_retries": {"max_retries": 3}},
    "negative retries": {"file_io_retries": {"max_retries": -1}},
}


def opened(library, root, driver, members, kvstore=(), **keywords):
    spec = {
        "driver": driver,
        "kvstore": {"driver": "file", "path": f"{root}/a/", **dict(kvstore)},
        **members,
    }
    context = library.Context({"data_copy_concurrency#two": {"limit": 2}})
    return library.open(spec, context=context, **keywords).result()


def new(library):
    return {
        "create": True,
        "dtype": "uint16",
        "fill_value": 0,
        "chunk_layout": library.ChunkLayout(chunk_shape=[3, 2]),
    }


def short(function):
    """Return the outcome without the additions of our errors."""
    found = outcome(function)
    return found if isinstance(found, str) else [found[0], found[1].partition(";")[0]]


def behaviour(store):
    """Return properties, and elements before and after writes of values and of the fill value."""
    one = store[:3, :2]  # Of several missing chunks any may be named.
    return [
        description(store),
        short(lambda: one.read().result()),
        short(lambda: store.write(7).result()),
        short(lambda: store.read().result()),
        short(lambda: store.write(0).result()),
        short(lambda: one.read().result()),
    ]


def stored(root):
    return {name: data.hex() for name, data in files(root).items() if "json" not in name}


@pytest.mark.matrix("costly")
@each(
    ("name", "driver"),
    [
        (name, driver)
        for name in TRANSFORMS
        for driver in DRIVERS
        # TensorStore's zarr2 driver has no fill value where there is nothing to fill.
        if (name, driver) != ("empty", "zarr2")
    ],
)
def test_transform_of_an_existing_array(name, driver, tmp_path):
    def run(library, root):
        array = opened(library, root, driver, {}, shape=[6, 5], **new(library))
        array.write(np.arange(30, dtype=np.uint16).reshape(6, 5)).result()
        store = opened(library, root, driver, {"transform": TRANSFORMS[name]})
        before = store.read().result()
        outcome(lambda: store.write(100).result())
        return [description(store), before, array.read().result()]

    check(run, tmp_path)


@pytest.mark.matrix("costly")
@each("driver", DRIVERS)
@each("name", MEMBERS)
def test_option(name, driver, tmp_path):
    def run(library, root):
        store = opened(library, root, driver, MEMBERS[name], shape=[4, 3], **new(library))
        return [behaviour(store), stored(root)]

    check(run, tmp_path)


@each("driver", DRIVERS)
@each("name", KVSTORE)
def test_option_of_the_kvstore(name, driver, tmp_path):
    def run(library, root):
        store = opened(library, root, driver, {}, KVSTORE[name], shape=[4, 3], **new(library))
        return [behaviour(store), stored(root)]

    check(run, tmp_path)


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("path", ["/b", "../b"])
def test_path_that_is_no_key(path, driver, tmp_path):
    """An error in both libraries; ours comes before anything is opened."""

    def run(library, root):
        store = opened(library, root, driver, {"path": path}, shape=[4, 3], **new(library))
        return store.read().result()

    ours, theirs = both(run, tmp_path)
    assert ours[0] == theirs[0]
    assert "Invalid" in ours[1]
    assert "Invalid key" in theirs[1]
    assert not list(tmp_path.rglob("*.*"))


@each("driver", DRIVERS)
@each("name", [*MEMBERS, *KVSTORE])
def test_option_prints_as_it_was_given(name, driver, tmp_path):
    members = {"kvstore": {"driver": "file", "path": "/x/", **KVSTORE.get(name, {})}}

    def run(library, root):
        spec = library.Spec({"driver": driver, **members, **MEMBERS.get(name, {})})
        return spec.to_json()

    check(run, tmp_path)
