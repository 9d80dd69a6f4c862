"""Programs that the tests of the file kvstore run in processes of their own.

worker.py increment {gpustore|tensorstore} PATH COUNT [LOCKING]
worker.py overwrite PATH LOCKING MOMENT...
"""

import itertools
import sys


def spec(path, locking="os"):
    return {
        "driver": "file",
        "path": path,
        "file_io_sync": False,
        "file_io_locking": {"mode": locking},
    }


def increment_gpustore(path, count, *locking):
    from gpustore.kvstores.columns import ReadRequest, WriteRequest
    from gpustore.kvstores.kvstore import KvStore

    store = KvStore.open(spec(path, *locking)).result()
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(count):
        while True:
            columns = store.read_many(ReadRequest(["n"]))
            columns.raise_first()
            value = b"%d" % (int(columns.value[0]) + 1)
            written = store.write_many(WriteRequest(["n"], [value], columns.generation))
            written.raise_first()
            if written.generation[0]:
                break


def increment_tensorstore(path, count, *locking):
    import tensorstore

    store = tensorstore.KvStore.open(spec(path, *locking)).result()
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(count):
        while True:
            read = store.read("n").result()
            value = b"%d" % (int(read.value) + 1)
            if store.write("n", value, if_equal=read.stamp.generation).result().generation:
                break


def overwrite(path, locking, *moments):
    """Let children write, one after the other, until they are killed."""
    from gpustore.kvstores.kvstore import KvStore
    from tests.killed_process import die_at_moment, in_dying_child

    def write(moment):
        store = KvStore.open(spec(path, locking)).result()
        die_at_moment(moment)
        for i in itertools.count():
            nbytes = (1 << 20) if i % 2 else 1000
            store["v"] = (b"%09d," % i) * (nbytes // 10)

    for moment in moments:
        in_dying_child(lambda moment=moment: write(moment))


if __name__ == "__main__":
    if sys.argv[1] == "overwrite":
        overwrite(*sys.argv[2:])
    elif sys.argv[2] == "gpustore":
        increment_gpustore(sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
    else:
        increment_tensorstore(sys.argv[3], int(sys.argv[4]), *sys.argv[5:])
