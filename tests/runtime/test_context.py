"""Tests of contexts; where TensorStore knows the resources, it is the oracle."""

import pickle
import threading

import pytest
import tensorstore

from gpustore import registry
from gpustore.errors import MetadataError
from gpustore.runtime.context import Context, resource_json
from gpustore.runtime.executor import Executor, shared
from gpustore.runtime.limits import DEFAULT_LIMITS, Limits
from tests.matrix import each

KEYS = [
    "cache_pool",
    "cache_pool#a",
    "cache_pool#b",
    "data_copy_concurrency",
    "file_io_concurrency",
    "file_io_locking",
    "file_io_mode",
    "file_io_retries",
    "file_io_sync",
    "memory_key_value_store",
    "memory_key_value_store#x",
    "nope",
    "nope#x",
    "",
    "cache_pool#",
]

SPECS = [
    {},
    {"cache_pool": {"total_bytes_limit": 1000}, "cache_pool#a": {"total_bytes_limit": 5}},
    {"cache_pool": "cache_pool#a", "cache_pool#a": {}},
    {"cache_pool": "cache_pool#a", "cache_pool#a": "cache_pool#b", "cache_pool#b": {}},
    {"cache_pool": None, "cache_pool#a": None, "file_io_sync": None},
    {"cache_pool": "cache_pool"},
    {"cache_pool#a": "cache_pool#a"},
    {"cache_pool": "cache_pool#a", "cache_pool#a": "cache_pool"},
    {"cache_pool": "cache_pool#a", "cache_pool#a": "cache_pool#b", "cache_pool#b": "cache_pool"},
    {"cache_pool": "cache_pool#a", "cache_pool#a": "cache_pool#b", "cache_pool#b": "cache_pool#a"},
    {"cache_pool": "cache_pool#missing"},
    {"cache_pool": "cache_pool#"},
    {"cache_pool#": {}, "cache_pool#a#b": {}},
    {"cache_pool": "data_copy_concurrency"},
    {"cache_pool": "cache_poolx"},
    {"cache_pool": 5},
    {"cache_pool": []},
    {"cache_pool": (1, 2)},
    {"nope": {}},
    {"#a": {}},
    {"": {}},
    {"memory_key_value_store#x": {}, "data_copy_concurrency": {"limit": 4}},
    {
        "cache_pool": {"total_bytes_limit": 100000000000},
        "cache_pool#aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa": {"total_bytes_limit": 5},
        "data_copy_concurrency": {"limit": 4},
    },
    {"file_io_retries": {"max_retries": 3, "initial_delay": "2s", "max_delay": "10s"}},
    [],
    5,
    "cache_pool",
]


def outcome(function, *args, **kwargs):
    """What a call gives: its repr, or the kind and the beginning of its error."""
    try:
        return repr(function(*args, **kwargs))
    except ValueError as error:
        text = str(error).split(" (in context")[0].split(" (expected one of")[0]
    start, colon, cycle = text.partition("reference cycle: ")
    # TensorStore starts the cycle anywhere.
    return f"ValueError: {start}{colon}{sorted(cycle.split(' -> '))}"


@each("json", SPECS)
def test_spec_is_what_tensorstore_makes_of_it(json):
    def look(context_type):
        return [
            outcome(context_type.Spec, json),
            outcome(lambda: context_type.Spec(json).to_json()),
            outcome(lambda: context_type.Spec(json).to_json(include_defaults=True)),
        ]

    assert look(Context) == look(tensorstore.Context)


@each("key", KEYS)
@each("json", [spec for spec in SPECS if isinstance(spec, dict)])
def test_resource_is_what_tensorstore_has(json, key):
    def look(context_type):
        return [
            outcome(lambda: context_type(json)[key]),
            outcome(lambda: context_type(json)[key].to_json()),
            outcome(lambda: context_type(json)[key].to_json(include_defaults=True)),
        ]

    assert look(Context) == look(tensorstore.Context)


@pytest.fixture(params=[Context, tensorstore.Context], ids=["gpustore", "tensorstore"])
def context_type(request):
    return request.param


def test_default_context(context_type):
    context = context_type()
    assert context.spec is None
    assert context.parent is None
    assert context["cache_pool"] is context["cache_pool"]
    assert context["cache_pool"] != context_type()["cache_pool"]
    assert context != context_type()


def test_a_context_keeps_its_spec(context_type):
    spec = context_type.Spec({"cache_pool": {"total_bytes_limit": 5}})
    assert context_type(spec).spec is spec


def test_parent(context_type):
    parent = context_type(
        {"cache_pool": {"total_bytes_limit": 9}, "cache_pool#a": {"total_bytes_limit": 5}}
    )
    child = context_type({"cache_pool": "cache_pool#a", "cache_pool#b": "cache_pool"}, parent)
    assert child.parent is parent
    assert child["cache_pool"] == child["cache_pool#b"] == parent["cache_pool#a"]
    assert child["memory_key_value_store"] == parent["memory_key_value_store"]
    assert context_type({}, parent)["cache_pool"] == parent["cache_pool"]
    assert context_type({"cache_pool": {}}, parent)["cache_pool"] != parent["cache_pool"]
    # A name means what the context that says it means by it.
    outer = context_type({"cache_pool": "cache_pool#a", "cache_pool#a": {}})
    inner = context_type({"cache_pool#a": {"total_bytes_limit": 1}}, outer)
    assert inner["cache_pool"] == outer["cache_pool#a"]


def test_reference_to_a_resource_of_the_same_name_in_the_parent_is_a_cycle(context_type):
    parent = context_type({"cache_pool": {}})
    with pytest.raises(ValueError, match="reference cycle"):
        context_type({"cache_pool": "cache_pool"}, parent)["cache_pool"]


def test_context_of_a_spec(context_type):
    spec = context_type.Spec({"cache_pool": {"total_bytes_limit": 3}})
    assert context_type(spec)["cache_pool"].to_json() == {"total_bytes_limit": 3}
    assert context_type.Spec(spec).to_json() == spec.to_json()


@pytest.mark.parametrize("json", [{"cache_pool": {"total_bytes_limit": 7}}, {"cache_pool": None}])
def test_pickle_of_a_spec(context_type, json):
    spec = pickle.loads(pickle.dumps(context_type.Spec(json)))
    assert spec.to_json() == json


def test_pickle_of_a_context(context_type):
    parent = context_type({"cache_pool#a": {"total_bytes_limit": 5}})
    child = context_type({"cache_pool": "cache_pool#a"}, parent)
    copy, pool = pickle.loads(pickle.dumps((child, child["cache_pool"])))
    assert copy["cache_pool"] == copy.parent["cache_pool#a"] == pool
    assert pool.to_json() == {"total_bytes_limit": 5}
    assert copy["cache_pool"] != child["cache_pool"]
    one, two = pickle.loads(pickle.dumps((child["cache_pool"], parent["cache_pool#a"])))
    assert one == two


@pytest.mark.parametrize("bad", [5, "cache_pool", {}])
def test_parent_has_to_be_a_context(context_type, bad):
    with pytest.raises(TypeError):
        context_type({}, bad)


def test_context_is_no_container(context_type):
    with pytest.raises(TypeError):
        list(context_type())
    with pytest.raises(TypeError):
        _ = "cache_pool" in context_type()
    with pytest.raises(TypeError):
        context_type()[5]


def test_resources_are_got_not_made():
    with pytest.raises(TypeError, match="got from Context"):
        Context.Resource()


# ------------------------------------------------------- what TensorStore's Python API lacks


def test_errors_name_the_resource():
    with pytest.raises(MetadataError) as raised:
        Context({"cache_pool": {"foo": 1}})
    assert str(raised.value) == (
        'Object includes extra members: "foo" (in context resource "cache_pool")'
    )
    with pytest.raises(MetadataError, match=r"expected one of .*cache_pool, data_copy_concurrency"):
        Context({"nope": 1})


def test_resource_of_a_reference():
    context = Context({"cache_pool#a": {"total_bytes_limit": 5}})
    assert context.resource("cache_pool") is context["cache_pool"]
    assert context.resource("cache_pool", "cache_pool") is context["cache_pool"]
    assert context.resource("cache_pool", "cache_pool#a") is context["cache_pool#a"]
    own = context.resource("cache_pool", {"total_bytes_limit": 8})
    assert own.to_json() == {"total_bytes_limit": 8}
    assert own is not context.resource("cache_pool", {"total_bytes_limit": 8})
    assert context.resource("cache_pool", own) is own
    assert own.id == "cache_pool"
    with pytest.raises(MetadataError, match="Resource not defined"):
        context.resource("cache_pool", "cache_pool#b")
    with pytest.raises(MetadataError, match='Expected "file_io_sync" resource'):
        context.resource("file_io_sync", own)
    copies = pickle.loads(pickle.dumps((own, own)))
    assert copies[0] is copies[1]
    assert copies[0].to_json() == own.to_json()


def test_value_is_made_once_even_by_many_threads():
    context = Context({"data_copy_concurrency": {"limit": 2}})
    values = []
    start = threading.Barrier(8)

    def ask():
        start.wait()
        values.append(context["data_copy_concurrency"].value)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(values) == 8
    assert len(set(map(id, values))) == 1


def test_child_shares_values_with_its_parent():
    parent = Context()
    assert (
        Context({}, parent)["memory_key_value_store"].value
        is Context({}, parent)["memory_key_value_store"].value
    )
    assert Context()["memory_key_value_store"].value is not parent["memory_key_value_store"].value


def test_default_values():
    context = Context()
    values = {id: context[id].value for id in registry.ids("resources")}
    assert values.pop("data_copy_concurrency") is shared()
    assert values.pop("file_io_concurrency") is shared()
    assert values.pop("file_io_sync") == "full"
    assert values.pop("file_io_mode") == "default"
    assert values.pop("limits") is DEFAULT_LIMITS
    assert values.pop("cache_pool").total_bytes_limit == 0
    assert values.pop("device_allocator") == "default"
    assert values.pop("device_cache_pool").total_bytes_limit == 0
    assert values.pop("memory_key_value_store").entries == {}
    assert values.pop("device").kind == "auto"
    assert values.pop("gpu_decode_choice").side == "auto"
    assert values.pop("gpu_decode_trust") == "auto"
    locking = values.pop("file_io_locking")
    assert (locking.mode, locking.acquire_timeout_s) == ("os", 60.0)
    retries = values.pop("file_io_retries")
    assert (retries.max_retries, retries.initial_delay_s, retries.max_delay_s) == (0, 1.0, 32.0)
    assert values.pop("experimental_s3_rate_limiter") is None
    assert values.pop("experimental_gcs_rate_limiter") is None
    assert values.pop("ocdbt_coordinator") is None
    network = ("http", "s3", "gcs", "tsgrpc", "aws")
    assert {id for id in values if not id.startswith(network)} == set()


def test_values_follow_the_json():
    context = Context({"data_copy_concurrency": {"limit": 3}, "limits": {"rank": 2}})
    executor = context["data_copy_concurrency"].value
    assert isinstance(executor, Executor)
    assert executor.limit == 3
    assert executor is not shared()
    assert context["limits"].value == Limits.from_json({"rank": 2}, base=DEFAULT_LIMITS)


@each("id", registry.ids("resources"))
def test_every_resource_round_trips_its_defaults(id):
    default = Context()[id]
    for include_defaults in (False, True):
        json = default.to_json(include_defaults=include_defaults)
        again = Context({id: json})[id]
        assert again.to_json(include_defaults=True) == default.to_json(include_defaults=True)
    assert type(Context({id: None})[id].value) is type(default.value)
    assert registry.find("resources", id).id == id


def test_resource_json():
    assert resource_json("cache_pool", "cache_pool#a") == "cache_pool#a"
    assert resource_json("cache_pool", {"total_bytes_limit": 0}) == {}
    assert resource_json("cache_pool", {}, include_defaults=True) == {"total_bytes_limit": 0}
    with pytest.raises(MetadataError, match="extra members"):
        resource_json("cache_pool", {"a": 0})
