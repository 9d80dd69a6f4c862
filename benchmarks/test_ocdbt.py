"""An OCDBT database of 300 000 keys: one key read, all listed, one key committed."""

import shutil

import pytest

COUNT = 300_000
KEYS = [f"volume/c/{i // 10_000}/{i // 100 % 100}/{i % 100}" for i in range(COUNT)]
VALUE = b"a value of 25 bytes inline"


@pytest.fixture(scope="session")
def database(tmp_path_factory):
    """Give a copy of a database that TensorStore wrote."""
    ts = pytest.importorskip("tensorstore")
    original = tmp_path_factory.mktemp("ocdbt") / "original"
    transaction = ts.Transaction(atomic=True)
    store = ts.KvStore.open(f"file://{original}/|ocdbt:").result().with_transaction(transaction)
    for key in KEYS:
        store.write(key, VALUE)
    transaction.commit_async().result()

    def copy(name):
        path = original.with_name(name)
        shutil.copytree(original, path)
        return path

    return copy


@pytest.fixture
def opened(peer, database, request):
    """Give the opened database with all nodes in the cache."""
    if not hasattr(peer, "kvstore"):
        pytest.skip("has no OCDBT")
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)
    base = {"driver": "file", "path": f"{database(name)}/", "file_io_sync": False}
    pool = {"total_bytes_limit": 1_000_000_000}
    return peer.kvstore({"driver": "ocdbt", "base": base, "cache_pool": pool})


def test_ocdbt_read(measure, opened):
    """Read 100 keys, one after the other."""
    some = KEYS[:: COUNT // 100]
    assert measure(lambda: [opened[key] for key in some], nbytes=0) == [VALUE] * len(some)


def test_ocdbt_list(measure, opened):
    """List all keys."""
    assert sorted(measure(lambda: opened.list().result(), nbytes=0)) == sorted(
        key.encode() for key in KEYS
    )


def test_ocdbt_commit(measure, opened):
    """Commit one key, without fsync."""
    numbers = iter(range(1_000_000))

    def commit():
        opened[KEYS[1000]] = b"%d" % next(numbers)

    measure(commit, nbytes=0)
    assert opened[KEYS[1000]].isdigit()
    assert opened[KEYS[1001]] == VALUE
