"""What differs from TensorStore on purpose: small programs, each run with both packages.

``docs/compatibility.py`` writes their outcomes into its page.
"""

import contextlib
import copy
import io
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

ZARR = {"driver": "zarr3", "kvstore": "memory://a/"}


class Difference(NamedTuple):
    """A program whose outcome differs, and the reason."""

    behaviour: str
    program: Callable[[ModuleType, Path], object]
    """Called with a package and an empty folder; returns or raises the outcome."""
    reason: str


def made(api: ModuleType, **options: Any) -> Any:
    """Create an array of three elements in memory."""
    options = {"dtype": "uint8", "shape": [3], **options}
    return api.open(ZARR, create=True, **options).result()


def shown(api: ModuleType, folder: Path) -> str:
    del folder
    return repr(api.array([1, 2])).splitlines()[0]


def shown_spec(api: ModuleType, folder: Path) -> str:
    del folder
    return repr(api.Spec("memory://a/|zarr3:"))


def printed_store(api: ModuleType, folder: Path) -> str:
    del folder
    return str(api.array([1, 2])).splitlines()[0]


def shown_future(api: ModuleType, folder: Path) -> str:
    del folder
    promise, future = api.Promise.new()
    shown = repr(future).partition(" at 0x")[0]
    promise.set_result(1)
    return shown


def index_out_of_bounds(api: ModuleType, folder: Path) -> object:
    del folder
    try:
        api.array([1, 2])[4]
    except IndexError as error:
        return str(error).partition("valid range ")[2].partition(") [")[0]


def undetected(api: ModuleType, folder: Path) -> object:
    try:
        api.open(f"file://{folder}/").result()
    except ValueError as error:
        return str(error).partition(f"{folder}/")[2].partition(" [tensorstore")[0]


def resources_by_default(api: ModuleType, folder: Path) -> object:
    del folder
    return sorted(
        name
        for name in api.Spec("http://a/|zarr3:").to_json(include_defaults=True)["kvstore"]
        if name.startswith("http_")
    )


def rank_of_chunks(api: ModuleType, folder: Path) -> object:
    del folder
    grid = {"name": "regular", "configuration": {"chunk_shape": [4, 5]}}
    return api.Spec({"driver": "zarr3", "metadata": {"chunk_grid": grid}}).rank


def created_image(api: ModuleType, folder: Path) -> object:
    return api.open({"driver": "png", "kvstore": f"file://{folder}/a"}, create=True).result()


def host_of_requests(api: ModuleType, folder: Path) -> object:
    del folder
    place = {"endpoint": "http://localhost:1", "host_header": "there", "aws_region": "here"}
    return api.KvStore.open({"driver": "s3", "bucket": "abc", **place}).result().path


def rate_of_requests(api: ModuleType, folder: Path) -> object:
    del folder
    rate = {"experimental_s3_rate_limiter": {"read_rate": 5}, "aws_region": "here"}
    place = {"endpoint": "http://localhost:1"}
    return api.KvStore.open({"driver": "s3", "bucket": "abc", **place, **rate}).result().path


def member_of_a_coordinator(api: ModuleType, folder: Path) -> object:
    del folder
    coordinator = {"address": "localhost:1"}
    spec = {"driver": "ocdbt", "base": "memory://", "coordinator": coordinator}
    return api.KvStore.open(spec).result().url


def domain_of_a_downsampled_spec(api: ModuleType, folder: Path) -> object:
    del folder
    base = {"driver": "zarr3", "kvstore": "memory://a/"}
    spec = {"driver": "downsample", "base": base, "downsample_factors": [2]}
    schema = {"domain": {"shape": [5]}}
    return api.Spec({**spec, "downsample_method": "mean", "schema": schema}).domain


def reversed_cells(api: ModuleType, folder: Path) -> object:
    del folder
    cells = api.downsample(api.array([1, 2, 3, 4, 5, 6, 7, 8]), [2], "mean")
    return sorted(cells[::-1].base.read().result().reshape(-1).tolist())


def base_of_a_cast(api: ModuleType, folder: Path) -> object:
    del folder
    schema = {"domain": {"shape": [5]}}
    spec = {"driver": "cast", "dtype": "int32", "base": {**ZARR, "schema": schema}}
    return "transform" in api.Spec(spec).to_json()["base"]


def context_of_a_database(api: ModuleType, folder: Path) -> object:
    del folder
    kvstore = api.KvStore.open({"driver": "ocdbt", "base": "memory://"}).result()
    return sorted(kvstore.spec(retain_context=True).to_json()["context"])


def domain_of_a_stack_spec(api: ModuleType, folder: Path) -> object:
    del folder
    layer = {**ZARR, "schema": {"domain": {"shape": [5]}}}
    spec = {"driver": "stack", "layers": [layer], "transform": {"input_rank": 1}}
    return api.Spec(spec).schema.domain


def aspect_ratio_of_a_stack(api: ModuleType, folder: Path) -> object:
    del folder
    layout = {"read_chunk": {"aspect_ratio": [1]}}
    spec = {"driver": "stack", "layers": [{**ZARR, "schema": {"domain": {"shape": [5]}}}]}
    return api.Spec({**spec, "schema": {"chunk_layout": layout}}).chunk_layout.to_json()


def contradiction(api: ModuleType, folder: Path) -> object:
    del folder
    layout = {"chunk_layout": {"grid_origin": [1]}}
    return api.Spec({"driver": "n5", "kvstore": "memory://a/", "schema": layout}).rank


def secret_in_a_spec(api: ModuleType, folder: Path) -> object:
    del folder
    headers = ["Authorization: Bearer SECRET"]
    return api.KvStore.Spec({"driver": "http", "base_url": "http://a", "headers": headers}).url


def empty_path(api: ModuleType, folder: Path) -> object:
    del folder
    return api.KvStore.Spec({"driver": "file"}).path


def complex_array_in_json(api: ModuleType, folder: Path) -> object:
    del folder
    return api.Spec({"driver": "array", "array": [[1, 2]], "dtype": "complex64"}).dtype.name


def fill_value_without_elements(api: ModuleType, folder: Path) -> object:
    del folder
    return api.Schema({"fill_value": []}).fill_value.shape


def unknown_codec_in_a_spec(api: ModuleType, folder: Path) -> object:
    del folder
    return api.CodecSpec({"driver": "zarr3", "codecs": [{"name": "abc"}]}).to_json()["codecs"]


def missing_member(api: ModuleType, folder: Path) -> object:
    del folder
    try:
        api.Spec({"driver": "array", "dtype": "int8"})
    except ValueError as error:
        return str(error)[-30:]


def shards_without_metadata(api: ModuleType, folder: Path) -> object:
    del folder
    spec = {"driver": "neuroglancer_uint64_sharded", "base": "memory://"}
    return api.KvStore.Spec(spec).path


def opened_by_path(api: ModuleType, folder: Path) -> object:
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/a/"}
    api.open(spec, create=True, dtype="uint8", shape=[3]).result()
    return api.open(f"{folder}/a").result().shape


def context_of_json(api: ModuleType, folder: Path) -> object:
    del folder
    context = {"cache_pool": {"total_bytes_limit": 1000}}
    return api.open(ZARR, create=True, dtype="uint8", shape=[3], context=context).result().shape


def compared_dtype(api: ModuleType, folder: Path) -> object:
    del folder
    return api.uint8 == object  # noqa: E721 - the data type has its own comparison


def stored_layers(api: ModuleType, folder: Path) -> object:
    del folder
    layers = [made(api) for _ in range(2)]
    return api.stack(layers).storage_statistics(query_not_stored=True).result().not_stored


def float_to_integers(api: ModuleType, folder: Path) -> object:
    del folder
    store = made(api)
    store[0].write(2.5).result()
    return store[0].read().result()[()]


def length(api: ModuleType, folder: Path) -> object:
    del folder
    return len(made(api))


def copied_range(api: ModuleType, folder: Path) -> object:
    del folder
    source, target = (api.KvStore.open("memory://").result() for _ in "ab")
    source["key"] = b"1"
    source.experimental_copy_range_to(target).result()
    return target.list().result()


def missing_key(api: ModuleType, folder: Path) -> object:
    del folder
    return api.KvStore.open("memory://").result()["key"]


def prefix_of_a_layer(api: ModuleType, folder: Path) -> object:
    del folder
    layers = [{"base": "memory://", "prefix": "p/"}]
    store = api.KvStore.open({"driver": "kvstack", "layers": layers}).result()
    store["p/key"] = b"1"
    return (store / "p/").list().result()


def archive(api: ModuleType) -> Any:
    spec = {"driver": "zip", "base": "memory://a.zip"}
    store = api.KvStore.open(spec).result()
    store["key"] = b"1"
    return store


def generation_of_no_member(api: ModuleType, folder: Path) -> object:
    del folder
    return archive(api).read("none").result().stamp.generation == b"\x02"


def absolute_member(api: ModuleType, folder: Path) -> object:
    del folder
    store = archive(api)
    store["/a"] = b"1"
    return store.list().result()


def archive_without_members(api: ModuleType, folder: Path) -> object:
    del folder
    store = archive(api)
    store.delete_range(api.KvStore.KeyRange()).result()
    return store.list().result()


def longer_than_a_member(api: ModuleType, folder: Path) -> object:
    del folder
    return archive(api).list(strip_prefix_length=4).result()


def keys_below_a_file(api: ModuleType, folder: Path) -> object:
    (folder / "a").write_bytes(b"1")
    return api.KvStore.open(f"file://{folder}/a/").result().list().result()


def atomic_and_repeatable(api: ModuleType, folder: Path) -> object:
    del folder
    return api.Transaction(atomic=True, repeatable_read=True).atomic


def conditional_deletion(api: ModuleType, folder: Path) -> object:
    del folder
    store = api.KvStore.open("memory://").result()
    store["key"] = b"1"
    transaction = api.Transaction()
    store.with_transaction(transaction).write("key", None, if_equal=b"other").result()
    transaction.commit_sync()
    return store.list().result()


def part_of_a_deleted_range(api: ModuleType, folder: Path) -> object:
    del folder
    store = api.KvStore.open("memory://|ocdbt:").result()
    store["key"] = b"1"
    staged = store.with_transaction(api.Transaction())
    staged.delete_range(api.KvStore.KeyRange("", "x")).result()
    return staged.list(api.KvStore.KeyRange("a", "b")).result()


def pickled_memory(api: ModuleType, folder: Path) -> object:
    del folder
    store = made(api)
    store.write(7).result()
    return pickle.loads(pickle.dumps(store)).read().result().tolist()


def referenced_source(api: ModuleType, folder: Path) -> object:
    del folder
    source = np.full(64, 5, "uint32")
    store = made(api, dtype="uint32", shape=[64])
    store.write(source, can_reference_source_data_indefinitely=True).result()
    source[:] = 9
    return store[0].read().result()[()]


def other_byte_order(api: ModuleType, folder: Path) -> object:
    del folder
    return api.array(np.arange(3).astype(">i4")).read().result().tolist()


def verbose_log(api: ModuleType, folder: Path) -> object:
    del folder
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        api.parse_tensorstore_flags(["program", "--tensorstore_http_threads=2"])
    return "warns" if caught else "takes it"


def names_of_metrics(api: ModuleType, folder: Path) -> object:
    del folder
    made(api).write(1).result()
    return api.experimental_collect_matching_metrics("/tensorstore/")[0]["name"].rpartition("/")[0]


def generic_future(api: ModuleType, folder: Path) -> object:
    del folder
    return repr(api.Future[int])


def exception_that_is_none(api: ModuleType, folder: Path) -> object:
    del folder
    return api.Promise.new()[0].set_exception(5)


def options_by_default(api: ModuleType, folder: Path) -> object:
    del folder
    json = api.KvStore.Spec("memory://a.zip|zip:").to_json(include_defaults=True)
    return sorted(name for name in json if name not in ("driver", "base", "path", "context"))


def rank_by_default(api: ModuleType, folder: Path) -> object:
    del folder
    json = api.Spec({**ZARR, "metadata": {"shape": [3]}}).to_json(include_defaults=True)
    return json["schema"].get("rank")


def wrong_chunk_grid(api: ModuleType, folder: Path) -> object:
    del folder
    try:
        api.Spec({**ZARR, "metadata": {"chunk_grid": {"name": "abc"}}})
    except ValueError as error:
        return str(error).partition('member "name": ')[2]


def wrong_data_type(api: ModuleType, folder: Path) -> object:
    del folder
    try:
        api.Spec({**ZARR, "metadata": {"data_type": 5}})
    except ValueError as error:
        return str(error).partition('member "data_type": ')[2]


def bare_name(api: ModuleType, folder: Path) -> object:
    del folder
    json = {**ZARR, "metadata": {"chunk_key_encoding": "v2"}}
    return api.Spec(json).to_json()["metadata"]["chunk_key_encoding"]


def raw_bytes_in_a_spec(api: ModuleType, folder: Path) -> object:
    del folder
    return api.Spec({**ZARR, "dtype": "byte", "metadata": {"data_type": "r16"}}).dtype


def json_in_zarr2(api: ModuleType, folder: Path) -> object:
    del folder
    return api.Spec({"driver": "zarr2", "kvstore": "memory://a/", "dtype": "json"}).dtype


def fill_value_of_a_cast(api: ModuleType, folder: Path) -> object:
    del folder
    spec = {"driver": "cast", "base": ZARR, "dtype": "int32", "schema": {"fill_value": True}}
    return api.Spec(spec).fill_value


def image_of(encoded: bytes, driver: str, api: ModuleType, folder: Path) -> object:
    """Read an image."""
    (folder / "a").write_bytes(encoded)
    spec = {"driver": driver, "kvstore": f"file://{folder}/a"}
    return api.open(spec).result().read().result().shape


def damaged_image(api: ModuleType, folder: Path) -> object:
    return image_of(b"not an image", "png", api, folder)


def truncated_image(api: ModuleType, folder: Path) -> object:
    from PIL import Image

    encoded = io.BytesIO()
    Image.new("RGB", (40, 40)).save(encoded, "webp", lossless=True)
    return image_of(encoded.getvalue()[:-2], "webp", api, folder)


def changed_chunk(
    api: ModuleType, folder: Path, codec: dict[str, Any], change: Callable[[bytes], bytes]
) -> object:
    """Read an array of three elements in files whose chunk has been changed."""
    metadata = {"codecs": [{"name": "bytes"}, codec]}
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/", "metadata": metadata}
    store = api.open(spec, create=True, dtype="uint8", shape=[3]).result()
    store.write([1, 2, 3]).result()
    chunk = folder / "c" / "0"
    chunk.write_bytes(change(chunk.read_bytes()))
    return store.read().result().tolist()


def damaged_chunk(api: ModuleType, folder: Path) -> object:
    codec = {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle"}}
    try:
        changed_chunk(api, folder, codec, lambda value: value[:9])
    except ValueError as error:
        return str(error).partition('": ')[2].partition(" [")[0]


def bytes_behind_a_chunk(api: ModuleType, folder: Path) -> object:
    codec = {"name": "gzip", "configuration": {"level": 1}}
    try:
        return changed_chunk(api, folder, codec, lambda value: value + b"more")
    except ValueError as error:
        return type(error).__name__


def json_file(api: ModuleType, folder: Path) -> Any:
    """Open a JSON file of two members and read it."""
    (folder / "a").write_text('{"b": 1, "a": 2}')
    store = api.open({"driver": "json", "kvstore": f"file://{folder}/a"}).result()
    return store, store.read().result().item()


def order_of_members(api: ModuleType, folder: Path) -> object:
    return list(json_file(api, folder)[1])


def changed_json(api: ModuleType, folder: Path) -> object:
    store, _ = json_file(api, folder)
    (folder / "a").write_text("5")
    found = store.read().result().item()
    return found if isinstance(found, int) else sorted(found)


def order_of_files(api: ModuleType, folder: Path) -> object:
    for number in range(40):  # In an order that is sorted neither way.
        (folder / f"{number * 7 % 41:02}").touch()
    listed = api.KvStore.open(f"file://{folder}/").result().list().result()
    return listed == sorted(listed)


def fill_value_of_booleans(api: ModuleType, folder: Path) -> object:
    del folder
    metadata = {"dtype": "|b1", "fill_value": 1}
    return api.Spec({"driver": "zarr", "metadata": metadata}).to_json()["metadata"]["fill_value"]


def names_of_resources(api: ModuleType, folder: Path) -> object:
    del folder
    context = api.Context({"cache_pool#b": {"total_bytes_limit": 5}})
    spec = {**ZARR, "cache_pool": "cache_pool#b", "create": True}
    store = api.open(spec, context=context, dtype="int8", shape=[2]).result()
    return next(iter(store.spec(unbind_context=True).to_json()["context"]))


def resources_of_layers(api: ModuleType, folder: Path) -> object:
    del folder
    view = api.stack([made(api)])
    return "context" in view.spec(unbind_context=True).to_json()["layers"][0]


def unknown_argument(api: ModuleType, folder: Path) -> None:
    del folder
    api.open(ZARR, foo=1)


def label_and_size(api: ModuleType, folder: Path) -> object:
    del folder
    return api.Dim("x", size=3)


def name_of_a_type(api: ModuleType, folder: Path) -> object:
    del folder
    return api.array([1]).__array__(dtype="float32").dtype


def two_wrong_members(api: ModuleType, folder: Path) -> None:
    del folder
    api.Spec({**ZARR, "create": 5, "recheck_cached_data": 5.5e300, "path": 5})


def place_of_an_error(api: ModuleType, folder: Path) -> object:
    del folder
    store = made(api)
    try:
        store.resize(exclusive_max=[5], shrink_only=True).result()
    except ValueError as error:
        return str(error).partition(" would")[0]


def bound_of_a_read_for_a_write(api: ModuleType, folder: Path) -> object:
    del folder
    bounds = []

    def read(domain: Any, array: Any, parameters: Any) -> None:
        bounds.append(parameters.staleness_bound)
        array[...] = 1

    view = api.virtual_chunked(read, lambda *_: None, dtype="uint8", shape=[3])
    view[0].write(5).result()
    return bounds[0] > 0


def port_of_a_server(api: ModuleType, folder: Path) -> object:
    del folder
    return api.KvStore.Spec({"driver": "http", "base_url": "http://a:80"}).to_json()["base_url"]


def number_out_of_range(api: ModuleType, folder: Path) -> object:
    del folder
    store = made(api)
    store[0].write(np.int64(300)).result()
    return store[0].read().result()[()]


def fill_value_out_of_range(api: ModuleType, folder: Path) -> object:
    del folder
    metadata = {"dtype": "int4", "fill_value": 8}
    return api.Spec({"driver": "zarr", "metadata": metadata}).to_json()["metadata"]["fill_value"]


def fill_value_of_bits(api: ModuleType, folder: Path) -> object:
    del folder
    metadata = {"dtype": "<f4", "fill_value": "0x7fc00001"}
    return api.Spec({"driver": "zarr", "metadata": metadata}).to_json()["metadata"]["fill_value"]


def shape_of_codec_chunks(api: ModuleType, folder: Path) -> object:
    del folder
    return api.ChunkLayout(codec_chunk_shape=[2]).to_json()


def strings(api: ModuleType, folder: Path) -> object:
    del folder
    return api.Spec({**ZARR, "dtype": "string"}).dtype


def shown_grid(api: ModuleType, folder: Path) -> object:
    del folder
    return repr(api.ChunkLayout.Grid(shape=[2])).partition(" at 0x")[0]


def read_of_bytes(api: ModuleType, folder: Path) -> object:
    del folder
    metadata = {"dtype": "|S2", "shape": [1]}
    spec = {"driver": "zarr", "kvstore": "memory://a/", "metadata": metadata}
    return api.open(spec, create=True).result().read().result().dtype


def read_outside_of_an_array(api: ModuleType, folder: Path) -> object:
    del folder
    return type(made(api)[5].read()).__name__


def write_of_another_shape(api: ModuleType, folder: Path) -> object:
    del folder
    return type(made(api).write([1, 2])).__name__


def shards_of_another_shape(api: ModuleType, folder: Path) -> object:
    del folder
    sharding = {"@type": "neuroglancer_uint64_sharded_v1", "hash": "identity"}
    sharding |= dict.fromkeys(("preshift_bits", "minishard_bits", "shard_bits"), 0)
    spec = {"driver": "neuroglancer_precomputed", "kvstore": "memory://a/"}
    spec["scale_metadata"] = {"sharding": sharding}
    layout = api.ChunkLayout(chunk_shape=[4, 4, 4, 1])
    options = {"dtype": "uint8", "shape": [8, 8, 8, 1], "chunk_layout": layout}
    return api.open(spec, create=True, **options).result().chunk_layout.write_chunk.shape


def opened_to_write(api: ModuleType, folder: Path) -> object:
    del folder
    return api.open({"driver": "array", "array": 1, "dtype": "int8"}, read=False).result().mode


def range_of_a_plain_server(api: ModuleType, folder: Path) -> object:
    (folder / "a").write_bytes(b"0123456789")

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        store = api.KvStore.open(f"http://127.0.0.1:{server.server_port}/").result()
        try:
            return store.read("a", byte_range=slice(2, 5)).result().value
        finally:
            server.shutdown()


def condition_of_an_archive(api: ModuleType, folder: Path) -> object:
    store = api.KvStore.open(f"file://{folder}/a.zip|zip:").result()
    store["a"] = b"1"
    store.write("a", b"2", if_equal=b"another").result()
    return store["a"]


def empty_key_of_an_archive(api: ModuleType, folder: Path) -> object:
    store = api.KvStore.open(f"file://{folder}/a.zip|zip:").result()
    store["a"] = b"1"
    return store[""]


def labels_beside_a_shape(api: ModuleType, folder: Path) -> object:
    metadata = {"shape": [3], "dtype": "|u1", "chunks": [3]}
    spec = {"driver": "zarr", "kvstore": f"file://{folder}/", "metadata": metadata}
    api.open(spec, create=True).result()
    return api.open(spec, domain=api.IndexDomain(labels=["x"])).result().domain


def codec_of_json(api: ModuleType, folder: Path) -> object:
    del folder
    api.Spec(ZARR).update(codec={"driver": "zarr3"}, shape=3)


def list_of_a_server(api: ModuleType, folder: Path) -> None:
    del folder
    api.KvStore.open("http://a/").result().list().result()


def module_of_classes(api: ModuleType, folder: Path) -> object:
    del folder
    return api.KvStore.Spec.__module__


def attribute_of_a_future(api: ModuleType, folder: Path) -> object:
    del folder
    return api.array([1]).read().shape


def rank_of_a_url(api: ModuleType, folder: Path) -> object:
    del folder
    return api.Spec("memory://a/|neuroglancer-precomputed:").rank


def coordinator(api: ModuleType, folder: Path) -> object:
    del folder
    return type(api.ocdbt.DistributedCoordinatorServer()).__name__


def undumped_manifest(api: ModuleType, folder: Path) -> object:
    del folder
    store = api.KvStore.open("memory://|ocdbt:").result()
    store["key"] = b"1"
    dumped = api.ocdbt.dump(store.base).result()
    return type(api.ocdbt.undump_manifest(dumped)).__name__


def write_over_a_gap(api: ModuleType, folder: Path) -> object:
    del folder
    layer = api.array([1, 2])
    with contextlib.suppress(ValueError):
        api.overlay([layer], shape=[4]).write(7).result()
    return layer.read().result().tolist()


def cell_of_a_gap(api: ModuleType, folder: Path) -> object:
    del folder
    return api.overlay([api.array([1, 2])], shape=[4])[2:].read().result()


def write_over_a_shrunk_layer(api: ModuleType, folder: Path) -> object:
    del folder
    layer = made(api)
    view = api.stack([layer])
    layer.resize(exclusive_max=[2]).result()
    view.write(7).result()
    return layer.read().result().tolist()


def chunk_read_in_a_transaction(api: ModuleType, folder: Path) -> object:
    del folder
    stored = np.ones(3, np.uint8)

    def read(domain: Any, array: Any, parameters: Any) -> None:
        array[...] = stored

    def write(domain: Any, array: Any, parameters: Any) -> None:
        stored[...] = array

    view = api.virtual_chunked(read, write, dtype=api.uint8, shape=[3])
    with api.Transaction() as transaction:
        view.with_transaction(transaction).read().result()
    return stored.tolist()


def function_without_a_version(api: ModuleType, folder: Path) -> object:
    del folder

    def read(domain: Any, array: Any, parameters: Any) -> object:
        array[...] = 5
        return api.KvStore.TimestampedStorageGeneration(b"", 0.0)

    return api.virtual_chunked(read, dtype="uint8", shape=[2]).read().result().tolist()


def version_given_back(api: ModuleType, folder: Path) -> object:
    del folder
    versions = []

    def read(domain: Any, array: Any, parameters: Any) -> object:
        array[...] = 5
        return api.KvStore.TimestampedStorageGeneration(b"1", 0.0)

    def write(domain: Any, array: Any, parameters: Any) -> None:
        versions.append(parameters.if_equal)

    api.virtual_chunked(read, write, dtype="uint8", shape=[2])[0].write(1).result()
    return versions


def function_that_stops(api: ModuleType, folder: Path) -> object:
    del folder

    def read(domain: Any, array: Any, parameters: Any) -> None:
        raise StopIteration("no more")

    return api.virtual_chunked(read, dtype="uint8", shape=[2]).read().result()


def created_meanwhile(api: ModuleType, folder: Path) -> None:
    del folder
    context, transaction = api.Context(), api.Transaction()
    for of in (transaction, None):
        options = {"dtype": "uint8", "shape": [3], "context": context, "transaction": of}
        api.open(ZARR, create=True, **options).result()
    transaction.commit_sync()


def cached_after_a_write(api: ModuleType, folder: Path) -> object:
    context = api.Context({"cache_pool": {"total_bytes_limit": 100_000}})
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/a/", "recheck_cached_data": False}
    store = api.open(spec, create=True, dtype="uint8", shape=[3], context=context).result()
    store[0] = 7
    (folder / "a" / "c" / "0").unlink()
    return store.read().result().tolist()


def read_of_a_staged_key(api: ModuleType, folder: Path) -> object:
    del folder
    store = api.KvStore.open("memory://").result()
    with api.Transaction(repeatable_read=True) as transaction:
        staged = store.with_transaction(transaction)
        staged["key"] = b"1"
        staged.read("key").result()
    return [store["key"]]


def commit_after_a_change_by_others(api: ModuleType, folder: Path) -> object:
    del folder
    store = api.KvStore.open("memory://").result()
    transaction = api.Transaction(repeatable_read=True)
    staged = store.with_transaction(transaction)
    staged.read("a").result()
    staged["b"] = b"1"
    store["a"] = b"2"
    with contextlib.suppress(ValueError):
        transaction.commit_sync()
    return store.list().result()


def array_read_of_a_deleted_range(api: ModuleType, folder: Path) -> object:
    del folder
    store = made(api)
    store[0] = 1
    with api.Transaction() as transaction:
        staged = store.with_transaction(transaction)
        staged.kvstore.delete_range(api.KvStore.KeyRange("c/", "c0")).result()
        staged.read().result()
    return store.read().result().tolist()


def atomic_chunk_of_files(api: ModuleType, folder: Path) -> object:
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/a/"}
    store = api.open(spec, create=True, dtype="uint8", shape=[3]).result()
    with api.Transaction(atomic=True) as transaction:
        store.with_transaction(transaction)[0] = 1
    return store.read().result().tolist()


def atomic_over_two_memories(api: ModuleType, folder: Path) -> object:
    del folder
    with api.Transaction(atomic=True) as transaction:
        for _ in "ab":
            api.KvStore.open("memory://").result().with_transaction(transaction)["key"] = b"1"
    return "commits"


def class_of_an_error(api: ModuleType, folder: Path) -> None:
    del folder
    api.IndexDomain(shape=[3])[api.d["y"]]


def read_after_a_fork(api: ModuleType, folder: Path) -> object:
    program = f"""
import os, {api.__name__} as ts
store = ts.KvStore.open("file://{folder}/").result()
store["key"] = b"1"
child = os.fork()
if child == 0:
    store["key"]
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode
    return "the child reads" if ended == 0 else "the child is aborted"


def bounds_changed_by_others(api: ModuleType, folder: Path) -> object:
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/a/"}
    store = api.open(spec, create=True, dtype="uint8", shape=[3]).result()
    other = api.open(spec).result()
    store.resize(exclusive_max=[5]).result()
    return other.resolve().result().shape


def writable_on_a_server(api: ModuleType, folder: Path) -> object:
    del folder
    metadata = {"shape": [3], "data_type": "uint8"}
    spec = {"driver": "zarr3", "kvstore": "http://localhost/a/", "metadata": metadata}
    return api.open(spec, open=True, assume_metadata=True).result().writable


def iterated(api: ModuleType, folder: Path) -> object:
    del folder
    return [int(one) for one in api.array([1, 2])]


def name_of_numpy(api: ModuleType, folder: Path) -> object:
    del folder
    return api.dtype("datetime64[s]").name


def atomic_shards_in_memory(api: ModuleType, folder: Path) -> object:
    del folder
    sharding = {
        "@type": "neuroglancer_uint64_sharded_v1",
        "hash": "identity",
        **{"preshift_bits": 0, "minishard_bits": 0, "shard_bits": 1},
    }
    spec = {"driver": "neuroglancer_uint64_sharded", "base": "memory://a/", "metadata": sharding}
    store = api.KvStore.open(spec).result()
    with api.Transaction(atomic=True) as transaction:
        for number in range(2):
            store.with_transaction(transaction)[number.to_bytes(8, "big")] = b"1"
    return "commits"


def compared_with_a_number(api: ModuleType, folder: Path) -> object:
    del folder
    return api.Dim(3) == 3


def hashed_domain(api: ModuleType, folder: Path) -> object:
    del folder
    return len({api.IndexDomain(3), api.IndexDomain(3)})


def number_of_an_array(api: ModuleType, folder: Path) -> object:
    del folder
    return float(api.array(3.5))


def name_in_numpy(api: ModuleType, folder: Path) -> object:
    del folder
    return api.dtype("i4")


def numpy_of_a_data_type(api: ModuleType, folder: Path) -> object:
    del folder
    return np.dtype(api.int8)


def texts_of_several_bytes(api: ModuleType, folder: Path) -> object:
    del folder
    return api.array(np.array([b"abc", b"d"])).read().result().tolist()


def copied_context(api: ModuleType, folder: Path) -> object:
    del folder
    return copy.copy(api.Context({"cache_pool": {}})).spec.to_json()


def version_of_a_key(api: ModuleType, folder: Path) -> object:
    del folder
    stores = [api.KvStore.open("memory://").result() for _ in "ab"]
    versions = {store.write("key", b"1").result().generation for store in stores}
    return len(versions)


def schema_of_an_added_dimension(api: ModuleType, folder: Path) -> object:
    del folder
    outputs = [{"input_dimension": 1}]
    transform = {"input_shape": [1, 2], "output": outputs}
    spec = {"driver": "array", "array": [2, 5], "dtype": "int32", "transform": transform}
    return api.Spec(spec).schema.rank


def number_as_a_name(api: ModuleType, folder: Path) -> object:
    del folder
    return api.Spec({"driver": "n5", "metadata": {5: "a"}}).to_json()["metadata"]


def wrong_option_of_a_codec(api: ModuleType, folder: Path) -> object:
    del folder
    gzip = {"name": "gzip", "configuration": {"level": 50}}
    return api.CodecSpec({"driver": "zarr3", "codecs": [gzip]}).to_json()["codecs"]


def slash_as_a_path(api: ModuleType, folder: Path) -> object:
    del folder
    json = api.KvStore.Spec("http://a/").to_json()
    return api.KvStore.Spec(json).url


def bytes_in_a_base_url(api: ModuleType, folder: Path) -> object:
    del folder
    return api.KvStore.Spec({"driver": "http", "base_url": "http://a/%FF"}).url


def cut_off_shards(api: ModuleType, folder: Path) -> object:
    del folder
    sharding = {"@type": "neuroglancer_uint64_sharded_v1", "hash": "identity"}
    sharding |= {"preshift_bits": 9, "minishard_bits": 0, "shard_bits": 0}
    scale = {"size": [10, 8, 8], "chunk_size": [8, 8, 8], "sharding": sharding}
    spec = {"driver": "neuroglancer_precomputed", "scale_metadata": scale}
    return api.Spec(spec).chunk_layout.write_chunk.shape[:3]


def both_kinds_of_checks(api: ModuleType, folder: Path) -> object:
    del folder
    spec = api.Spec(ZARR)
    spec.update(recheck_cached=False, recheck_cached_data=True)
    return spec.to_json().get("recheck_cached_data", True)


def dropped_promise(api: ModuleType, folder: Path) -> object:
    del folder
    return api.Promise.new()[1].result(timeout=0)


def made_futures(api: ModuleType, folder: Path) -> object:
    del folder
    return api.WriteFutures(api.Future(1), api.Future(2)).commit.result()


def relative_file_url(api: ModuleType, folder: Path) -> object:
    del folder
    return api.KvStore.Spec("file://a/b/").path


def illegal_staged_key(api: ModuleType, folder: Path) -> object:
    transaction = api.Transaction()
    store = api.KvStore.open(f"file://{folder}/").result().with_transaction(transaction)
    store.write("a//b", b"1").result()
    transaction.abort()
    return "fails at the commit"


DIFFERENCES = (
    Difference(
        "`repr(store)`", shown, "one line fits a prompt; `print(store.spec())` has the JSON"
    ),
    Difference("`repr(spec)`", shown_spec, "the same; `print(spec)` has the JSON"),
    Difference("`print(store)`", printed_store, "the same"),
    Difference("`repr(future)`", shown_future, "says what to do"),
    Difference(
        "index outside of the domain (end of the message)",
        index_out_of_bounds,
        "messages may say more, behind TensorStore's words",
    ),
    Difference("no format is found (end of the message)", undetected, "the same"),
    Difference("a path without `file://`", opened_by_path, "a path is the most frequent place"),
    Difference("relative path in a URL", relative_file_url, "documents of TensorStore have such"),
    Difference("a context given as JSON", context_of_json, "one object less to make"),
    Difference("a codec or chunk layout given as JSON, one extent", codec_of_json, "the same"),
    Difference("mode of `open(read=False)`", opened_to_write, "what is not asked for is not there"),
    Difference(
        "range of bytes of a server that ignores ranges",
        range_of_a_plain_server,
        "they are in the value that it sends",
    ),
    Difference(
        "write to a zip archive on a condition that does not hold",
        condition_of_an_archive,
        "TensorStore passes over conditions there",
    ),
    Difference("empty key in a zip archive", empty_key_of_an_archive, "no member has such a name"),
    Difference(
        "domain of an array of Zarr v2 opened with labels",
        labels_beside_a_shape,
        "as without the metadata in the spec",
    ),
    Difference("`storage_statistics` of a stack", stored_layers, "those of its layers, together"),
    Difference("`dtype == object`", compared_dtype, "a comparison must not fail"),
    Difference("2.5 written to integers", float_to_integers, "the fraction would be lost silently"),
    Difference("`len(store)`", length, "as of NumPy's arrays"),
    Difference(
        "`experimental_copy_range_to` in memory", copied_range, "any kvstore is copied to any other"
    ),
    Difference("value of a missing key", missing_key, "the message names the key"),
    Difference(
        "rank of a URL whose driver has only one", rank_of_a_url, "it is that of a spec in JSON"
    ),
    Difference(
        "`ocdbt.DistributedCoordinatorServer`",
        coordinator,
        "writers meet at the stored manifest, so no server is needed",
    ),
    Difference(
        "`ocdbt.undump_manifest`, `undump_version_tree_node`",
        undumped_manifest,
        "databases change by commits alone",
    ),
    Difference(
        "list with a stripped prefix in a `kvstack`",
        prefix_of_a_layer,
        "TensorStore removes the prefix from the key of the base, and puts it in front again",
    ),
    Difference(
        "whether a missing key of an archive has the generation of missing keys",
        generation_of_no_member,
        "a conditional write can require that the key is missing, as elsewhere",
    ),
    Difference(
        "key of an archive that begins with a slash",
        absolute_member,
        "unpacked, it would lie outside of the folder",
    ),
    Difference(
        "`delete_range` of all keys of an archive",
        archive_without_members,
        "TensorStore's deletes nothing",
    ),
    Difference(
        "list of an archive that strips more bytes than a key has",
        longer_than_a_member,
        "as other kvstores do",
    ),
    Difference("list below a file", keys_below_a_file, "no key is there"),
    Difference(
        "`atomic` of a transaction that is `repeatable_read`, too",
        atomic_and_repeatable,
        "it is what was asked for",
    ),
    Difference(
        "deletion in a transaction whose condition does not hold",
        conditional_deletion,
        "TensorStore deletes the key all the same",
    ),
    Difference(
        "list of a part of a range that a transaction has deleted in a database",
        part_of_a_deleted_range,
        "TensorStore lists keys outside of it",
    ),
    Difference(
        "pickle of an array in memory", pickled_memory, "the elements would be lost silently"
    ),
    Difference(
        "source changed after a write with `can_reference_source_data_indefinitely`",
        referenced_source,
        "no reference is kept, so nothing can change behind a program's back",
    ),
    Difference("`array` of the other byte order", other_byte_order, "a defect there"),
    Difference(
        "flags of logs and threads", verbose_log, "they have no effect here, and that is said"
    ),
    Difference(
        "names of metrics", names_of_metrics, "they are the counters of `gpustore.statistics`"
    ),
    Difference(
        "`KvStore.Spec.__module__`", module_of_classes, "classes name the module that defines them"
    ),
    Difference("`repr(Future[int])`, `repr(Promise[int])`", generic_future, "the same"),
    Difference(
        "`Promise.set_exception` of what is no exception",
        exception_that_is_none,
        "it could not be raised",
    ),
    Difference(
        "attribute of a Future's result", attribute_of_a_future, "the message says what to do"
    ),
    Difference(
        "write to an overlay with a gap", write_over_a_gap, "a write that fails changes nothing"
    ),
    Difference(
        "write to a stack of an array that has shrunk since",
        write_over_a_shrunk_layer,
        "what has no place is an error, also in reads",
    ),
    Difference(
        "function of a virtual array whose chunk a transaction has read",
        chunk_read_in_a_transaction,
        "only what was written is stored",
    ),
    Difference("read of a gap", cell_of_a_gap, "the message names the first index without a layer"),
    Difference(
        "function of a virtual array that names no version",
        function_without_a_version,
        "the function has filled the chunk",
    ),
    Difference(
        "version of a chunk that a write gives back",
        version_given_back,
        "TensorStore takes bits of versions for flags of its own",
    ),
    Difference(
        "StopIteration in a function of a virtual array",
        function_that_stops,
        "in a coroutine that awaits the read it would end that, silently",
    ),
    Difference(
        "creation in a transaction, overtaken",
        created_meanwhile,
        "as for any key that others have changed; a new try opens the array",
    ),
    Difference(
        "chunk that was written through a cache, and is then deleted by others",
        cached_after_a_write,
        "caches hold what was read; a write drops what it changes",
    ),
    Difference(
        "key that is written, then read, with `repeatable_read`",
        read_of_a_staged_key,
        "TensorStore commits an empty value",
    ),
    Difference(
        "commit that fails because others changed what was read",
        commit_after_a_change_by_others,
        "a commit that fails stores nothing, where that is known before",
    ),
    Difference(
        "array read in a transaction that has deleted its chunks by a range of keys",
        array_read_of_a_deleted_range,
        "TensorStore's commit then deletes nothing",
    ),
    Difference(
        "atomic transaction over one chunk of files",
        atomic_chunk_of_files,
        "only one key changes; the metadata are read",
    ),
    Difference(
        "atomic transaction over two kvstores in memory",
        atomic_over_two_memories,
        "readers could see one change before the other",
    ),
    Difference(
        "class of an error",
        class_of_an_error,
        "tracebacks name gpustore's classes, each of them also one that TensorStore raises",
    ),
    Difference(
        "missing member (end of the message)",
        missing_member,
        "`<discarded>` says nothing to a user",
    ),
    Difference(
        "context resources in JSON with defaults",
        resources_by_default,
        "gpustore has more of them",
    ),
    Difference(
        "options of a kvstore in JSON with defaults",
        options_by_default,
        "gpustore has more of them, as `duplicates` of zip",
    ),
    Difference(
        "rank in the schema of a Zarr v3 spec with a shape, in JSON with defaults",
        rank_by_default,
        "as of a Zarr v2 spec",
    ),
    Difference(
        "wrong chunk grid of Zarr v3", wrong_chunk_grid, "rectilinear grids are supported too"
    ),
    Difference(
        "data type of Zarr v3 that is neither text nor a list",
        wrong_data_type,
        "most data types are names",
    ),
    Difference(
        "name alone in Zarr v3 metadata, other than of a codec",
        bare_name,
        "specification 3.1 allows it",
    ),
    Difference(
        "spec of an array of raw bytes",
        raw_bytes_in_a_spec,
        "the spec of such an array says so, also TensorStore's own",
    ),
    Difference(
        "data type that Zarr v2 arrays lack, in a spec",
        json_in_zarr2,
        "found when a spec is made, not when it is opened",
    ),
    Difference(
        "fill value of a cast that is no element of its data type",
        fill_value_of_a_cast,
        "it may be an element of the base's, which is not known yet",
    ),
    Difference(
        "damaged image",
        damaged_image,
        "decoded by another library, and when it is read, not when it is opened",
    ),
    Difference("truncated WebP image", truncated_image, "elements would be made up"),
    Difference(
        "damaged chunk (end of the message)",
        damaged_chunk,
        "the words are those of the codec's library",
    ),
    Difference(
        "bytes behind the compressed ones in a chunk of Zarr v3",
        bytes_behind_a_chunk,
        "a chunk that is longer than it says is damaged, as in Zarr v2",
    ),
    Difference("order of the members of a JSON file", order_of_members, "as they are in the file"),
    Difference(
        "JSON file that was changed since it was read", changed_json, "JSON files are not cached"
    ),
    Difference(
        "whether keys of files, and of shards, are listed in their order",
        order_of_files,
        "that of the directory would change from run to run",
    ),
    Difference(
        "fill value 0 or 1 of booleans of Zarr v2", fill_value_of_booleans, "some files have it"
    ),
    Difference(
        "name of a context resource in the spec of an opened array",
        names_of_resources,
        "an array has one resource of a kind, whatever its name was",
    ),
    Difference(
        "whether the spec of a stack has the context resources of its layers",
        resources_of_layers,
        "opened again, the layers have resources like theirs; each layer has its own",
    ),
    Difference(
        "unknown argument", unknown_argument, "the message of Python, which names the argument"
    ),
    Difference('`Dim("x", size=3)`', label_and_size, 'as `Dim(3, "x")`'),
    Difference(
        "name of a data type where TensorStore takes NumPy's data type",
        name_of_a_type,
        "as in NumPy",
    ),
    Difference(
        "several wrong members of a spec",
        two_wrong_members,
        "one of them is named; which one depends on the order of the checks",
    ),
    Difference(
        "words of further errors, for instance of a list of keys",
        list_of_a_server,
        "they name the driver, the file or the place of what is wrong",
    ),
    Difference(
        "refused resizing (begin of the message)",
        place_of_an_error,
        "the place is said in any case",
    ),
    Difference(
        "whether a function of a virtual array that reads for a write has a `staleness_bound`",
        bound_of_a_read_for_a_write,
        "what is changed is as fresh as what is read",
    ),
    Difference(
        "usual port of a web server in a spec", port_of_a_server, "both forms are one server"
    ),
    Difference(
        "300 as an integer of NumPy, written to bytes",
        number_out_of_range,
        "another number would be stored silently",
    ),
    Difference(
        "fill value that `int4` lacks", fill_value_out_of_range, "it would be another number"
    ),
    Difference(
        "fill value of Zarr v2 in hexadecimal digits",
        fill_value_of_bits,
        "such a text is bits, as in Zarr v3, and no number",
    ),
    Difference(
        "`codec_chunk_shape` of a chunk layout",
        shape_of_codec_chunks,
        "TensorStore applies it to read chunks, against its documentation",
    ),
    Difference("`repr(ChunkLayout.Grid())`", shown_grid, "as that of a chunk layout"),
    Difference(
        "NumPy's data type of elements read as `char` or `byte`",
        read_of_bytes,
        "elements have one byte",
    ),
    Difference(
        "read or write outside of resizable bounds",
        read_outside_of_an_array,
        "raised by the call: the traceback shows the line that is wrong",
    ),
    Difference("write of an array of another shape", write_of_another_shape, "the same"),
    Difference(
        "write chunks that the given shards of a precomputed volume do not have",
        shards_of_another_shape,
        "a hard constraint is kept or refused",
    ),
    Difference(
        "rank of a Zarr v3 spec with a chunk grid alone",
        rank_of_chunks,
        "chunks have as many dimensions as the array",
    ),
    Difference(
        "creation of an image", created_image, "images are not written; the message says so"
    ),
    Difference(
        "`host_header` of s3",
        host_of_requests,
        "requests are signed for the host to which they are sent",
    ),
    Difference(
        "`experimental_s3_rate_limiter`, `experimental_gcs_rate_limiter`",
        rate_of_requests,
        "requests are limited by number under way; a store that answers 429 or 503 is obeyed",
    ),
    Difference(
        "`coordinator` of ocdbt",
        member_of_a_coordinator,
        "writers meet at the stored manifest, so no server is needed",
    ),
    Difference(
        "`domain` in the schema of a downsampled spec",
        domain_of_a_downsampled_spec,
        "the domain of the base says it",
    ),
    Difference(
        "`base` of a reversed downsampled array",
        reversed_cells,
        "TensorStore's has the elements of one cell",
    ),
    Difference(
        "JSON of the base of a cast, or of a downsampled view of rank 0: has it a transform",
        base_of_a_cast,
        "that of the cast says the same",
    ),
    Difference(
        "resources of an OCDBT database",
        context_of_a_database,
        "there is no coordinator",
    ),
    Difference(
        "domain of a stack's spec under an unbounded transform",
        domain_of_a_stack_spec,
        "that of its layers, as when it is open",
    ),
    Difference(
        "aspect ratio of the chunks of a stack",
        aspect_ratio_of_a_stack,
        "TensorStore passes over it; layers have chunks of their own",
    ),
    Difference(
        "constraints that no array meets",
        contradiction,
        "found when a spec is made, not when it is opened",
    ),
    Difference(
        "header with a secret in a spec",
        secret_in_a_spec,
        "specs are shown and stored; `http_authorization` has secrets",
    ),
    Difference("file kvstore without a path", empty_path, "it would be the current directory"),
    Difference("complex elements in JSON", complex_array_in_json, "pairs of numbers, as in Zarr"),
    Difference("fill value of extent 0", fill_value_without_elements, "no element is filled by it"),
    Difference(
        "codec spec with an unknown codec",
        unknown_codec_in_a_spec,
        "specifications of codecs are compared too; refused when an array is made with it",
    ),
    Difference(
        "neuroglancer_uint64_sharded without `metadata`",
        shards_without_metadata,
        "no key would be found",
    ),
    Difference("read in a process that was forked", read_after_a_fork, "workers are forked"),
    Difference(
        "`resolve` of bounds that others have changed",
        bounds_changed_by_others,
        "it asks for the bounds of now, whatever `recheck_cached_metadata` says",
    ),
    Difference(
        "`writable` of an array on a web server",
        writable_on_a_server,
        "a write would fail in any case",
    ),
    Difference("iteration over a store", iterated, "as over NumPy's arrays"),
    Difference("data types of NumPy and Zarr", name_of_numpy, "arrays of them are stored"),
    Difference("strings in a Zarr v3 spec", strings, "the same"),
    Difference(
        "atomic transaction over two shards of Neuroglancer in memory",
        atomic_shards_in_memory,
        "a transaction is atomic over the values of one shard, in any kvstore",
    ),
    Difference(
        "illegal key in a transaction", illegal_staged_key, "found when it is staged, not later"
    ),
    Difference(
        "comparison of a Dim, an IndexDomain or a Unit with another type",
        compared_with_a_number,
        "a comparison must not fail",
    ),
    Difference(
        "hash of an IndexDomain, an IndexTransform or a Unit",
        hashed_domain,
        "they cannot be changed, so they may be keys",
    ),
    Difference("`float`, `int` and `complex` of a store", number_of_an_array, "as in NumPy"),
    Difference("NumPy's short name of a data type", name_in_numpy, "the same"),
    Difference("`numpy.dtype` of a data type", numpy_of_a_data_type, "the same"),
    Difference(
        "`array` of NumPy's texts of several bytes",
        texts_of_several_bytes,
        "bytes would be lost silently",
    ),
    Difference("copy of a context", copied_context, "a defect there"),
    Difference(
        "how many different generations the first keys of two kvstores in memory have",
        version_of_a_key,
        "no generation of one store is a condition that another one meets",
    ),
    Difference(
        "schema of a spec whose transform adds a dimension",
        schema_of_an_added_dimension,
        "that of the array which the spec opens",
    ),
    Difference(
        "number as the name of a JSON member", number_as_a_name, "JSON has only texts as names"
    ),
    Difference(
        "codec spec with a wrong option",
        wrong_option_of_a_codec,
        "as with an unknown codec: refused when an array is made with it",
    ),
    Difference(
        "spec of `http://a/`, made again from its JSON",
        slash_as_a_path,
        "TensorStore loses the path `/`",
    ),
    Difference(
        "base URL of http whose path is not UTF-8",
        bytes_in_a_base_url,
        "the server is sent what the URL says",
    ),
    Difference(
        "write chunks in the spec of a precomputed volume that cuts its shards off",
        cut_off_shards,
        "those of the open volume, in both packages",
    ),
    Difference(
        "`recheck_cached` beside `recheck_cached_data` or `recheck_cached_metadata`",
        both_kinds_of_checks,
        "the narrower argument counts",
    ),
    Difference(
        "Future whose promise was dropped (end of the message)",
        dropped_promise,
        "the message says what happened",
    ),
    Difference(
        "`WriteFutures` of two Futures", made_futures, "for functions that write in their own way"
    ),
)


def outcome(program: Callable[[ModuleType, Path], object], api: ModuleType, folder: Path) -> str:
    """Return the outcome of a program as text: its result, or the type and text of its error."""
    folder.mkdir()
    try:
        found = program(api, folder)
        text = repr(found)[1:-1] if isinstance(found, str) else repr(found)
    except Exception as error:
        words = " ".join(str(error).partition(" [tensorstore_")[0].split())
        text = f"{type(error).__name__}: {words}" if words else type(error).__name__
    text = text.replace(str(folder), "/data")
    return text if len(text) <= 100 else f"{text[:97]}..."
