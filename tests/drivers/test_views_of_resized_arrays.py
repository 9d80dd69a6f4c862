"""Views of an array that another object has resized have its bounds now, as in TensorStore."""

import json

import numpy as np

from tests.drivers.parity import LIBRARIES
from tests.matrix import each

VIEWS = {
    "itself": lambda lib, store: store,
    "a part": lambda lib, store: store[1:],
    "cast": lambda lib, store: lib.cast(store, lib.int32),
    "downsample": lambda lib, store: lib.downsample(store, [2], "max"),
    "downsample of a part": lambda lib, store: lib.downsample(store[1:], [2], "max"),
    "strided": lambda lib, store: lib.downsample(store, [2], "stride"),
    "downsample of cast": lambda lib, store: lib.downsample(
        lib.cast(store, lib.int32), [2], "mean"
    ),
    "stack": lambda lib, store: lib.stack([store, store]),
    "overlay": lambda lib, store: lib.overlay([store.translate_by[2], store]),
}


@each("name", VIEWS)
@each("extent", [5, 2])
def test_views_have_the_bounds_of_now(name, extent):
    found = []
    for lib in LIBRARIES:
        context = lib.Context()
        metadata = {"shape": [3], "data_type": "uint8"}
        spec = {"driver": "zarr3", "kvstore": "memory://a/", "metadata": metadata}
        store = lib.open(spec, create=True, context=context).result()
        newest = store.resize(exclusive_max=[extent]).result()
        newest.write(np.arange(extent, dtype="uint8")).result()
        view = VIEWS[name](lib, store)
        said = [str(view.domain), json.dumps(view.spec().to_json(), sort_keys=True)]
        if extent > 2 or name not in ("stack", "overlay"):  # A row of docs/compatibility.md.
            said.append(view.read().result().tolist())
        found.append(said)
    assert found[0] == found[1]


@each("name", [*VIEWS])
@each("extent", [5, 2, None])
def test_views_in_a_transaction_have_the_bounds_of_now(name, extent):
    """Also what a resize returns that changes nothing."""
    found = []
    for lib in LIBRARIES:
        metadata = {"shape": [3], "data_type": "int32", "fill_value": 1}
        spec = {"driver": "zarr3", "kvstore": "memory://a/", "metadata": metadata}
        store = lib.open(spec, create=True, context=lib.Context()).result()
        newest = store.resize(exclusive_max=[extent]).result()
        said = [str(store.resize(exclusive_max=[None]).result().domain)]
        if extent != 2 or name not in ("stack", "overlay"):
            with lib.Transaction() as transaction:
                view = VIEWS[name](lib, store).with_transaction(transaction)
                said.append(view.read().result().tolist())
                if view.writable:
                    view.write(7).result()
                    said.append(view.read().result().tolist())
            said.append(newest.read().result().tolist())
        found.append(said)
    assert found[0] == found[1]


@each("elements", [7, [1, 2, 3], [1, 2], [1, 2, 3, 4, 5]])
@each("extent", [5, 2])
@each("name", ["itself", "a part", "cast"])
def test_writes_have_the_bounds_of_now(name, extent, elements):
    found = []
    for lib in LIBRARIES:
        spec = {"driver": "zarr3", "kvstore": "memory://a/"}
        metadata = {"shape": [3], "data_type": "int32"}
        context = lib.Context()
        store = lib.open(spec | {"metadata": metadata}, create=True, context=context).result()
        newest = store.resize(exclusive_max=[extent]).result()
        view = VIEWS[name](lib, store)
        try:
            view.write(np.array(elements, "int32")).result()
        except ValueError as error:
            found.append(str(error))
            continue
        found.append(newest.read().result().tolist())
    assert found[0] == found[1]
