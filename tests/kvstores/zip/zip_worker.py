"""Programs that the tests of the zip kvstore run in processes of their own.

zip_worker.py increment {gpustore|tensorstore} PATH OWN_KEY COUNT
zip_worker.py overwrite PATH MOMENT...
zip_worker.py write {gpustore|tensorstore} PATH MOMENT
"""

import itertools
import sys


def open_store(library, path):
    """A zip kvstore of a library, and its module."""
    import importlib

    module = importlib.import_module(library)
    base = {"driver": "file", "path": path, "file_io_sync": False}
    return module.KvStore.open({"driver": "zip", "base": base}).result()


def increment(library, path, own_key, count):
    """Count in a key that everybody changes, and leave a key for each step."""
    store = open_store(library, path)
    print("ready", flush=True)
    sys.stdin.readline()
    for i in range(count):
        while True:
            read = store.read("n").result()
            value = b"%d" % (int(read.value) + 1)
            if store.write("n", value, if_equal=read.stamp.generation).result().generation:
                break
        store.write(f"{own_key}/{i}", b"done" * 10).result()


def overwrite(path, *moments):
    """Let children write, one after the other, until they are killed."""
    from tests.killed_process import die_at_moment, in_dying_child

    open_store("gpustore", path)  # What it imports the children have.

    def write_values(moment):
        store = open_store("gpustore", path)
        die_at_moment(moment)
        for i in itertools.count():
            store["v"] = (b"%09d," % i) * (100_000 if i % 2 else 100)

    for moment in moments:
        in_dying_child(lambda moment=moment: write_values(moment))


def write(library, path, moment):
    """Write the library's own key until it is killed."""
    from tests.killed_process import die_at_moment

    store = open_store(library, path)
    for i in itertools.count():
        store.write(library, (b"%09d," % i) * (50_000 if i % 2 else 100)).result()
        if not i:
            print("ready", flush=True)
            die_at_moment(moment)


if __name__ == "__main__":
    if sys.argv[1] == "overwrite":
        overwrite(*sys.argv[2:])
    elif sys.argv[1] == "write":
        write(*sys.argv[2:])
    else:
        increment(*sys.argv[2:5], int(sys.argv[5]))
