"""Specs that are bound to a context, against TensorStore's."""

import pickle

import pytest
import tensorstore as ts

import gpustore
from tests.matrix import each

DEFINED = {
    "cache_pool": {"total_bytes_limit": 5},
    "cache_pool#x": {"total_bytes_limit": 7},
    "memory_key_value_store#a": {},
}
ZARR3 = {"driver": "zarr3", "kvstore": "memory://a/"}
NAMED = {"driver": "memory", "memory_key_value_store": "memory_key_value_store#a"}
ARRAY = {"driver": "zarr3", "kvstore": NAMED, "metadata": {"shape": [3], "data_type": "uint8"}}
SPECS = {
    "memory": ZARR3,
    "file": {"driver": "zarr2", "kvstore": "file:///there/"},
    "of its own": ZARR3 | {"context": {"cache_pool": {"total_bytes_limit": 1000}}},
    "named": {"driver": "zarr3", "kvstore": NAMED, "cache_pool": "cache_pool#x"},
    "of a resource": ZARR3 | {"cache_pool": {"total_bytes_limit": 9}},
    "of the kvstore": {
        "driver": "zarr3",
        "kvstore": {"driver": "memory", "context": {"memory_key_value_store": {}}},
    },
    "cast": {"driver": "cast", "dtype": "int32", "base": ZARR3},
    "downsample": {
        "driver": "downsample",
        "downsample_factors": [2],
        "downsample_method": "mean",
        "base": ZARR3 | {"rank": 1},
    },
    "n5": {"driver": "n5", "kvstore": "memory://a/"},
    "json": {"driver": "json", "kvstore": "memory://a"},
    "auto": {"driver": "auto", "kvstore": "memory://a/"},
    "ocdbt": {"driver": "zarr3", "kvstore": "memory://a/|ocdbt:b/"},
}


def described(library, json):
    """Return what a spec says while it is bound, unbound and stripped, and to what it is equal."""
    context = library.Context(DEFINED)
    spec, other, third = (library.Spec(json) for _ in range(3))
    spec.update(context=context)
    other.update(context=context)
    third.update(context=library.Context(DEFINED))
    unbound = spec.copy()
    unbound.update(unbind_context=True)
    stripped = unbound.copy()
    stripped.update(strip_context=True)
    again = pickle.loads(pickle.dumps(spec))
    said = [one.to_json() for one in (spec, unbound, stripped, again)]
    for json in said:
        json.get("context", {}).pop("ocdbt_coordinator", None)  # Nothing coordinates writers here.
    return (
        *said,
        [str(one) for one in (spec, unbound, again)],
        *(spec == one for one in (spec.copy(), other, third, unbound)),
    )


@each("name", SPECS)
def test_bound_specs_say_what_tensorstore_says(name):
    ours, theirs = (described(library, SPECS[name]) for library in (gpustore, ts))
    if name in ("json", "auto"):  # TensorStore lists fewer resources, or all there are.
        assert ours[2] == theirs[2]
        assert ours[5:] == theirs[5:]
    else:
        if name == "ocdbt":  # The text of TensorStore has its coordinator.
            ours, theirs = ours[:4] + ours[5:], theirs[:4] + theirs[5:]
        assert ours == theirs


@each("library", [gpustore, ts])
def test_a_bound_spec_is_opened_in_its_context(library):
    context = library.Context(DEFINED)
    spec = library.Spec(ARRAY)
    spec.update(context=context)
    store = library.open(spec, create=True, context=library.Context(DEFINED)).result()
    store[1] = 3
    for part in (spec, spec[:2]):
        again = library.open(part, open=True, context=library.Context()).result()
        assert again[1].read().result() == 3
    assert library.open(ARRAY, open=True, context=context).result()[1].read().result() == 3
    unbound = spec.copy()
    unbound.update(unbind_context=True)
    with pytest.raises(ValueError, match="NOT_FOUND"):
        library.open(unbound, open=True).result()


@each("library", [gpustore, ts])
def test_specs_of_opened_stores_are_unbound(library):
    store = library.open(ZARR3, create=True, dtype="uint8", shape=[3]).result()
    spec = store.spec(retain_context=True)
    assert spec == store.spec(retain_context=True)
    assert library.open(spec, open=True).result().shape == (3,)
    spec.update(unbind_context=True)
    assert spec != store.spec(retain_context=True)
    with pytest.raises(ValueError, match="NOT_FOUND"):
        library.open(spec, open=True).result()


@each("library", [gpustore, ts])
def test_a_spec_stays_bound_to_its_first_context(library):
    spec = library.Spec(ARRAY)
    spec.update(context=library.Context(DEFINED))
    before = spec.copy()
    spec.update(context=library.Context(DEFINED))
    assert spec == before


def test_a_resource_that_the_context_does_not_define_is_told_at_once():
    spec = gpustore.Spec(ARRAY)
    with pytest.raises(gpustore.MetadataError, match="Resource not defined"):
        spec.update(context=gpustore.Context())
    assert spec == gpustore.Spec(ARRAY)


def test_layers_are_opened_in_the_context_that_a_stack_is_bound_to():
    context = gpustore.Context(DEFINED)
    gpustore.open(ARRAY, create=True, context=context).result()[1] = 3
    spec = gpustore.Spec({"driver": "stack", "layers": [ARRAY, ARRAY | {"context": DEFINED}]})
    spec.update(context=context)
    assert gpustore.open(spec[:2]).result()[0].shape == ()
    assert set(spec.to_json()["context"]) >= {"cache_pool", "memory_key_value_store#a"}
    spec = gpustore.Spec({"driver": "stack", "layers": [ARRAY]})
    spec.update(context=context)
    assert gpustore.open(spec).result()[1].read().result() == 3
    spec.update(strip_context=True)
    assert spec.to_json()["layers"][0]["kvstore"] == {"driver": "memory"}
    assert "context" not in spec.to_json()


@each("library", [gpustore, ts])
def test_kvstores_bound_to_several_contexts_differ(library):
    bound = []
    for _ in range(2):
        spec = library.KvStore.Spec("memory://a/")
        spec.update(context=library.Context())
        bound.append(spec)
    assert bound[0] == bound[0].copy()
    assert bound[0] != bound[1]
    assert bound[0] != library.KvStore.Spec("memory://a/")


MINIMAL = {
    "zarr3": ZARR3 | {"metadata": {"shape": [3], "data_type": "uint8", "fill_value": 3}},
    "zarr2": {"driver": "zarr2", "kvstore": "memory://a/"}
    | {"metadata": {"shape": [3], "dtype": "<u2", "chunks": [2]}},
    "n5": {"driver": "n5", "kvstore": "memory://a/"}
    | {"metadata": {"dimensions": [3], "dataType": "uint8"}},
    "precomputed": {
        "driver": "neuroglancer_precomputed",
        "kvstore": "memory://a/",
        "scale_index": 1,
        "multiscale_metadata": {"data_type": "uint8", "num_channels": 1, "type": "image"},
        "scale_metadata": {"key": "x", "size": [3, 4, 5]},
    },
    "transform": ZARR3
    | {"metadata": {"shape": [3], "data_type": "uint8"}, "transform": {"input_shape": [2]}},
    "without metadata": ZARR3 | {"recheck_cached_data": False, "create": True},
}


@each("name", MINIMAL)
def test_minimal_specs_keep_data_type_and_domain(name):
    found = []
    for library in (gpustore, ts):
        spec = library.Spec(MINIMAL[name])
        spec.update(minimal_spec=True)
        found.append(spec.to_json())
    assert found[0] == found[1]


def pickled(*values):
    """Values that were pickled together."""
    return pickle.loads(pickle.dumps(values))


PAIRS = {
    "stores": lambda library, spec, context, one, two: pickled(one, two),
    "a store twice": lambda library, spec, context, one, two: pickled(one, one),
    "stores apart": lambda library, spec, context, one, two: (*pickled(one), *pickled(two)),
    "a store and its pickle": lambda library, spec, context, one, two: (one, *pickled(one)),
    "a store and its context": lambda library, spec, context, one, two: [
        one if isinstance(one, library.TensorStore) else library.open(spec, context=one).result()
        for one in pickled(one, context)
    ],
    "specs": lambda library, spec, context, one, two: [
        library.open(one).result()
        for one in pickled(one.spec(retain_context=True), two.spec(retain_context=True))
    ],
    "a store and its spec": lambda library, spec, context, one, two: (
        one,
        library.open(one.spec(retain_context=True)).result(),
    ),
}
"""Pairs of opened stores, made of two that were opened in one context."""


@each("name", PAIRS)
@each("pool", ["cache_pool", "cache_pool#x"])
def test_stores_share_a_cache_if_they_do_in_tensorstore(name, pool, tmp_path):
    """A cache that both use has what one of them has read."""
    found = []
    for library in (gpustore, ts):
        folder = tmp_path / name / library.__name__
        kvstore = {"kvstore": f"file://{folder}/", "driver": "zarr3"}
        metadata = {"shape": [2], "data_type": "uint8"}
        library.open(kvstore | {"metadata": metadata}, create=True).result().write(1).result()
        spec = kvstore | {"cache_pool": pool, "recheck_cached_data": False}
        context = library.Context({pool: {"total_bytes_limit": 1 << 20}})
        stores = [library.open(spec, context=context).result() for _ in range(2)]
        one, two = PAIRS[name](library, spec, context, *stores)
        read = [one[0].read().result()]
        library.open(kvstore).result().write(2).result()
        found.append(
            [int(each) for each in (*read, one[0].read().result(), two[0].read().result())]
        )
    assert found[0] == found[1]
    assert found[0][:2] == [1, 1]
