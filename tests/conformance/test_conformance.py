"""The corpus in ``cases/``: files as others write them, and the array or the error they are.

A case has the ``files`` of an array: documents as JSON, chunks as hexadecimal digits. It expects
some of ``dtype``, ``shape``, ``chunks`` (to read), ``write_chunks``, ``fill_value``, ``labels``,
``codec`` and ``values``; or an ``error`` of a kind, whose text contains each part of ``message``.
``read_only`` names extensions that are passed over, so that nothing is written.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import gpustore
from gpustore.errors import GpustoreError
from tests.emulator.queue import ORDERS
from tests.matrix import each
from tests.on_device import emulated, on_host

CASES = Path(__file__).with_name("cases")
EXPECTED = {
    "dtype",
    "shape",
    "chunks",
    "write_chunks",
    "fill_value",
    "labels",
    "codec",
    "values",
    "read_only",
}


def load():
    return [
        pytest.param(case, id=f"{path.stem}: {case['name']}")
        for path in sorted(CASES.glob("*.json"))
        for case in json.loads(path.read_text())["cases"]
    ]


ALL = load()
OPENED = [case for case in ALL if "expect" in case.values[0]]
REFUSED = [case for case in ALL if "error" in case.values[0]]


def written(case, folder):
    """The files of a case below `folder`; its URL."""
    for key, value in case["files"].items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        text = isinstance(value, str)
        path.write_bytes(bytes.fromhex(value) if text else json.dumps(value).encode())
    return f"file://{folder}/"


def as_json(value):
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind in "Mm":
        return array.view(np.int64).tolist()
    text = str(value)
    if text in ("nan", "inf", "-inf"):
        return text
    # Python has no numbers for those of ml_dtypes.
    return array.astype(float).tolist() if array.dtype.isbuiltin == 2 else array.tolist()


def test_corpus_is_not_empty():
    assert len(OPENED) > 40
    assert len(REFUSED) > 20
    assert len({case.id for case in ALL}) == len(ALL)
    for case in ALL:
        assert case.values[0]["provenance"]
        assert ("expect" in case.values[0]) != ("error" in case.values[0])
        assert set(case.values[0].get("expect", ())) <= EXPECTED


@each("case", OPENED)
def test_files_are_read_as_expected(case, tmp_path):
    expect = case["expect"]
    store = gpustore.open(written(case, tmp_path)).result()
    layout = store.chunk_layout
    found = {
        "dtype": store.dtype.name,
        "shape": list(store.shape),
        "chunks": list(layout.read_chunk.shape or ()),
        "write_chunks": list(layout.write_chunk.shape or ()),
        "fill_value": as_json(store.fill_value),
        "labels": list(store.domain.labels),
        "codec": store.codec.to_json(),
        "read_only": expect.get("read_only"),
    }
    if "values" in expect:
        read = store.read().result()
        np.testing.assert_array_equal(
            read, np.array(expect["values"], read.dtype).reshape(read.shape)
        )
        found["values"] = expect["values"]
    assert {name: found[name] for name in expect} == expect


@pytest.mark.matrix("costly")
@pytest.mark.parametrize("order", ORDERS)
def test_files_are_read_to_a_device_as_to_the_host(order, tmp_path):
    with emulated(order) as device:
        for number, case in enumerate(OPENED):
            url = written(case.values[0], tmp_path / str(number))
            expected = gpustore.open(url).result().read().result()
            store = gpustore.open(url, device=device.name).result()
            found = store.read().result()
            if store.device != "cpu":
                found = on_host(device, found)
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape), case.id
            np.testing.assert_array_equal(found, expected, err_msg=case.id)


@pytest.mark.matrix("costly")
@each("case", OPENED)
def test_what_is_written_is_read_again(case, tmp_path):
    """Elements are written one by one, so that chunks are read, changed and written back."""
    url = written(case, tmp_path)
    before = {key: (tmp_path / key).read_bytes() for key in case["files"]}
    store = gpustore.open(url).result()
    values = store.read().result()
    if case["expect"].get("read_only"):
        with pytest.raises(gpustore.UnsupportedError) as caught:
            store.write(values).result()
        assert all(json.dumps(name) in str(caught.value) for name in case["expect"]["read_only"])
        assert before == {key: (tmp_path / key).read_bytes() for key in case["files"]}
        return
    if values.size:
        at = tuple(size // 2 for size in values.shape)
        store[at] = values[(0,) * values.ndim]
        values[at] = values[(0,) * values.ndim]
    np.testing.assert_array_equal(gpustore.open(store.spec()).result().read().result(), values)
    np.testing.assert_array_equal(gpustore.open(url).result().read().result(), values)


@pytest.mark.matrix("costly")
@each("case", OPENED)
def test_the_spec_opens_it_again(case, tmp_path):
    store = gpustore.open(written(case, tmp_path)).result()
    again = gpustore.open(store.spec()).result()
    assert again.spec() == store.spec()
    assert again.chunk_layout == store.chunk_layout


@each("case", REFUSED)
def test_what_is_refused_is_named_with_its_place(case, tmp_path):
    with pytest.raises(GpustoreError) as caught:
        gpustore.open(written(case, tmp_path)).result()
    assert caught.value.kind == case["error"]["kind"], str(caught.value)
    for part in case["error"]["message"]:
        assert part in str(caught.value)
