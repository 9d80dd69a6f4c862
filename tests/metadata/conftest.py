"""The installed tensorstore as a judge of metadata documents, in a process that may die."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("oracle_worker.py")


class Oracle:
    """Asks a worker process; a worker that dies is replaced, and its death is the answer."""

    def __init__(self):
        self.process = None

    def open(self, version, document):
        """What tensorstore says to the bytes of a ``zarr.json`` or ``.zarray``."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        question = json.dumps([version, base64.b64encode(document).decode()])
        try:
            self.process.stdin.write(question + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        reply = self.process.stdout.readline()
        if not reply:
            self.close()
            return {"died": True}
        return json.loads(reply)

    def close(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.stdout.close()
            self.process.wait()
            self.process = None


@pytest.fixture(scope="session")
def oracle():
    oracle = Oracle()
    yield oracle
    oracle.close()
