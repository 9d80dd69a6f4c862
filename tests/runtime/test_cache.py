import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpustore.resources.cache_pool import CachePool, cache_of
from gpustore.runtime.cache import OVERHEAD_NBYTES, Cache, Entry, Space

A, B = Space("store", b"a"), Space("another", b"b")


def entry(nbytes=10, value="value", read_at=0.0):
    return Entry(value, nbytes, b"1", read_at)


def put(cache, name, new, *, space=A, part=None):
    [(_, stamp)] = cache.find(space, [name], [part])
    cache.put(space, name, part, new, stamp)


def value(cache, name, *, space=A, part=None):
    [(found, _)] = cache.find(space, [name], [part])
    return None if found is None else found.value


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "find", "forget", "range"]),
        st.sampled_from([A, B]),
        st.sampled_from("abcd"),
        st.sampled_from([None, (0,), (1,)]),
        st.integers(0, 3000),
    ),
    max_size=40,
)


@given(STEPS, st.sampled_from([1, OVERHEAD_NBYTES, 1000, 4000, 10**6]))
def test_is_a_list_of_entries_by_last_use(steps, limit):
    """Compared with the simplest thing that could do it."""
    cache = Cache(limit)
    model = []  # [key, value, nbytes], the least recently used first

    def used(key):
        for i, item in enumerate(model):
            if item[0] == key:
                model.append(model.pop(i))
                return item
        return None

    for number, (what, space, name, part, nbytes) in enumerate(steps):
        key = (space, name, part)
        if what == "put":
            used(key)
            put(cache, name, entry(nbytes, number), space=space, part=part)
            if nbytes + OVERHEAD_NBYTES <= limit:
                model = [item for item in model if item[0] != key]
                model.append([key, number, nbytes + OVERHEAD_NBYTES])
                while sum(item[2] for item in model) > limit:
                    model.pop(0)
        elif what == "find":
            item = used(key)
            found = value(cache, name, space=space, part=part)
            assert found == (None if item is None else item[1])
        elif what == "forget":
            cache.forget(space, [name])
            model = [item for item in model if item[0][:2] != key[:2]]
        else:
            cache.forget_range(space.store, name)
            model = [i for i in model if i[0][0] != space or not i[0][1].startswith(name)]
        assert cache.nbytes == sum(item[2] for item in model) <= limit
        assert len(cache) == len(model)
    for key, expected, _ in model:
        assert value(cache, key[1], space=key[0], part=key[2]) == expected


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: cache.forget(A, ["x"]),
        lambda cache: cache.forget(A, ["y", "x"]),
        lambda cache: cache.forget_range("store", "x"),
        lambda cache: cache.forget_range("store", ""),
    ],
)
def test_what_was_read_before_a_change_is_not_kept(change):
    cache = Cache(10**6)
    [(_, stamp)] = cache.find(A, ["x"], [None])
    change(cache)
    cache.put(A, "x", None, entry(), stamp)
    assert value(cache, "x") is None
    put(cache, "x", entry())
    assert value(cache, "x") == "value"


def test_a_change_of_another_value_does_not_matter():
    cache = Cache(10**6)
    [(_, stamp)] = cache.find(A, ["x"], [None])
    names = [str(i) for i in range(50)]
    for name in names:
        put(cache, name, entry())
    cache.forget(A, [name for name in names if hash((A, name)) % 1024 != hash((A, "x")) % 1024])
    cache.put(A, "x", None, entry(), stamp)
    assert value(cache, "x") == "value"


def test_threads_leave_it_consistent():
    cache = Cache(20 * (OVERHEAD_NBYTES + 10))

    def work(seed):
        for i in range(2000):
            name = str((i * seed) % 37)
            if i % 5 == 0:
                cache.forget(A, [name])
            else:
                put(cache, name, entry(i % 10), part=(i % 2,))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0 < cache.nbytes <= cache.limit
    cache.forget_range("store", "")
    assert (cache.nbytes, len(cache)) == (0, 0)


def test_a_pool_has_one_cache():
    pool = CachePool(100)
    assert cache_of(pool) is cache_of(pool)
    assert cache_of(CachePool(100)) is not cache_of(pool)
    assert cache_of(CachePool(0)) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_child_of_a_fork_starts_empty():
    cache = Cache(10**6)
    put(cache, "x", entry())
    with cache._lock:  # As if another thread were in the middle of a change.
        child = os.fork()
        if not child:
            put(cache, "y", entry())
            good = value(cache, "x") is None and value(cache, "y") == "value"
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert value(cache, "x") == "value"
