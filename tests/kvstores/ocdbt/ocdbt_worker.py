"""Programs that the tests of commits run in processes of their own.

ocdbt_worker.py commit {gpustore|tensorstore} PATH CONFIG NAME COUNT
ocdbt_worker.py overwrite PATH CONFIG MOMENT...
ocdbt_worker.py overwrite_tensorstore PATH CONFIG MOMENT
"""

import itertools
import json
import sys
import tempfile


def spec(path, config):
    base = {"driver": "file", "path": path, "file_io_sync": False}
    return {"driver": "ocdbt", "base": base, "config": json.loads(config)}


def commit_gpustore(path, config, name, count):
    from gpustore.kvstores.columns import ReadRequest, WriteRequest
    from gpustore.kvstores.kvstore import KvStore

    store = KvStore.open(spec(path, config)).result()
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(count):
        batch = WriteRequest([f"{name}/{i}", f"{name}/long/{i}"], [b"%d" % i, b"%d" % i * 200])
        store.write_many(batch).raise_first()
        while True:
            columns = store.read_many(ReadRequest(["n"]))
            columns.raise_first()
            value = b"%d" % (int(columns.value[0] or b"0") + 1)
            written = store.write_many(WriteRequest(["n"], [value], columns.generation))
            written.raise_first()
            if written.generation[0]:
                break


def commit_tensorstore(path, config, name, count):
    import tensorstore as ts

    store = ts.KvStore.open(spec(path, config)).result()
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(count):
        transaction = ts.Transaction(atomic=True)
        together = store.with_transaction(transaction)
        together[f"{name}/{i}"] = b"%d" % i
        together[f"{name}/long/{i}"] = b"%d" % i * 200
        transaction.commit_async().result()
        while True:
            read = store.read("n").result()
            value = b"%d" % (int(read.value or b"0") + 1)
            if store.write("n", value, if_equal=read.stamp.generation).result().generation:
                break


def overwrite(path, config, *moments):
    """Let children commit, one after the other, until they are killed."""
    from gpustore.kvstores.columns import WriteRequest
    from gpustore.kvstores.kvstore import KvStore
    from tests.killed_process import die_at_moment, in_dying_child

    with tempfile.TemporaryDirectory() as folder:  # Imports once what each child needs.
        KvStore.open(spec(f"{folder}/", config)).result()["a"] = b"first"

    def write(moment):
        store = KvStore.open(spec(path, config)).result()
        die_at_moment(moment)
        for i in itertools.count():
            value = b"%09d" % i
            batch = WriteRequest(["a", "b", f"c/{i % 50}"], [value, value * 1000, value * 20])
            store.write_many(batch).raise_first()

    for moment in moments:
        in_dying_child(lambda moment=moment: write(moment))


def overwrite_tensorstore(path, config, moment):
    """Commit with TensorStore until killed."""
    import tensorstore as ts

    from tests.killed_process import die_at_moment

    store = ts.KvStore.open(spec(path, config)).result()
    die_at_moment(moment)
    for i in itertools.count():
        transaction = ts.Transaction(atomic=True)
        together = store.with_transaction(transaction)
        for key, value in (("a", b"%09d" % i), ("b", b"%09d" % i * 1000)):
            together[key] = value
        transaction.commit_async().result()


if __name__ == "__main__":
    if sys.argv[1] == "overwrite_tensorstore":
        overwrite_tensorstore(*sys.argv[2:])
    elif sys.argv[1] == "overwrite":
        overwrite(*sys.argv[2:])
    else:
        commit = commit_gpustore if sys.argv[2] == "gpustore" else commit_tensorstore
        commit(*sys.argv[3:6], int(sys.argv[6]))
