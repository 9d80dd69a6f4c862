"""Places of each registered kvstore in the tests that all have to pass, with their faults.

:data:`PLACES` has a context manager for each identifier. It gives a function that makes a new,
empty :class:`Place`.
"""

import errno
import itertools
import os
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass

from gpustore.kvstores.base import Base
from gpustore.kvstores.columns import WriteRequest
from gpustore.kvstores.kvstack import KvStack
from gpustore.kvstores.kvstore import KvStore
from gpustore.kvstores.ocdbt import OcdbtKvStore
from gpustore.kvstores.zip import ZipKvStore
from gpustore.runtime.context import Context
from tests.kvstores.faulty import Fault, FaultyKvStore, Rule
from tests.kvstores.gcs.gcs_server import GcsServer
from tests.kvstores.http.http_server import Fault as ServerFault
from tests.kvstores.http.http_server import HttpServer
from tests.kvstores.s3.s3_server import S3Server, refuse

__all__ = ["PLACES", "Place"]

# What goes wrong once is repeated; what goes wrong twice is an error.
_RETRIES = {"max_retries": 1, "initial_delay": "1ms", "max_delay": "1ms"}


@dataclass
class Place:
    """A kvstore, and a way past what goes wrong with it.

    Attributes
    ----------
    json : dict
        Its spec.
    context : Context
        In which it is opened.
    store : KvStore
        The kvstore; what it does goes wrong where that was planned.
    faults : tuple
        What can go wrong.
    plan : callable
        ``plan(fault, skip)``: let it go wrong after `skip` times.
    fill : callable
        Stores a dict of values, of which those that are None are deleted. Nothing goes wrong.
    values : callable
        Returns all that is stored. Nothing goes wrong.
    """

    json: dict
    context: Context
    store: KvStore
    faults: tuple
    plan: Callable
    fill: Callable
    values: Callable


def _write(store, values):
    store.write_many(WriteRequest(list(values), list(values.values()))).raise_first()


def _read(store):
    return {key.decode(): store[key] for key in store.list().result()}


# ------------------------------------------------------------------------- what lies in memory

_READS = (Fault.ERROR, "read")
_WRITES = (Fault.ERROR, "write"), (Fault.LOST_REPLY, "write")


def _in_memory(json, wrap, faults):
    def make():
        context, rules = Context(), []
        sound = KvStore.open(json, context=context).result()

        def plan(fault, skip):
            rules[:] = [Rule(*fault, skip=skip)]

        store = KvStore(wrap(sound.driver, rules), sound.path)
        fill, values = (lambda some: _write(sound, some)), (lambda: _read(sound))
        return Place(json, context, store, faults, plan, fill, values)

    return make


def _on_faulty_base(driver, rules):
    base = Base(FaultyKvStore(driver.base.driver, rules), driver.base.path)
    return type(driver)(base, spec=driver.spec, resources=driver.resources)


@contextmanager
def _memory(tmp_path, monkeypatch):
    yield _in_memory({"driver": "memory", "path": "m/"}, FaultyKvStore, (_READS, *_WRITES))


def _on_faulty_bases(driver, rules):
    bases = [Base(FaultyKvStore(base.driver, rules), base.path) for base in driver.bases]
    return KvStack(driver.spec, bases)


@contextmanager
def _kvstack(tmp_path, monkeypatch):
    layers = [{"base": "memory://m/"}, {"base": "memory://b/", "prefix": "b/"}]
    json = {"driver": KvStack.id, "layers": layers}
    yield _in_memory(json, _on_faulty_bases, (_READS, *_WRITES))


@contextmanager
def _zip(tmp_path, monkeypatch):
    json = {"driver": ZipKvStore.id, "base": "memory://x.zip"}
    yield _in_memory(json, _on_faulty_base, ((Fault.SHORT_READ, "read"), _READS, *_WRITES))


@contextmanager
def _ocdbt(tmp_path, monkeypatch):
    config = {"max_decoded_node_bytes": 100, "max_inline_value_bytes": 3}
    json = {"driver": OcdbtKvStore.id, "base": "memory://db/", "config": config}
    yield _in_memory(json, _on_faulty_base, ((Fault.SHORT_READ, "read"), _READS, *_WRITES))


# ------------------------------------------------------------------------- files

_CALLS = (
    *("open", "stat", "fstat", "pread", "preadv", "write", "utime", "fsync", "rename"),
    *("unlink", "mkdir", "scandir"),
)


@contextmanager
def _file(tmp_path, monkeypatch):
    numbers = itertools.count()
    planned = [None, 0]

    def failing(name, call):
        def replacement(*arguments, **keywords):
            if planned[0] == name:
                planned[1] -= 1
                if planned[1] < 0:
                    planned[0] = None
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(*arguments, **keywords)

        return replacement

    for name in _CALLS:
        monkeypatch.setattr(os, name, failing(name, getattr(os, name)))

    def plan(fault, skip):
        planned[:] = [fault, skip]

    def make():
        plan(None, 0)
        path = f"{tmp_path}/{next(numbers)}/"
        json = {"driver": "file", "path": path, "file_io_retries": {"max_retries": 0}}
        context = Context()
        store = KvStore.open(json, context=context).result()

        def fill(values):
            plan(None, 0)
            _write(store, values)

        def values():
            plan(None, 0)
            return _read(store)

        return Place(json, context, store, _CALLS, plan, fill, values)

    yield make


# ------------------------------------------------------------------------- servers


def _fail(server, connection, request):
    return refuse(connection, 500, "InternalError")


def _lose(server, connection, request):
    """Do it, and say that it failed."""
    if request.method in ("GET", "HEAD"):
        return _fail(server, connection, request)
    return server.serve(connection, request, status=500)


def _drop(server, connection, request):
    return False


def _shorten(server, connection, request):
    value = server.values.get(request.path.removeprefix("/"))
    if value is None or request.method != "GET":
        return _fail(server, connection, request)
    fields = [("Content-Length", len(value) + 1)]
    server.serve(connection, request, body=value, fields=fields)
    return False


def _served(server, json, root):
    numbers = itertools.count()

    def plan(fault, skip):
        chances = itertools.count()

        def answer(server, connection, request):
            if skip <= next(chances) < skip + 2:
                return fault(server, connection, request)
            return server.serve(connection, request)

        server.faults[:] = [ServerFault(answer)]

    def make():
        server.faults.clear()
        spec, context = {**json, "path": f"{next(numbers)}/"}, Context()
        prefix = root + spec["path"]

        def fill(values):
            for key, value in values.items():
                if value is None:
                    server.values.pop(prefix + key, None)
                else:
                    server.values[prefix + key] = value

        def values():
            found = dict(server.values)
            return {
                key[len(prefix) :]: value for key, value in found.items() if key.startswith(prefix)
            }

        store = KvStore.open(spec, context=context).result()
        return Place(spec, context, store, (_fail, _lose, _drop, _shorten), plan, fill, values)

    return make


@contextmanager
def _http(tmp_path, monkeypatch):
    with HttpServer() as server:
        json = {"driver": "http", "base_url": f"{server.url}/", "http_request_retries": _RETRIES}
        yield _served(server, json, "")


@contextmanager
def _s3(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "SECRET")
    with S3Server() as server:
        json = {"driver": "s3", "bucket": "bucket", "endpoint": server.url}
        yield _served(server, {**json, "s3_request_retries": _RETRIES}, "bucket/")


@contextmanager
def _gcs(tmp_path, monkeypatch):
    with GcsServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        json = {"driver": "gcs", "bucket": "bucket", "gcs_request_retries": _RETRIES}
        yield _served(server, json, "bucket/")


PLACES = {
    "file": _file,
    "gcs": _gcs,
    "http": _http,
    "kvstack": _kvstack,
    "memory": _memory,
    "ocdbt": _ocdbt,
    "s3": _s3,
    "zip": _zip,
}
