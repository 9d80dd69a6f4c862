"""Specs with the documented members of each driver and kvstore: parsed and shown alike."""

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
    **{name: {"kvstore": f"memory://a.{name}"} for name in ("avif", "bmp", "jpeg", "png", "webp")},
    "tiff": {"kvstore": "memory://a.tiff", "page": 2},
    "json": {"kvstore": "memory://a.json", "json_pointer": "/a/1"},
    "json, path": {"driver": "json", "kvstore": "memory://", "path": "a.json"},
    "array": {"array": [[1, 2], [3, 4]], "dtype": "int32", "rank": 2},
    "array, schema": {"driver": "array", "array": [1, 2], "dtype": "int8"}
    | {"schema": {"dimension_units": ["4nm"]}},
    "cast": {"base": {"driver": "zarr3", "kvstore": MEMORY}, "dtype": "float32"},
    "downsample": {
        "base": {"driver": "zarr3", "kvstore": MEMORY, "rank": 2},
        **{"downsample_factors": [2, 3], "downsample_method": "median"},
    },
    "stack": {"layers": LAYERS},
    "stack, transform": {"driver": "stack", "layers": [LAYERS[1] | {"transform": TRANSFORM}]}
    | {"schema": {"dimension_units": ["4nm"]}},
    "auto": {"kvstore": MEMORY},
    "auto, of a kvstore": {"driver": "memory", "path": "volume/"},
    "transform": {"driver": "n5", "kvstore": MEMORY, "transform": TRANSFORM},
    "context": {"driver": "n5", "kvstore": MEMORY, "cache_pool": "cache_pool#a"}
    | {"context": {"cache_pool#a": {"total_bytes_limit": 1000}}},
    "assumed": {"driver": "zarr3", "kvstore": MEMORY, "assume_metadata": True},
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
    "ocdbt": {
        **{"base": "memory://db/", "path": "a/", "version": 3},
        **{"cache_pool": {"total_bytes_limit": 1000}, "data_copy_concurrency": {"limit": 2}},
    },
    "ocdbt, config": {
        **{"driver": "ocdbt", "base": "memory://", "assume_config": True, "manifest": "memory://m"},
        "config": {
            **{"manifest_kind": "single", "max_inline_value_bytes": 10},
            **{"max_decoded_node_bytes": 20, "version_tree_arity_log2": 1, "compression": None},
        },
        **{"value_data_prefix": "v/", "btree_node_data_prefix": "b/"},
        **{"version_tree_node_data_prefix": "t/", "target_data_file_size": 100},
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
    },
    "s3, conditional": {"driver": "s3", "bucket": "abc", "use_conditional_write": False}
    | {"aws_credentials": {"type": "anonymous"}},
    "gcs": {
        **{"bucket": "the-bucket", "path": "a/", "gcs_user_project": {"project_id": "p"}},
        **{"gcs_request_concurrency": {"limit": 4}, "gcs_request_retries": RETRIES},
    },
}

URLS = [
    *("memory://a", "file:///data/a.zarr/|zarr2:", "file:///a|zarr3:b/c", "memory://a|n5:"),
    *("gs://bucket/a|neuroglancer-precomputed:", "s3://bucket/a.zip|zip:b/|zarr3:"),
    *("https://host/a.png|png:", "memory://a|ocdbt:b@v4/c|zarr2:|cast:float32"),
    *("memory://a.json|json:/a/0", "memory://a|auto:", "memory://a%20b|zarr3:"),
    "memory://a|ocdbt:@2024-01-02T03:04:05Z/b|zarr3:",
]


def shown(kind, json):
    try:
        return kind(json).to_json()
    except (ValueError, NotImplementedError) as error:
        return type(error)


@each("name", DRIVERS)
def test_drivers(name):
    spec = {"driver": name, **DRIVERS[name]}
    theirs = shown(ts.Spec, spec)
    assert not isinstance(theirs, type)
    assert gpustore.Spec(spec).to_json() == theirs


@each("name", KVSTORES)
def test_kvstores(name):
    spec = {"driver": name, **KVSTORES[name]}
    theirs = shown(ts.KvStore.Spec, spec)
    assert not isinstance(theirs, type)
    assert gpustore.KvStore.Spec(spec).to_json() == theirs
    # A kvstore is a spec of the array that is found in it.
    assert gpustore.Spec(spec).to_json() == ts.Spec(spec).to_json()


@each("url", URLS)
def test_urls(url):
    theirs = shown(lambda url: ts.Spec(url).kvstore, url)
    assert gpustore.Spec(url).kvstore.to_json() == theirs
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


@each("name", ["zarr", "zarr2", "zarr3", "zarr3, schema", "n5", "assumed"])
def test_defaults_are_those_of_tensorstore(name):
    spec = {"driver": name, **DRIVERS[name]}
    shown = [one.Spec(spec).to_json(include_defaults=True) for one in (gpustore, ts)]
    for json in shown:  # TensorStore adds what all metadata have.
        json.pop("metadata", None)
    assert shown[0] == shown[1]
    again = gpustore.Spec(gpustore.Spec(spec).to_json(include_defaults=True))
    assert again.schema == gpustore.Spec(spec).schema
    assert again.open_mode == gpustore.Spec(spec).open_mode
