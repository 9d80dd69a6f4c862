"""What each library does with the files of a feature: reads them, writes them, or refuses.

A library is tried in a process of its own (``python -m tests.interop.libraries NAME``), which says
one line of JSON for each feature it is asked for, because TensorStore ends the process on some.
gpustore is tried in this one.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import gpustore
from tests.interop.arrays import shown
from tests.interop.feature import Feature
from tests.interop.features_zarr2 import features as features_zarr2
from tests.interop.features_zarr3 import features as features_zarr3
from tests.on_device import emulated, on_host

__all__ = ["FEATURES", "PEERS", "Cell", "try_device", "try_host", "try_peer"]

FEATURES = (*features_zarr2(), *features_zarr3())

PEERS = ("tensorstore", "zarr", "zarrs")
"""Other libraries, by the distribution that is installed."""

_CONTEXT = {"file_io_sync": False}

Cell = str
"""What happened, in words."""

READS_AND_WRITES = "reads, writes"


# --------------------------------------------------------------------------- the libraries


class Gpustore:
    """In host memory, or on a device."""

    def __init__(self, device: str = "cpu", to_host: Any = None) -> None:
        self.device = device
        self.to_host = to_host or np.asarray
        self.statistics: dict[str, int] = {}
        self.reasons: set[str] = set()

    def _open(self, path: Path, field: str = "") -> gpustore.TensorStore:
        driver = "zarr3" if (path / "zarr.json").exists() else "zarr2"
        spec = {"driver": driver, "kvstore": f"file://{path}/"}
        context = gpustore.Context(_CONTEXT)
        named = {"field": field} if field else {}
        return gpustore.open({**spec, **named}, device=self.device, context=context).result()

    def _read(self, store: gpustore.TensorStore) -> np.ndarray:
        future = store.read()
        found = self.to_host(future.result())
        if future.statistics["host_fallbacks"]:
            self.reasons.add(_host_reason(store.explain()))
        for name, count in future.statistics.snapshot().items():
            self.statistics[name] = self.statistics.get(name, 0) + count
        return found

    def array(self, path: Path, feature: Feature) -> np.ndarray:
        names = feature.values.dtype.names
        if names is None:
            return self._read(self._open(path))
        found = np.zeros(feature.values.shape, feature.values.dtype)
        for name in names:
            found[name] = self._read(self._open(path, name)).astype(found.dtype[name].base)
        return found

    def write_array(self, path: Path, feature: Feature) -> None:
        for name in feature.values.dtype.names or ("",):
            self._open(path, name)[...] = _given(feature.values, name)

    def group(self, path: Path, feature: Feature) -> Any:
        group = gpustore.open_group(f"file://{path}/", context=gpustore.Context(_CONTEXT)).result()
        members = group.members(max_depth=None).result()
        kinds = {name: node.node_type for name, node in members.items()}
        return {"attributes": group.attrs.asdict(), "members": kinds}

    def write_group(self, path: Path, feature: Feature) -> None:
        group = gpustore.open_group(f"file://{path}/", context=gpustore.Context(_CONTEXT)).result()
        group.attrs["more"] = [1.5]
        group.create_group("new").result()

    def consolidated(self, path: Path, feature: Feature) -> Any:
        group = gpustore.open_group(
            f"file://{path}/", use_consolidated=True, context=gpustore.Context(_CONTEXT)
        ).result()
        assert group.is_consolidated
        return self.group(path, feature)

    def write_consolidated(self, path: Path, feature: Feature) -> None:
        gpustore.open_group(f"file://{path}/").result().consolidate().result()

    def logical_path(self, path: Path, feature: Feature) -> Any:
        group = gpustore.open_group(f"file://{path}/").result()
        return self.to_host(group["/b\\c/"].read().result()).tolist()

    def array_attributes(self, path: Path, feature: Feature) -> Any:
        return self._open(path / "b" / "c").attrs.asdict()

    def write_array_attributes(self, path: Path, feature: Feature) -> None:
        self._open(path / "b" / "c").attrs["more"] = 1


class Tensorstore:
    """As it is installed."""

    def __init__(self) -> None:
        self.library: Any = importlib.import_module("tensorstore")

    def _open(self, path: Path, field: str = "") -> Any:
        driver = "zarr3" if (path / "zarr.json").exists() else "zarr"
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/"}}
        context = self.library.Context(_CONTEXT)
        named = {"field": field} if field else {}
        return self.library.open({**spec, **named}, context=context).result()

    def _read(self, store: Any) -> np.ndarray:
        if store.dtype.name not in ("char", "byte"):
            return store.read().result()
        # What its `read` returns for strings has elements without bytes.
        found = np.zeros(store.shape, {"char": "S1", "byte": "V1"}[store.dtype.name])
        self.library.array(found).write(store).result()
        return found

    def array(self, path: Path, feature: Feature) -> np.ndarray:
        names = feature.values.dtype.names
        if names is None:
            return self._read(self._open(path))
        found = np.zeros(feature.values.shape, feature.values.dtype)
        for name in names:
            found[name] = self._read(self._open(path, name))
        return found

    def write_array(self, path: Path, feature: Feature) -> None:
        for name in feature.values.dtype.names or ("",):
            self._open(path, name)[...] = _given(feature.values, name)

    def group(self, path: Path, feature: Feature) -> Any:
        return self._open(path)

    consolidated = group

    def logical_path(self, path: Path, feature: Feature) -> Any:
        return self._open(Path(f"{path}//b\\c/")).read().result().tolist()

    def array_attributes(self, path: Path, feature: Feature) -> Any:
        store = self._open(path / "b" / "c")
        found = store.spec().to_json()["metadata"].get("attributes", "shows no attributes")
        if isinstance(found, str):
            raise NotImplementedError(found)
        return found

    def write_array_attributes(self, path: Path, feature: Feature) -> None:
        raise NotImplementedError("attributes are given when an array is created")


class Zarr:
    """zarr-python with its own codecs."""

    def __init__(self) -> None:
        self.library: Any = importlib.import_module("zarr")

    def _open(self, path: Path, mode: str = "r") -> Any:
        return self.library.open_array(str(path), mode=mode)

    def array(self, path: Path, feature: Feature) -> np.ndarray:
        return np.asarray(self._open(path)[...])

    def write_array(self, path: Path, feature: Feature) -> None:
        self._open(path, "r+")[...] = feature.values

    def group(self, path: Path, feature: Feature) -> Any:
        group = self.library.open_group(str(path), mode="r", use_consolidated=False)
        return self._shown(group)

    def _shown(self, group: Any) -> Any:
        kinds = {
            name: "array" if isinstance(node, self.library.Array) else "group"
            for name, node in group.members(max_depth=None)
        }
        return {"attributes": dict(group.attrs), "members": kinds}

    def write_group(self, path: Path, feature: Feature) -> None:
        group = self.library.open_group(str(path), mode="r+", use_consolidated=False)
        group.attrs["more"] = [1.5]
        group.create_group("new")

    def consolidated(self, path: Path, feature: Feature) -> Any:
        return self._shown(self.library.open_consolidated(str(path), mode="r"))

    def write_consolidated(self, path: Path, feature: Feature) -> None:
        self.library.consolidate_metadata(str(path))

    def logical_path(self, path: Path, feature: Feature) -> Any:
        return self.library.open_group(str(path), mode="r")["/b\\c/"][...].tolist()

    def array_attributes(self, path: Path, feature: Feature) -> Any:
        return dict(self._open(path / "b" / "c").attrs)

    def write_array_attributes(self, path: Path, feature: Feature) -> None:
        self._open(path / "b" / "c", "r+").attrs["more"] = 1


class Zarrs(Zarr):
    """zarrs as the codec pipeline of zarr-python, which hands it the names of all its codecs."""

    _CODECS = ("cast_value", "scale_offset", "bitround", "reshape")
    _TO_BYTES = ("packbits", "zfp", "n5_default")

    def __init__(self) -> None:
        super().__init__()
        pipeline = f"{importlib.import_module('zarrs').__name__}.ZarrsCodecPipeline"
        self.library.config.set({"codec_pipeline.path": pipeline, "codec_pipeline.strict": True})
        abc = importlib.import_module("zarr.abc.codec")
        for name in (*self._CODECS, *self._TO_BYTES):
            kind = abc.ArrayBytesCodec if name in self._TO_BYTES else abc.ArrayArrayCodec
            self.library.registry.register_codec(name, _handed_through(kind))


def _handed_through(kind: Any) -> type:
    """A codec of zarr-python that only carries its JSON."""

    class HandedThrough(kind):  # type: ignore[misc]
        is_fixed_size = False

        def __init__(self, data: Mapping[str, Any]) -> None:
            self.data = data

        @classmethod
        def from_dict(cls, data: Mapping[str, Any]) -> Any:
            return cls(data)

        def to_dict(self) -> Any:
            return dict(self.data)

        def compute_encoded_size(self, input_byte_length: int, chunk_spec: Any) -> int:
            raise NotImplementedError

    return HandedThrough


# --------------------------------------------------------------------------- trying


def _given(values: np.ndarray, field: str) -> np.ndarray:
    """A field as gpustore and TensorStore want it."""
    part = values[field] if field else values
    if part.dtype.names is None and part.dtype.type in (np.bytes_, np.void):
        return shown(part, "")
    return part


def _same(found: Any, expected: Any) -> bool:
    if not isinstance(expected, np.ndarray):
        return bool(json.dumps(found, sort_keys=True) == json.dumps(expected, sort_keys=True))
    found = np.asarray(found)
    if expected.dtype.kind == "O":
        flat = found.reshape(-1).astype(object)
        return found.shape == expected.shape and flat.tolist() == expected.reshape(-1).tolist()
    native = expected.astype(expected.dtype.newbyteorder("="))
    found = found.astype(found.dtype.newbyteorder("="))
    if native.dtype.type in (np.bytes_, np.void) and native.dtype.names is None:
        kind = f"{native.dtype.kind}1"
        found = found.reshape(*found.shape, 1).view(kind) if found.ndim == native.ndim else found
        native = native.reshape(*native.shape, 1).view(kind)
    same_type = found.dtype == native.dtype
    return same_type and found.shape == native.shape and found.tobytes() == native.tobytes()


def _put(files: Mapping[str, bytes], folder: Path) -> Path:
    for key, value in files.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(value)
    return folder


_DOCUMENTS = (".zarray", ".zattrs", ".zgroup", ".zmetadata", "zarr.json")


def _is_document(key: str) -> bool:
    return key.rpartition("/")[2] in _DOCUMENTS


def _written(folder: Path, feature: Feature) -> Cell:
    """What to say if what was read is right, and this was written."""
    found = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    if feature.program != "array":
        is_right = _changed_rightly(found, feature)
        return READS_AND_WRITES if is_right else "reads; writes wrong data"
    chunks = {key: value for key, value in found.items() if not _is_document(key)}
    expected = {key: value for key, value in feature.files.items() if not _is_document(key)}
    are_same = set(chunks) == set(expected)
    if are_same and all(feature.plain(chunks[k]) == feature.plain(expected[k]) for k in expected):
        return READS_AND_WRITES
    # Shards may hold their inner chunks in any order.
    if not _same(Gpustore().array(folder, feature), feature.values):
        return "reads; writes wrong data"
    return READS_AND_WRITES if are_same else f"{READS_AND_WRITES}, but not the same chunks"


def _changed_rightly(found: Mapping[str, bytes], feature: Feature) -> bool:
    documents = {key: json.loads(value) for key, value in found.items() if _is_document(key)}
    root = documents.get(".zattrs", documents.get("zarr.json", {}).get("attributes"))
    if feature.program == "group":
        group = documents.get("new/.zgroup", documents.get("new/zarr.json"))
        return root["more"] == [1.5] and group is not None
    if feature.program == "array_attributes":
        attributes = documents.get("b/c/.zattrs")
        if attributes is None:
            attributes = documents["b/c/zarr.json"]["attributes"]
        return bool(attributes["more"] == 1 and attributes["unit"] == "mm")
    assert feature.program == "consolidated"
    if ".zmetadata" in documents:
        return "b/c/.zarray" in documents[".zmetadata"]["metadata"]
    return "b/c" in documents["zarr.json"]["consolidated_metadata"]["metadata"]


def _tried(library: Any, feature: Feature, folder: Path) -> Cell:
    """What the library does, said in a few words."""
    read = getattr(library, feature.program)
    try:
        found = read(_put(feature.files, folder / "there"), feature)
        is_same = _same(found, feature.values)
        del found
    except Exception as error:
        _expect_refusal(library, error)
        refusal = f"refuses: {_short(error, folder)}"
        return f"{refusal} (as it must)" if feature.must_refuse else refusal
    if feature.must_refuse:
        return "reads it, though it must not"
    if not is_same:
        return "wrong data"
    if not feature.is_written:
        return "reads"
    write = getattr(library, f"write_{feature.program}", None)
    if write is None:
        return "reads; does not write"
    kept = {
        key: value
        for key, value in feature.files.items()
        if feature.program != "array" or _is_document(key)
    }
    if feature.program == "consolidated":
        kept.pop(".zmetadata", None)
        if "zarr.json" in kept:
            document = json.loads(kept["zarr.json"])
            del document["consolidated_metadata"]
            kept["zarr.json"] = json.dumps(document).encode()
    try:
        write(_put(kept, folder / "made"), feature)
        return _written(folder / "made", feature)
    except Exception as error:
        _expect_refusal(library, error)
        return f"reads; writing: {_short(error, folder)}"


def _expect_refusal(library: Any, error: Exception) -> None:
    """gpustore's errors are typed; any other is a fault."""
    if isinstance(library, Gpustore) and not isinstance(error, gpustore.GpustoreError):
        raise error


def _short(error: BaseException, folder: Path) -> str:
    """The point of an error, without where the files are."""
    if type(error).__name__ == "UnsupportedMetadataError" and error.__cause__ is not None:
        error = error.__cause__
    said = str(error).strip() or type(error).__name__
    said = re.sub(r"\[(source|tensorstore_spec)=.*", "", said, flags=re.DOTALL)
    said = said.replace(str(folder), "").splitlines()[0]
    said = re.sub(r"^.*?Error (opening|reading|writing)[^:]*(driver)?: ", "", said)
    said = re.sub(r'^(Error reading )?(local file )?"[^"]*/(zarr\.json|\.zarray)": ', "", said)
    said = re.sub(r"^[^:]{0,80}/(zarr\.json|\.zarray|\.zgroup)\"?: ", "", said)
    said = re.sub(r"Error parsing object member \"\w+\": ", "", said)
    said = re.sub(r"Error parsing value at position \d+: ", "", said)
    said = re.sub(r"; (?:known:|did you mean) .*", "", said)
    said = re.sub(r"supported data types: .*", "supported data types", said)
    said = re.sub(r" at 0x[0-9a-f]+", "", said)
    said = said.strip().rstrip(".:")
    return said if len(said) <= 110 else f"{said[:107].rstrip()}..."


def _try(library: Any, feature: Feature) -> Cell:
    with (
        tempfile.TemporaryDirectory(prefix="gpustore-") as folder,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        return _tried(library, feature, Path(folder))


def try_host(feature: Feature) -> Cell:
    """What gpustore does in host memory."""
    return _try(Gpustore(), feature)


def try_device(features: Iterable[Feature]) -> list[Cell]:
    """Who decodes the chunks on an emulated device, and what it costs if the host does."""
    with emulated() as device:

        def to_host(array: Any) -> np.ndarray:
            return array if isinstance(array, np.ndarray) else on_host(device, array)

        return [_on_device(Gpustore(device.name, to_host), feature) for feature in features]


def _on_device(library: Gpustore, feature: Feature) -> Cell:
    if feature.program != "array":
        return "metadata only"
    happened = _try(library, replace(feature, is_written=False))
    if not happened.startswith("reads"):
        return "as on the host" if happened.startswith("refuses") else happened
    counts = library.statistics
    fallbacks, chunks = counts.get("host_fallbacks", 0), counts.get("chunks_planned", 0)
    if not counts.get("key_reads"):
        return "no chunks"
    if not fallbacks:
        return "device"
    reasons = "; ".join(sorted(library.reasons))
    many = "every chunk" if fallbacks == chunks else f"{fallbacks} of {chunks} chunks"
    return f"the host decodes {many}, then it is copied: {reasons}"


def _host_reason(explanation: gpustore.Explanation) -> str:
    if explanation.counts["chunks_decoded_device"].most:
        return "the device does not take the stored bytes"
    return explanation.host_reason or "no device holds such elements"


_LIBRARIES = {"tensorstore": Tensorstore, "zarr": Zarr, "zarrs": Zarrs}


def try_peer(name: str, wanted: Iterable[str] | None = None) -> dict[str, Cell]:
    """What another library does with features, all or those of some ids, by id."""
    ids = [feature.id for feature in FEATURES if wanted is None or feature.id in wanted]
    found: dict[str, Cell] = {}
    while len(found) < len(ids):
        rest = [one for one in ids if one not in found]
        program = [sys.executable, "-m", "tests.interop.libraries", name]
        done = subprocess.run(
            program, input=json.dumps(rest), capture_output=True, text=True, check=False
        )
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found.update(dict(zip(rest, lines)))
        if done.returncode:
            assert done.returncode < 0, done.stderr  # Only a signal ends it before the end.
            found[rest[len(lines)]] = "ends the process"
    return found


def _main() -> None:
    library = _LIBRARIES[sys.argv[1]]()
    by_id = {feature.id: feature for feature in FEATURES}
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        for one in json.loads(sys.stdin.read()):
            print(json.dumps(_try(library, by_id[one])), file=out, flush=True)


if __name__ == "__main__":
    _main()
