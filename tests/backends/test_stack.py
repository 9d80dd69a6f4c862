"""Chunks that are placed together, against placing them one by one."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpustore
from gpustore.backends.host import sink
from gpustore.backends.stack import stacks
from tests.matrix import each, share


@settings(max_examples=share(300))
@given(
    rows=st.lists(
        st.tuples(
            st.integers(0, 1), st.integers(1, 2), st.sampled_from([(2,), (3,)]), st.booleans()
        ),
        max_size=12,
    ),
    most=st.integers(0, 5),
)
def test_stacks_are_runs_of_like_rows(rows, most):
    src_start = [row[0] for row in rows]
    dst_start = list(itertools.accumulate(row[1] for row in rows))
    shapes, present = [row[2] for row in rows], [row[3] for row in rows]
    found = list(stacks(src_start, dst_start, shapes, present, most))
    seen = [i for stack, _ in found for i in stack]
    assert seen == sorted(set(seen))
    for stack, step in found:
        assert 2 <= len(stack) <= most
        assert all(present[i] for i in stack)
        assert len({(src_start[i], shapes[i]) for i in stack}) == 1
        assert {b - a for a, b in itertools.pairwise(dst_start[i] for i in stack)} == {step}
    if most >= len(rows):  # and none is missed
        for i in range(len(rows) - 1):
            like = present[i] and present[i + 1] and src_start[i] == src_start[i + 1]
            if like and shapes[i] == shapes[i + 1]:
                assert i in seen or i + 1 in seen


METADATA = {
    "zlib": {"driver": "zarr", "metadata": {"compressor": {"id": "zlib", "level": 1}}},
    "raw": {"driver": "zarr", "metadata": {"compressor": None}},
    "F": {"driver": "zarr", "metadata": {"compressor": {"id": "zlib", "level": 1}, "order": "F"}},
    "sharded": {
        "driver": "zarr3",
        "schema": {
            "chunk_layout": {
                "read_chunk": {"shape": [3, 4, 2]},
                "write_chunk": {"shape": [6, 8, 8]},
            }
        },
    },
}


@each(
    ("form", "dtype"),
    [*itertools.product(METADATA, ["uint16", "bool"]), ("sharded", "int4")],
)
def test_reads_as_without_stacks(form, dtype, monkeypatch):
    spec = {**METADATA[form], "kvstore": "memory://", "dtype": dtype}
    if form != "sharded":
        spec["metadata"] = {**spec["metadata"], "chunks": [3, 4, 2]}
    store = gpustore.open(spec, create=True, shape=[7, 9, 25]).result()
    rng = np.random.default_rng(0)
    store.write(rng.integers(0, 2, (7, 9, 25)).astype(store.dtype.numpy_dtype)).result()
    store[:3, :4, 6:8].write(0).result()  # a missing chunk between others
    views = [
        store,
        store[1:6, 2:8, 3:21],
        store[::2, ::-1, ::3],
        store[..., ::-1],
        store.T,
    ]
    together = [view.read().result() for view in views]
    calls = []
    decode_stack = sink._decode_stack
    monkeypatch.setattr(
        sink,
        "_decode_stack",
        lambda *args: calls.append(1) or decode_stack(*args),
    )
    assert np.array_equal(store.read().result(), together[0])
    assert calls
    monkeypatch.setattr(sink, "STACK_NBYTES", 0)
    calls.clear()
    for view, expected in zip(views, together, strict=True):
        assert np.array_equal(view.read().result(), expected)
    assert not calls


def test_a_damaged_chunk_in_a_stack_is_named():
    metadata = {"chunks": [2, 2], "compressor": {"id": "zlib", "level": 1}}
    spec = {"driver": "zarr", "kvstore": "memory://", "dtype": "int32", "metadata": metadata}
    store = gpustore.open(spec, create=True, shape=[2, 40]).result()
    values = np.arange(80, dtype=np.int32).reshape(2, 40)
    store.write(values).result()
    store.kvstore["0.7"] = b"junk"
    with pytest.raises(ValueError, match=r'"0\.7"'):
        store.read().result()
    assert np.array_equal(store[:, :14].read().result(), values[:, :14])
