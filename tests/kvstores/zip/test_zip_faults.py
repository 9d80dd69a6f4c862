"""A zip kvstore whose base fails now and then: writes are whole or not at all, reads are right."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from gpustore.errors import GpustoreError
from gpustore.kvstores.base import Base
from gpustore.kvstores.columns import ABSENT, ReadRequest, ReadState, WriteRequest
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.zip import ZipKvStore
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.kvstores.zip.archive import opened

KEYS = ["a", "b/c", "b/d"]
VALUES = st.none() | st.binary(max_size=6) | st.integers(1, 9).map(lambda n: bytes([n]) * 70_000)
FAULTS = st.sampled_from(
    [
        (Fault.ERROR, "read"),
        (Fault.SHORT_READ, "read"),
        (Fault.ERROR, "write"),
        (Fault.LOST_REPLY, "write"),
    ]
)


class Model(RuleBasedStateMachine):
    """Each key has one of some values: two or more after a write of which nobody knows."""

    def __init__(self):
        super().__init__()
        store = opened()
        base = store.driver.base
        self.rules = []
        faulty = Base(FaultyKvStore(base.driver, self.rules), base.path)
        self.driver = ZipKvStore(faulty, spec=store.driver.spec, resources=store.driver.resources)
        self.sound = store
        self.possible = {key: [None] for key in KEYS}

    @rule(fault=FAULTS, skip=st.integers(0, 3))
    def plan_fault(self, fault, skip):
        self.rules[:] = [Rule(*fault, skip=skip)]

    @rule(some=st.dictionaries(st.sampled_from(KEYS), VALUES, min_size=1))
    def write(self, some):
        columns = self.driver.write_many(WriteRequest(list(some), list(some.values())))
        for row, (key, value) in enumerate(some.items()):
            if row in columns.error:
                assert isinstance(columns.error[row], GpustoreError)
                self.possible[key] = [*self.possible[key], value]
            else:
                self.possible[key] = [value]
        # A batch is one rewrite.
        assert len(columns.error) in (0, len(some))

    @rule(key=st.sampled_from(KEYS), value=VALUES)
    def increment(self, key, value):
        read = self.driver.read_many(ReadRequest([key]))
        if read.error:
            return
        columns = self.driver.write_many(WriteRequest([key], [value], read.generation))
        if columns.error:
            self.possible[key] = [*self.possible[key], value]
        else:
            assert columns.generation[0]
            self.possible[key] = [value]

    @rule(low=st.sampled_from(["", "b", "b/d"]))
    def delete_range(self, low):
        try:
            self.driver.delete_range(low)
        except GpustoreError:
            for key in KEYS:
                if key >= low:
                    self.possible[key] = [*self.possible[key], None]
            return
        for key in KEYS:
            if key >= low:
                self.possible[key] = [None]

    @rule()
    def read(self):
        columns = self.driver.read_many(ReadRequest(KEYS, start=[0] * 3, stop=[None] * 3))
        for row, key in enumerate(KEYS):
            if row in columns.error:
                assert columns.value[row] is None
                continue
            value = columns.value[row]
            assert (columns.state[row] is ReadState.MISSING) == (value is None)
            assert (columns.generation[row] == ABSENT) == (value is None)
            found = None if value is None else bytes(value)
            assert found in self.possible[key]
            self.possible[key] = [found]

    @rule()
    def look(self):
        """Past the faults, through another store."""
        store = KvStore(self.sound.driver)
        for key in KEYS:
            found = store.read(key).result()
            value = found.value if found.state == "value" else None
            assert value in self.possible[key]
            self.possible[key] = [value]


@pytest.mark.long
def test_faults_of_the_base_lose_nothing():
    run_state_machine_as_test(Model, settings=settings(stateful_step_count=15))
