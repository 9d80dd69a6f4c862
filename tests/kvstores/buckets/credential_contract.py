"""What holds of the credentials of every bucket."""

import os
import subprocess
import sys
import threading

from tests.kvstores.http.http_server import Fault

_FORK = """
import os
store["a"] = b"1"
child = os.fork()
if not child:
    code = 1
    try:
        store["b"] = store["a"] + b"2"
        code = len(store.list().result())
    finally:
        os._exit(code)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(store["b"])
"""


def hide_home(monkeypatch, home):
    """Let `home` be the home directory; None for a user who has none."""

    def unknown(user):
        raise KeyError(user)

    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", unknown)
    else:
        monkeypatch.setenv("HOME", home)


def check_forked_child_finds_credentials(opening, service):
    """A child reads, writes and lists; its parent and it ask `service` once each.

    `opening` is the text of a program that opens an empty `store`.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", opening + _FORK],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.stderr == ""
    assert done.stdout == "2\nb'12'\n"
    assert len(service.requests) == 2


def check_fork_while_another_thread_asks(service, store, fetch):
    """A child that is forked while a thread waits for `service` can `fetch` credentials."""
    asked, go_on = threading.Event(), threading.Event()

    def wait(server, connection, request):
        asked.set()
        go_on.wait(60)
        return server.serve(connection, request)

    service.faults = [Fault(wait, times=1)]
    future = store.read("a")
    assert asked.wait(30)
    child = os.fork()
    if not child:
        code = 1
        try:
            fetch()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    go_on.set()
    future.result()
