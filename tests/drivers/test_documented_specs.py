"""Specs with the documented members of each driver and kvstore: parsed and shown alike."""

import json
from pathlib import Path

import pytest
import tensorstore as ts

import gpustore
from gpustore.kvstores.spec import ABSENT
from tests.matrix import each

MEMORY = "memory://volume/"
OPEN = {"open": True, "create": True, "delete_existing": False, "recheck_cached_metadata": "open"}
CACHED = {"recheck_cached_data": False, "cache_pool": {"total_bytes_limit": 1000}}
FILLED = {"fill_missing_data_reads": False, "store_data_equal_to_fill_value": True}
CHUNKED = {"kvstore": MEMORY, "data_copy_concurrency": {"limit": 2}, **OPEN, **CACHED, **FILLED}
SCHEMA = {
    "rank": 3,
    "domain": {"labels": ["x", "y", "z"], "shape": [30, 20, 10]},
    "chunk_layout": {"read_chunk": {"shape": [3, 2, 1]}, "inner_order": [0, 1, 2]},
    "dimension_units": ["4nm", "4nm", "30nm"],
}
LAYERS = [
    {"driver": "array", "array": [1, 2], "dtype": "int8"},
    {"driver": "zarr3", "kvstore": MEMORY, "schema": {"dtype": "int8", "domain": {"shape": [4]}}},
]
TRANSFORM = {"input_inclusive_min": [2], "input_shape": [5], "output": [{"input_dimension": 0}]}

DRIVERS = {
    "zarr": {**CHUNKED, "metadata_key": "other", "field": "x", "path": "below"}
    | {"metadata": {"shape": [4, 5], "chunks": [2, 5], "compressor": {"id": "bz2", "level": 2}}},
    "zarr2": {**CHUNKED, "open_as_void": True}
    | {"metadata": {"dtype": [["x", "<f4"], ["y", "<u2", [2]]], "order": "F", "filters": None}},
    "zarr, fill value": {"driver": "zarr", "kvstore": MEMORY}
    | {"metadata": {"dtype": "<f4", "fill_value": "NaN", "dimension_separator": "/"}},
    **{
        f"{driver}, rank of chunks": {"driver": driver, "kvstore": MEMORY}
        | {"schema": {"chunk_layout": {"rank": 2}}}
        for driver in ("zarr", "zarr3", "n5", "auto")
    },
    "zarr3": {**CHUNKED, "dtype": "uint16"}
    | {
        "metadata": {
            **{"shape": [4, 6], "data_type": "uint16", "fill_value": 7},
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
            "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 2}}],
            **{"dimension_names": ["y", None], "attributes": {"any": [1]}},
        }
    },
    "zarr3, shards": {"driver": "zarr3", "kvstore": MEMORY}
    | {
        "metadata": {
            "codecs": [
                {
                    "name": "sharding_indexed",
                    "configuration": {
                        **{"chunk_shape": [2, 3], "index_location": "start"},
                        "codecs": [
                            {"name": "transpose", "configuration": {"order": [1, 0]}},
                            {"name": "bytes", "configuration": {"endian": "big"}},
                            {"name": "gzip", "configuration": {"level": 1}},
                        ],
                        "index_codecs": [{"name": "bytes"}, {"name": "crc32c"}],
                    },
                }
            ]
        }
    },
    "zarr3, schema": {"driver": "zarr3", "kvstore": MEMORY, "schema": {**SCHEMA, "dtype": "int8"}},
    "n5": {**CHUNKED, "dtype": "uint8"}
    | {
        "metadata": {
            **{"dimensions": [9, 8], "blockSize": [3, 4], "dataType": "uint8"},
            **{"axes": ["x", "y"], "units": ["nm", "s"], "resolution": [4, 0.5]},
            "compression": {"type": "gzip", "level": 3},
        }
    },
    "neuroglancer_precomputed": {**CHUNKED, "scale_index": 1}
    | {
        "multiscale_metadata": {"type": "segmentation", "data_type": "uint64", "num_channels": 1},
        "scale_metadata": {
            **{"size": [90, 80, 70], "voxel_offset": [1, 2, 3], "resolution": [4, 4, 40]},
            **{"chunk_size": [32, 32, 16], "encoding": "compressed_segmentation"},
            **{"compressed_segmentation_block_size": [8, 8, 8], "key": "a"},
            "sharding": {
                **{"@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 1},
                **{"hash": "identity", "minishard_bits": 2, "shard_bits": 3},
                **{"minishard_index_encoding": "gzip", "data_encoding": "gzip"},
            },
        },
    },
    "precomputed, jpeg": {"driver": "neuroglancer_precomputed", "kvstore": MEMORY}
    | {"scale_metadata": {"encoding": "jpeg", "jpeg_quality": 80, "resolution": [1, 1, 1]}},
    "avif": {"kvstore": "memory://a.avif", "quantizer": 3, "speed": 6},
    "bmp": {"kvstore": "memory://a.bmp", **CACHED},
    "jpeg": {"kvstore": "memory://a.jpeg", "quality": 80.0},
    "png": {"kvstore": "memory://a.png", "compression_level": 9, "recheck_cached_data": "open"},
    "webp": {"kvstore": "memory://a.webp", "lossless": False, "quality": 95},
    "tiff": {"kvstore": "memory://a.tiff", "page": 2, "recheck_cached_data": True},
    "json": {"kvstore": "memory://a.json", "json_pointer": "/a/1"},
    "json, cached": {"driver": "json", "kvstore": "memory://a.json", **CACHED},
    "json, path": {"driver": "json", "kvstore": "memory://", "path": "a.json"},
    "array": {"array": [[1, 2], [3, 4]], "dtype": "int32", "rank": 2.0},
    "array, threads": {"driver": "array", "array": 1, "dtype": "int8", "schema": {"fill_value": 2}}
    | {"data_copy_concurrency": {"limit": 2}},
    "array, schema": {"driver": "array", "array": [1, 2], "dtype": "int8"}
    | {"schema": {"dimension_units": ["4nm"]}},
    "cast": {"base": {"driver": "zarr3", "kvstore": MEMORY}, "dtype": "float32"},
    "downsample": {
        "base": {"driver": "zarr3", "kvstore": MEMORY, "rank": 2},
        **{"downsample_factors": [2, 3], "downsample_method": "median"},
    },
    "downsample, schema": {
        **{"driver": "downsample", "base": {"driver": "zarr3", "kvstore": MEMORY}},
        **{"downsample_factors": [2, 3], "downsample_method": "mean"},
        "schema": {
            "chunk_layout": {
                **{"read_chunk": {"shape": [4, 9]}, "inner_order": [1, 0]},
                "write_chunk": {"elements": 7, "aspect_ratio": [1, 3]},
                "codec_chunk": {"shape_soft_constraint": [3, None]},
            },
            **{"dimension_units": ["4nm", None], "codec": {"driver": "zarr3"}},
        },
    },
    "downsample, domain": {
        "driver": "downsample",
        "base": {"driver": "zarr3", "kvstore": MEMORY, "schema": {"domain": {"shape": [10, 7]}}},
        **{"downsample_factors": [2, 3], "downsample_method": "mean"},
    },
    "stack": {"layers": LAYERS},
    "stack, transform": {"driver": "stack", "layers": [LAYERS[1] | {"transform": TRANSFORM}]}
    | {"schema": {"dimension_units": ["4nm"]}},
    "auto": {"kvstore": MEMORY},
    "auto, of a kvstore": {"driver": "memory", "path": "volume/"},
    "transform": {"driver": "n5", "kvstore": MEMORY, "transform": TRANSFORM},
    "context": {"driver": "n5", "kvstore": MEMORY, "cache_pool": "cache_pool#a"}
    | {"context": {"cache_pool#a": {"total_bytes_limit": 1000}}},
    "context, in place": {"driver": "zarr3", "kvstore": "file:///a/", "cache_pool": {}}
    | {"data_copy_concurrency": {}},
    "assumed": {"driver": "zarr3", "kvstore": MEMORY, "assume_metadata": True},
    "rank 0": {"driver": "zarr3", "kvstore": MEMORY, "rank": 0},
    "rank 0, zarr": {"driver": "zarr", "kvstore": MEMORY, "rank": 0},
    "rank 2, zarr": {"driver": "zarr", "kvstore": MEMORY, "rank": 2, "field": "a"},
    "node type alone": {"driver": "zarr3", "kvstore": MEMORY, "metadata": {"node_type": "array"}},
    "n5, fill value": {"driver": "n5", "kvstore": MEMORY, "schema": {"fill_value": 1}},
}
"""Specs by the name of the driver, or of what is special if they name it themselves."""

RETRIES = {"max_retries": 4, "initial_delay": "2s", "max_delay": "8s"}
KVSTORES = {
    "file": {
        **{"path": "/data/x/", "file_io_concurrency": {"limit": 3}, "file_io_sync": False},
        "file_io_locking": {"mode": "lockfile", "acquire_timeout": "5s"},
        **{"file_io_mode": {"mode": "direct"}, "file_io_retries": RETRIES},
    },
    "memory": {"path": "a/", "atomic": False, "memory_key_value_store": "memory_key_value_store#x"}
    | {"context": {"memory_key_value_store#x": {}}},
    "file, defaults": {"driver": "file", "path": "/a/", "file_io_concurrency": {}}
    | {"file_io_retries": {}, "file_io_sync": "file_io_sync"},
    "ocdbt": {
        **{"base": "memory://db/", "path": "a/", "version": 3},
        **{"cache_pool": {"total_bytes_limit": 1000}, "data_copy_concurrency": {"limit": 2}},
    },
    "ocdbt, config": {
        **{"driver": "ocdbt", "base": "memory://", "assume_config": True, "manifest": "memory://m"},
        "config": {
            **{"manifest_kind": "single", "max_inline_value_bytes": 10},
            **{"max_decoded_node_bytes": 20, "version_tree_arity_log2": 1},
            "compression": {"id": "zstd"},
        },
        **{"value_data_prefix": "v/", "btree_node_data_prefix": "b/"},
        **{"version_tree_node_data_prefix": "t/", "target_data_file_size": 100.0},
        **{"coordinator": {"address": "localhost:1", "lease_duration": "90s"}},
    },
    "zip": {"base": "file:///a.zip", "path": "x/", "compression": "store"}
    | {"cache_pool": {"total_bytes_limit": 1000}},
    "kvstack": {
        "layers": [
            {"base": "memory://a/"},
            {"base": "memory://b/", "prefix": "b/", "strip_prefix": 1},
            {"base": "memory://c", "exact": "c"},
        ]
    },
    "http": {
        **{"base_url": "https://host/path?query=1", "path": "a", "headers": ["X-Name: 1"]},
        **{"http_request_concurrency": {"limit": 4}, "http_request_retries": RETRIES},
    },
    "s3": {
        **{"bucket": "the-bucket", "path": "a/", "requester_pays": True, "aws_region": "eu-west-1"},
        **{
            "endpoint": "http://localhost:9000",
            "host_header": "there",
            "s3_request_retries": RETRIES,
        },
        **{"aws_credentials": {"type": "environment"}, "s3_request_concurrency": {"limit": 4}},
        "experimental_s3_rate_limiter": {"read_rate": 5, "doubling_time": "90s"},
    },
    "s3, conditional": {"driver": "s3", "bucket": "abc", "use_conditional_write": False}
    | {"aws_credentials": {"type": "anonymous"}},
    "gcs": {
        **{"bucket": "the-bucket", "path": "a/", "gcs_user_project": {"project_id": "p"}},
        **{"gcs_request_concurrency": {"limit": 4}, "gcs_request_retries": RETRIES},
        "experimental_gcs_rate_limiter": {},
    },
}

URLS = [
    *("memory://a", "file:///data/a.zarr/|zarr2:", "file:///a|zarr3:b/c", "memory://a|n5:"),
    *("gs://bucket/a|neuroglancer-precomputed:", "s3://bucket/a.zip|zip:b/|zarr3:"),
    *("https://host/a.png|png:", "memory://a|ocdbt:b@v4/c|zarr2:|cast:float32"),
    *("memory://a.json|json:/a/0", "memory://a|auto:", "memory://a%20b|zarr3:"),
    "memory://a|ocdbt:@2024-01-02T03:04:05Z/b|zarr3:",
]


WRONG = [
    *({"driver": "jpeg", "kvstore": MEMORY, "quality": one} for one in (None, "5", 5.5)),
    *({"driver": "webp", "kvstore": MEMORY, "lossless": one} for one in (None, 1)),
    {"driver": "tiff", "kvstore": MEMORY, "page": "1"},
    {"driver": "png", "kvstore": MEMORY, "schema": {"fill_value": 1}},
    {"driver": "png", "kvstore": MEMORY, "rank": 2},
    *({"driver": "png", "kvstore": MEMORY, one: True} for one in OPEN),
    {"driver": "png", "kvstore": MEMORY, "fill_missing_data_reads": True},
    *({"driver": one, "kvstore": None} for one in ("zarr", "n5", "json", "png")),
    {"driver": "json", "kvstore": MEMORY, "recheck_cached_metadata": True},
    {"driver": "json", "kvstore": True},
    {"driver": "array", "array": 1, "dtype": "int8", "data_copy_concurrency": None},
    *({"driver": "n5", "kvstore": MEMORY, name: None} for name in CACHED),
    {"driver": "n5", "kvstore": MEMORY, "rank": 1.5},
    {"driver": "neuroglancer_precomputed", "kvstore": MEMORY, "rank": 3},
    {"driver": "zarr3", "kvstore": MEMORY, "dtype": "json"},
    DRIVERS["downsample"] | {"schema": {"fill_value": 3}},
    {"driver": "s3", "bucket": "abc", "experimental_s3_rate_limiter": {"read_rate": "5"}},
    {"driver": "s3", "bucket": "abc", "experimental_s3_rate_limiter": {"doubling_time": 5}},
    {"driver": "ocdbt", "base": MEMORY, "coordinator": {"address": 5}},
    {"driver": "file", "path": "/a/", "file_io_sync": None},
    *(
        {"driver": "zarr3", "kvstore": MEMORY, "metadata": metadata}
        for metadata in (
            *({"chunk_key_encoding": {"name": name}} for name in (1.5, "x", None)),
            {"chunk_key_encoding": {"configuration": {}}},
            *({"data_type": one} for one in ([], [1], ["x"], {"x": 1})),
        )
    ),
]

_OURS = {
    *("device", "device_allocator", "device_cache_pool", "duplicates", "gpu_decode_choice"),
    *("gpu_decode_trust", "http_authorization", "http_request_timeouts", "limits"),
}
"""Members that gpustore adds to specs."""


def without_ours(json):
    """The JSON of a spec without the members that gpustore adds."""
    if isinstance(json, dict):
        return {name: without_ours(one) for name, one in json.items() if name not in _OURS}
    return [without_ours(one) for one in json] if isinstance(json, list) else json


def described(spec):
    """JSON and properties of a spec, as JSON or text."""
    names = ("rank", "dtype", "domain", "transform", "schema", "chunk_layout", "codec", "base")
    parts = {name: getattr(spec, name) for name in names}
    parts |= {"fill_value": repr(spec.fill_value)}
    parts |= {"units": repr(spec.dimension_units), "mode": str(spec.open_mode)}
    shown = {k: v.to_json() if hasattr(v, "to_json") else v for k, v in parts.items()}
    shown |= {"json": spec.to_json(), "all": without_ours(spec.to_json(True))}
    return json.dumps(shown, sort_keys=True)  # As text, NaN equals NaN.


@each("name", DRIVERS)
def test_drivers(name):
    spec = {"driver": name, **DRIVERS[name]}
    assert described(gpustore.Spec(spec)) == described(ts.Spec(spec))


@each("name", KVSTORES)
def test_kvstores(name):
    spec = {"driver": name, **KVSTORES[name]}
    ours, theirs = (one.KvStore.Spec(spec) for one in (gpustore, ts))
    assert ours.to_json() == theirs.to_json()
    assert without_ours(ours.to_json(include_defaults=True)) == theirs.to_json(True)
    # A kvstore is a spec of the array that is found in it.
    assert gpustore.Spec(spec).to_json() == ts.Spec(spec).to_json()


@each("spec", WRONG)
def test_wrong_members_are_told_as_by_tensorstore(spec):
    with pytest.raises(ValueError) as theirs:  # noqa: PT011  the text is what is compared
        ts.Spec(spec)
    with pytest.raises(ValueError) as ours:  # noqa: PT011
        gpustore.Spec(spec)
    assert str(ours.value).startswith(str(theirs.value).partition(" [")[0])


@pytest.mark.parametrize(
    "kvstore",
    [
        {"driver": "s3", "bucket": "abc", "experimental_s3_rate_limiter": {"read_rate": 5}},
        {"driver": "gcs", "bucket": "abc", "experimental_gcs_rate_limiter": {"write_rate": 5}},
        {"driver": "ocdbt", "base": MEMORY, "context": {"ocdbt_coordinator": {"address": "a:1"}}},
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused_when_it_is_opened(kvstore):
    gpustore.KvStore.Spec(kvstore)
    with pytest.raises(gpustore.UnsupportedError, match="not supported"):
        gpustore.KvStore.open(kvstore).result()


@each("url", URLS)
def test_urls(url):
    assert gpustore.Spec(url).kvstore.to_json() == ts.Spec(url).kvstore.to_json()
    assert gpustore.Spec(url).url == ts.Spec(url).url


@each("name", ABSENT)
def test_absent_kvstores_are_refused_by_name(name):
    page = Path("docs/compatibility.md").read_text().partition("# Missing parts of TensorStore")[2]
    assert name in page.partition("Absent: ")[2]
    for kind in (gpustore.Spec, gpustore.KvStore.Spec):
        for spec in ({"driver": name}, f"{name}://a/b"):
            with pytest.raises(gpustore.UnsupportedError, match=name):
                kind(spec)
    with pytest.raises(gpustore.UnsupportedError, match=name):
        gpustore.Spec({"driver": "zarr3", "kvstore": {"driver": name}})


def test_members_are_in_the_order_of_their_names():
    """Programs print JSON: as text it is TensorStore's too."""
    for name, members in DRIVERS.items():
        spec = {"driver": name, **members}
        assert repr(gpustore.Spec(spec).to_json()) == repr(ts.Spec(spec).to_json())
    for name, members in KVSTORES.items():
        kvstore = {"driver": name, **members}
        ours, theirs = (one.KvStore.Spec(kvstore).to_json() for one in (gpustore, ts))
        assert repr(ours) == repr(theirs)
    codec = {"driver": "zarr3", "codecs": [{"name": "gzip", "configuration": {"level": 5}}]}
    assert repr(gpustore.CodecSpec(codec).to_json()) == repr(ts.CodecSpec(codec).to_json())


@each("name", ["zarr", "zarr2", "zarr3", "zarr3, schema", "n5", "assumed", "json, cached"])
def test_specs_with_defaults_say_the_same(name):
    spec = gpustore.Spec({"driver": name, **DRIVERS[name]})
    again = gpustore.Spec(spec.to_json(include_defaults=True))
    assert again.schema == spec.schema
    assert again.open_mode == spec.open_mode
