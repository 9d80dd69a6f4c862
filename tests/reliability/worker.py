"""What the tests of this folder run in processes of their own.

worker.py overwrite NAME PATH MOMENT...  children that write until each is killed at its moment
worker.py commit SPECS ATOMIC MOMENT...  children that commit transactions until they are killed
worker.py forked NAME URL                reads and writes before and after a fork
worker.py forked-busy NAME URL COUNT     forks while threads read and write
worker.py interrupted ACTION PATH AMOUNT reads or writes until Ctrl-C, which comes after an amount
worker.py interrupted-in-codec ACTION PATH
                                         Ctrl-C while a codec works on a long chunk
worker.py leave PATH HOW                 ends while writes are pending that nobody waits for
worker.py increment LIBRARY NAME PATH FIRST STEP COUNT
worker.py write-whole NAME PATH SECONDS  overwrites one chunk
worker.py write-versions PATH SECONDS    overwrites a shard whose inner chunks move each time
worker.py as-nobody                      reads and writes without the rights of root
worker.py full-disk PATH                 mounts a small disk there, fills it, and writes
"""

import ctypes
import errno
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np

import gpustore
from gpustore.backends.native import decoders
from gpustore.errors import GpustoreError, StoreIOError
from gpustore.runtime.statistics import STATISTICS
from tests.killed_process import die_at_moment, in_dying_child
from tests.reliability.array_on_disk import create
from tests.waiting import wait_until

QUICK = {"file_io_sync": False}


def open_quickly(path):
    return gpustore.open(str(path), context=gpustore.Context(QUICK)).result()


# --------------------------------------------------------------------------- kill


def overwrite(name, path, *moments):
    """Let children write versions of an array, one child after the other, until killed."""
    del name
    open_quickly(path).write(1).result()  # Imports once what each child needs.

    def write(first, moment):
        store = open_quickly(path)
        store.write(first).result()
        die_at_moment(moment)
        for i in itertools.count(first + 1):
            # Whole chunks, and before that each chunk but for its first column, which stays.
            (store if i % 2 else store[:, 1:]).write(i).result()

    for child, moment in enumerate(moments, 1):
        # Each child goes on where the last one may have stopped.
        in_dying_child(lambda child=child, moment=moment: write(child * 1000 + 1, moment))


def commit(specs, atomic, *moments):
    """Let children commit versions of arrays, one child after the other, until killed."""

    def opened():
        context = gpustore.Context(QUICK)
        return [gpustore.open(one, context=context).result() for one in json.loads(specs)]

    def change(stores, value):
        value = str(value) if stores[0].dtype == gpustore.ustring else value
        with gpustore.Transaction(atomic=atomic == "True") as transaction:
            staged = [store.with_transaction(transaction) for store in stores]
            for row, store in itertools.product(range(len(stores[0])), staged):
                store[row, :5] = value  # The chunks in parts.
                store[row, 5:] = value

    change(opened(), 1)  # Imports once what each child needs.

    def commit_versions(first, moment):
        stores = opened()
        change(stores, first)
        die_at_moment(moment)
        for i in itertools.count(first + 1):
            change(stores, i)

    for child, moment in enumerate(moments, 1):
        in_dying_child(lambda child=child, moment=moment: commit_versions(child * 1000, moment))


# --------------------------------------------------------------------------- fork


def use(store, value):
    """Read and write on this thread and on the pool, whole chunks and parts."""
    store[...] = value
    store[3, 4:6] = value + 1
    found = store.read().result()
    expected = np.full(store.shape, value, found.dtype)
    expected[3, 4:6] = value + 1
    assert np.array_equal(found, expected)
    assert store[3, 4].read().result() == value + 1
    assert store[3, :6].read().result(timeout=60)[-1] == value + 1


def in_child(work):
    """Fork, work in the child, and return its exit status; 100 s are allowed."""
    pid = os.fork()
    if not pid:
        signal.alarm(100)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def forked(name, url):
    context = gpustore.Context(QUICK)
    store = create(name, url, context=context, shape=(512, 512), chunk=(128, 128))
    use(store, 10)
    assert not in_child(lambda: use(store, 20))
    assert not in_child(lambda: in_child(lambda: use(store, 30)))
    kvstore = store.spec().kvstore
    again = {"driver": store.spec().to_json()["driver"], "kvstore": kvstore.to_json()}

    def anew():
        opened = gpustore.open(again, context=context).result()
        use(opened, 40)

    assert not in_child(anew)
    use(store, 50)
    print("done")


def forked_busy(name, url, count):
    """Locks that other threads hold at the moment of the fork must not be held in the child."""
    context = gpustore.Context(QUICK)
    stores = [
        create(name, f"{url}{i}/", context=context, shape=(512, 512), chunk=(128, 128))
        for i in range(4)
    ]
    use(stores[0], 1)
    stop = threading.Event()

    def work(store):
        for value in itertools.count(1):
            if stop.is_set():
                return
            use(store, value % 60_000)

    threads = [threading.Thread(target=work, args=(store,)) for store in stores[1:]]
    for thread in threads:
        thread.start()
    statuses = []
    for i in range(int(count)):
        statuses.append(in_child(lambda i=i: use(stores[0], i)))
    stop.set()
    for thread in threads:
        thread.join()
    assert statuses == [0] * int(count), statuses
    print("done")


# --------------------------------------------------------------------------- Ctrl-C


def files(path):
    """Inode and time of every chunk, and the names of temporary files."""
    chunks, temporary = {}, []
    for file in Path(path).rglob("*"):
        if file.is_file():
            if file.name.endswith(".__lock"):
                temporary.append(file.name)
            else:
                status = file.stat()
                chunks[file] = status.st_ino, status.st_mtime_ns
    return chunks, temporary


def fetches():
    return STATISTICS["chunks_missing"], STATISTICS["bytes_fetched"]


def meet(store):
    """Return once all threads that work for an array were idle at the same time."""
    executor = store._driver.array.executor
    barrier = threading.Barrier(executor.limit + 1)
    for _ in range(executor.limit):
        executor.submit(barrier.wait)
    barrier.wait(200)


def interrupted(action, path, amount):
    """Do something long; print how it ended and what happened afterwards, or just leave.

    Ctrl-C comes when an amount of it is done, missing chunks or bytes of others, and the program
    waits for the result: work that is interrupted while it is being submitted has no future yet
    that could cancel it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    store = gpustore.open(str(path)).result()
    starts = np.random.default_rng(4).integers(0, np.array(store.shape) - 63, (4000, 2))

    def begin(version):
        if is_write:
            return store.write(version)
        return store.read_many(starts, [64, 64]) if action == "read-many" else store.read()

    is_write = action in ("write", "write-and-leave")
    if is_write:
        begin(2).result()  # All chunks are those of this process.
    running = waited = None
    is_over = threading.Event()

    def is_time():
        if is_over.is_set() or waited is None or not waited._waiters:
            return is_over.is_set()
        done = running.statistics.snapshot()
        names = "chunks_missing", "bytes_decoded", "bytes_encoded"
        return sum(done.get(name, 0) for name in names) >= int(amount)

    def press():
        wait_until(is_time)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    name = "nothing"
    try:
        running = begin(3)
        waited = running.commit if is_write else running
        waited.result()
        is_over.set()
        presser.join()
    except KeyboardInterrupt:
        if action == "write-and-leave":
            raise
        name = "KeyboardInterrupt"
    (chunks, _), fetched = files(path), fetches()
    meet(store)  # What ran has ended.
    (later, temporary), late = files(path), fetches()
    meet(store)  # What was still queued has ended.
    latest, _ = files(path)
    idle = late == fetches()
    changed = sum(later[file] != chunks.get(file) for file in later)
    changed_late = sum(latest[file] != later.get(file) for file in latest)
    works = bool(store[0, 0].read().result())
    counts = changed, changed_late, len(temporary), late[0] - fetched[0]
    print(name, *counts, idle, works, sep=",", flush=True)


class BusyCodec:
    """A C function of Blosc, whose first call ends only when it is told to."""

    def __init__(self, name, *types):
        self.is_busy, self.may_end = threading.Event(), threading.Event()
        # The functions that the native core calls; numcodecs has its own way to them.
        functions = decoders._find("blosc")
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, *types)
        function = prototype(functions[name])

        def slow(*arguments):
            self.is_busy.set()
            assert self.may_end.wait(100)
            return function(*arguments)

        self._slow = prototype(slow)
        functions[name] = ctypes.cast(self._slow, ctypes.c_void_p).value


def interrupted_in_codec(action, path):
    """Press Ctrl-C while a codec works on a long chunk; print what it met, and what is left."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    number, pointer, size = ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t
    if action.startswith("write"):
        inputs = number, number, size, size, pointer, pointer, size, ctypes.c_char_p, size, number
        codec = BusyCodec("blosc_compress_ctx", *inputs)
    else:
        codec = BusyCodec("blosc_decompress_ctx", pointer, pointer, size, number)
    store = gpustore.open(str(path)).result()
    meet(store)  # All threads run.
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    values = np.ones(store.shape, np.uint16)
    watch = weakref.ref(values)

    def press():
        assert codec.is_busy.wait(100)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    name = "nothing"
    try:
        if action in ("read", "read-and-leave"):
            store.read(out=values).result()
        elif action == "reads":
            futures = [store.read(out=values), store[1:].read()]
            futures[0].result()
        elif action == "read-many":
            store.read_many([[0, 0], [1, 0]], [store.shape[0] - 1, store.shape[1]]).result()
        else:
            store.write(values).result()
    except KeyboardInterrupt:
        name = "KeyboardInterrupt"
    met = codec.is_busy.is_set() and not codec.may_end.is_set()
    futures = values = None
    if action == "read-and-leave":
        print(name, met, flush=True)
        return
    codec.may_end.set()
    meet(store)
    meet(store)
    after = len(os.listdir("/proc/self/fd")), threading.active_count()
    temporary = files(path)[1]
    works = bool((store[:1].read().result() == 7).all())
    print(name, met, watch() is None, before == after, temporary == [], works, flush=True)


# --------------------------------------------------------------------------- the end


def leave(path, how):
    """Begin writes, wait for none, and end; print how many were not done then."""
    store = gpustore.open(str(path)).result()
    rows = store.shape[0] // 16
    writes = [
        store[rows * i : rows * (i + 1)].write(np.full((rows, store.shape[1]), i + 1, np.uint16))
        for i in range(16)
    ]
    print(sum(not write.done() for write in writes), flush=True)
    del writes
    if how == "exception":
        raise RuntimeError("the program fails")


# --------------------------------------------------------------------------- several writers


def increment(library, name, path, first, step, count):
    """Add one to elements of one chunk, `count` times in all, each a read and a write."""
    if library == "gpustore":
        store = open_quickly(path)
    else:
        import tensorstore

        driver = "zarr" if name.startswith("zarr2") else "zarr3"
        kvstore = {"driver": "file", "path": f"{path}/"}
        store = tensorstore.open({"driver": driver, "kvstore": kvstore, "context": QUICK}).result()
    print("ready", flush=True)
    sys.stdin.readline()
    mine = range(int(first), store.shape[0], int(step))
    for i in range(int(count)):
        at = mine[i % len(mine)]
        store[at, :3].write(np.asarray(store[at, :3].read().result()) + np.uint16(1)).result()


def write_whole(name, path, seconds):
    del name
    store = open_quickly(path)
    print("ready", flush=True)
    end = time.monotonic() + float(seconds)
    for i in itertools.count(1):
        store.write(i % 60_000).result()
        if time.monotonic() > end:
            break
    print(i, flush=True)


def write_versions(path, seconds):
    """Every inner chunk has one value in all its elements, but for the first: it comes and goes."""
    store = open_quickly(path)
    generator = np.random.default_rng(3)
    print("ready", flush=True)
    end = time.monotonic() + float(seconds)
    for i in itertools.count(2):
        version = np.full(store.shape, i, np.uint32)
        version[:16, :16] = generator.integers(0, 60_000, (16, 16)) if i % 2 else 0
        store.write(version).result()
        if time.monotonic() > end:
            break
    print(i, flush=True)


# --------------------------------------------------------------------------- no rights, no room


def as_nobody():
    """Do what each line of standard input says, ACTION and PATH, in a child of its own."""
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            status = 1
            try:
                denied(*line.rstrip("\n").split("\t"))
                sys.stdout.flush()
                status = 0
            finally:
                os._exit(status)
        os.waitpid(pid, 0)


def denied(action, path):
    """Print the error an operation ends with: class, errno, key, and whether it names the key."""
    store = open_quickly(path)
    store[0, store.shape[1] - 1].read().result()
    if action.endswith("rights") and not os.getuid():
        os.setuid(65_534)
    if action.endswith("no memory"):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), used + (256 << 20)))
    if action == "no room":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    spent = []
    if action.endswith("no files"):
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        try:
            while True:
                spent.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            pass
    try:
        if action.startswith("read a part"):
            store[16:18, :16].read().result()
        elif action.startswith("read"):
            store.read().result()
        elif action.startswith("open"):
            gpustore.open(str(path)).result()
        elif action.startswith("create"):
            create("zarr3 bytes", f"file://{path}/new/")
        else:
            store[16:, :16].write(7).result()
        answer = "no error"
    except GpustoreError as error:
        named = bool(error.key) and error.key in str(error)
        answer = f"{type(error).__name__},{getattr(error, 'errno', None)},{error.key},{named}"
    for fd in spent:
        os.close(fd)
    print(answer)


def full_disk(path):
    """Write to arrays on a disk that is really full; asserts what must hold."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", path], check=True)
    print("mounted", flush=True)
    root = Path(path)
    for name in ("plain", "shard"):
        store = gpustore.open(
            {"driver": "zarr3", "kvstore": f"file://{root}/{name}/"},
            create=True,
            dtype="uint8",
            shape=[1024, 1024],
            chunk_layout=gpustore.ChunkLayout(
                read_chunk_shape=[64 if name == "shard" else 256] * 2,
                write_chunk_shape=[256] * 2,
            ),
        ).result()
        values = np.random.default_rng(1).integers(1, 255, store.shape, np.uint8)
        store.write(values).result()
        before = {f: f.read_bytes() for f in (root / name).rglob("*") if f.is_file()}
        disk = os.statvfs(root)
        (root / "fill").write_bytes(bytes(disk.f_bavail * disk.f_frsize - 20_000))
        for write in (store.write(values + 1), store[3:5, 3:5].write(7)):
            error = write.exception()
            assert isinstance(error, StoreIOError), repr(error)
            assert error.errno == errno.ENOSPC
            assert error.key.startswith(f"{root}/{name}/c/")
            assert error.key in str(error)
        # Each chunk and shard is as it was: none fits beside its old self.
        assert {f: f.read_bytes() for f in (root / name).rglob("*") if f.is_file()} == before
        assert np.array_equal(store.read().result(), values)
        (root / "fill").unlink()
        store.write(values + 1).result()
        assert np.array_equal(store.read().result(), values + 1)
    print("done", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1].replace("-", "_")](*sys.argv[2:])
