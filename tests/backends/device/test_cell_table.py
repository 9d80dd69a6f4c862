"""Tables of cached chunks hold what a dict of them holds."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpustore.backends.device.cell_table import MISSING, NO_ENTRY, CellTable

NUMBERS = st.sets(st.one_of(st.integers(0, 300), st.integers(0, 2**62)), min_size=1, max_size=20)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop", "evict", "forget missing", "shrink"]),
        NUMBERS,
        st.integers(MISSING, 3),
    ),
    max_size=12,
)


@given(STEPS)
def test_entries_are_those_of_a_dict(steps):
    table, known = CellTable(10**6), {}
    seen = {0, 1, 2**62}
    for time, (what, chosen, slab) in enumerate(steps):
        seen |= chosen
        numbers = np.array(sorted(chosen), np.int64)
        before = [known[n][0] for n in numbers.tolist() if n in known]
        if what == "put":
            generation = np.array([b"%d" % (n % 7) for n in numbers.tolist()], object)
            nbytes, growth = table.nbytes, table.growth(numbers)
            assert sorted(table.put(numbers, slab, numbers % 99, generation, time)) == sorted(
                before
            )
            assert table.nbytes == nbytes + growth
            known |= {n: (slab, n % 99, b"%d" % (n % 7), time) for n in numbers.tolist()}
        elif what in ("drop", "evict"):
            only = slab if what == "evict" else None
            gone = [n for n in numbers.tolist() if n in known and only in (None, known[n][0])]
            assert sorted(table.drop(numbers, only)) == sorted(known[n][0] for n in gone)
            for n in gone:
                del known[n]
        elif what == "forget missing":
            table.drop_missing()
            known = {n: entry for n, entry in known.items() if entry[0] != MISSING}
        else:
            table.shrink()
        assert table.count == len(known)
        every = np.array(sorted(seen), np.int64)
        places, slabs, addresses = table.find(every)
        for n, place, found, address in zip(
            every.tolist(), places.tolist(), slabs.tolist(), addresses.tolist(), strict=True
        ):
            assert found == known.get(n, (NO_ENTRY,))[0]
            if n in known:
                one = np.array([place])
                entry = (found, address, *table.generation(one), *table.read_at(one))
                assert entry == known[n]


def test_empty_pages_are_given_back():
    table = CellTable(10**6)
    numbers = np.arange(0, 64_000, 64)
    table.put(numbers, 1, numbers, np.full(1000, b"g", object), 0.0)
    table.drop(numbers[10:])
    whole = table.nbytes
    table.shrink()
    assert table.nbytes == whole // 100
    assert (table.find(numbers)[1] == np.where(numbers < 640, 1, NO_ENTRY)).all()
    table.drop(numbers)
    assert table.nbytes == 0


def test_only_equal_generations_are_confirmed():
    table = CellTable(10**6)
    numbers = np.arange(3)
    table.put(numbers, 1, numbers, np.array([b"a", b"b", b"c"], object), 1.0)
    places = table.places(numbers)
    table.confirm(places, [b"a", b"x", b"c"], 5.0)
    assert table.read_at(places).tolist() == [5.0, 1.0, 5.0]
