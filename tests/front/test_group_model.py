"""A hierarchy against a model: the same steps on a dict, in any order, in both formats.

In the end whoever comes new reads the same, to the host and to an emulated device.
"""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import gpustore
from tests.on_device import emulated, on_host

PATHS = st.sampled_from(["a", "b", "a/a", "a/b", "a/b/c", "\\a//b/", "b/c/"])
NAMES = st.sampled_from(["x", "y", "\u65e5"])
VALUES = st.sampled_from([0, "text", [1, {"n": None}], True])


def plain(path):
    return "/".join(part for part in path.replace("\\", "/").split("/") if part)


class HierarchyMachine(RuleBasedStateMachine):
    """`nodes` maps paths to None for a group, to the shape of an array; `attrs` to attributes;
    `written` those of arrays to what was written last, if anything.
    """

    device = None

    @initialize(zarr_format=st.sampled_from([2, 3]))
    def begin(self, zarr_format):
        self.context = gpustore.Context()
        self.url = f"memory://h/|zarr{zarr_format}:"
        self.group = gpustore.open_group(self.url, create=True, context=self.context).result()
        self.nodes = {"": None}
        self.attrs = {"": {}}
        self.written = {}

    def blocked(self, path):
        """Whether something above is an array."""
        parts = path.split("/")
        return any(self.nodes.get("/".join(parts[:i])) is not None for i in range(1, len(parts)))

    def made(self, path, shape, attrs):
        parts = path.split("/")
        for i in range(1, len(parts)):
            above = "/".join(parts[:i])
            self.nodes.setdefault(above, None)
            self.attrs.setdefault(above, {})
        self.nodes[path], self.attrs[path] = shape, attrs
        self.written.pop(path, None)

    def create(self, begin, path, shape, attrs, *, wins=()):
        if path in self.nodes:
            kind = None if self.nodes[path] is None else "array"
            if (kind, "require") in wins:
                begin().result()
                return
            with pytest.raises((gpustore.AlreadyExistsError, gpustore.MismatchError)):
                begin().result()
        elif self.blocked(path):
            with pytest.raises(gpustore.MismatchError):
                begin().result()
        else:
            begin().result()
            self.made(path, shape, attrs)

    @rule(path=PATHS, name=NAMES, value=VALUES)
    def create_group(self, path, name, value):
        attrs = {name: value}
        self.create(
            lambda: self.group.create_group(path, attributes=attrs), plain(path), None, attrs
        )

    @rule(path=PATHS)
    def require_group(self, path):
        self.create(
            lambda: self.group.require_group(path), plain(path), None, {}, wins=[(None, "require")]
        )

    @rule(path=PATHS, size=st.integers(0, 3), name=NAMES, value=VALUES)
    def create_array(self, path, size, name, value):
        attrs = {name: value}

        def begin():
            return self.group.create_array(path, dtype="uint8", shape=[size], attributes=attrs)

        self.create(begin, plain(path), (size,), attrs)

    @rule(path=PATHS)
    def delete(self, path):
        path = plain(path)
        if path not in self.nodes:
            with pytest.raises(gpustore.NotFoundError):
                del self.group[path]
            return
        del self.group[path]
        for gone in [p for p in self.nodes if p == path or p.startswith(f"{path}/")]:
            del self.nodes[gone], self.attrs[gone]
            self.written.pop(gone, None)

    @rule(path=PATHS | st.just(""), name=NAMES, value=VALUES)
    def set_attribute(self, path, name, value):
        path = plain(path)
        if path in self.nodes:
            owner = self.group[path] if path else self.group
            owner.attrs[name] = value
            self.attrs[path] = {**self.attrs[path], name: value}

    @rule(path=PATHS, name=NAMES)
    def delete_attribute(self, path, name):
        path = plain(path)
        if name in self.attrs.get(path, {}):
            del self.group[path].attrs[name]
            self.attrs[path] = {n: v for n, v in self.attrs[path].items() if n != name}

    @rule(path=PATHS, size=st.integers(0, 3))
    def resize(self, path, size):
        path = plain(path)
        if self.nodes.get(path) is not None:
            self.group[path].resize(exclusive_max=[size]).result()
            self.nodes[path] = (size,)
            if path in self.written:
                # Of the one chunk nothing is forgotten while the array has any elements.
                del self.written[path]
                self.group[path].write(0).result()

    @rule(path=PATHS, value=st.integers(0, 255))
    def write(self, path, value):
        path = plain(path)
        if self.nodes.get(path) is not None:
            self.group[path].write(value).result()
            self.written[path] = value

    @rule()
    def consolidate(self):
        self.group = self.group.consolidate().result()

    @rule(use_consolidated=st.sampled_from([None, False]))
    def open_again(self, use_consolidated):
        self.group = gpustore.open_group(
            self.url, context=self.context, use_consolidated=use_consolidated
        ).result()

    @invariant()
    def the_group_is_the_model(self):
        found = self.group.members(max_depth=None).result()
        assert {path: node.shape if node.is_array else None for path, node in found.items()} == {
            path: shape for path, shape in self.nodes.items() if path
        }
        for path, node in found.items():
            assert dict(node.attributes) == self.attrs[path]
            if node.is_array:
                store = self.group[path]
                assert (store.shape, store.attrs) == (self.nodes[path], self.attrs[path])
        assert dict(self.group.attrs) == self.attrs[""]

    def teardown(self):
        # Whoever comes new sees the same.
        name = None if self.device is None else self.device.name
        fresh = gpustore.open_group(self.url, context=self.context, device=name).result()
        members = fresh.members(max_depth=None).result()
        assert list(members) == list(self.group.members(max_depth=None).result())
        for path, node in members.items():
            if node.is_array:
                found = fresh[path].read().result()
                if self.device is not None:
                    found = on_host(self.device, found)
                expected = np.full(self.nodes[path], self.written.get(path, 0), "u1")
                np.testing.assert_array_equal(found, expected)


STEPS = settings(stateful_step_count=6)
TestHierarchy = pytest.mark.matrix(HierarchyMachine.TestCase)
TestHierarchy.settings = STEPS


@pytest.mark.matrix
@pytest.mark.parametrize("order", ["lazy", "random"])
def test_a_hierarchy_is_read_to_a_device(order):
    with emulated(order) as emulated_device:

        class OnDevice(HierarchyMachine):
            device = emulated_device

        run_state_machine_as_test(OnDevice, settings=STEPS)
