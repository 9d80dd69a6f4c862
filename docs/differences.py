"""What differs from TensorStore on purpose: small programs, each run with both packages.

``docs/compatibility.py`` writes their outcomes into its page.
"""

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
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


DIFFERENCES = (
    Difference(
        "`repr(store)`", shown, "one line fits a prompt; `print(store.spec())` has the JSON"
    ),
    Difference("a path without `file://`", opened_by_path, "a path is the most frequent place"),
    Difference("a context given as JSON", context_of_json, "one object less to make"),
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
    Difference(
        "attribute of a Future's result", attribute_of_a_future, "the message says what to do"
    ),
)


def outcome(program: Callable[[ModuleType, Path], object], api: ModuleType, folder: Path) -> str:
    """Return the outcome of a program as text: its result, or the type and text of its error."""
    folder.mkdir()
    try:
        text = repr(program(api, folder)).removeprefix("'").removesuffix("'")
    except Exception as error:
        words = " ".join(str(error).partition(" [tensorstore_")[0].split())
        text = f"{type(error).__name__}: {words}" if words else type(error).__name__
    text = text.replace(str(folder), "/data")
    return text if len(text) <= 100 else f"{text[:97]}..."
