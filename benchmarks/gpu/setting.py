"""Settings of the device path: those that the sweep tries, and the best, which the reads take.

They are constants of gpustore, changed in the process of a probe before it opens an array.
"""

import itertools
import json
import os
from dataclasses import asdict, dataclass

import gpustore
from gpustore.backends.device import extent, staging_buffer

MIB = 1 << 20

THREADS = len(os.sched_getaffinity(0))

FILE = "setting.json"
"""Name of the file with the setting, in the folder of the probes."""


_OWN_STREAMS = extent.SUBMISSION_STREAMS


@dataclass(frozen=True, slots=True)
class Setting:
    """One choice of all constants.

    Attributes
    ----------
    submission_nbytes : int
        Most bytes of the values of a submission as they are stored; it is closed before with as
        many streams for each byte as in gpustore's own setting.
    buffers : int
        Large staging buffers.
    threads : int
        Threads that fill one.
    """

    submission_nbytes: int = extent.SUBMISSION_NBYTES
    buffers: int = staging_buffer.LARGE
    threads: int = THREADS

    def __str__(self):
        submission = self.submission_nbytes / MIB
        return f"{submission:g} MiB, {self.buffers} buffers, {self.threads} threads"

    def apply(self):
        """Change gpustore; what is opened on a device for the first time then has the setting."""
        streams = self.submission_nbytes * _OWN_STREAMS // Setting().submission_nbytes
        for module, name, value in (
            (extent, "SUBMISSION_NBYTES", self.submission_nbytes),
            (extent, "SUBMISSION_STREAMS", max(1, streams)),
            (extent, "LARGE", self.buffers),
            (staging_buffer, "LARGE", self.buffers),
        ):
            if not hasattr(module, name):
                raise AttributeError(f"{module.__name__} has no {name} any more")
            setattr(module, name, value)

    def context(self):
        """Context of arrays that are opened with the setting."""
        names = ("data_copy_concurrency", "file_io_concurrency")
        return gpustore.Context({name: {"limit": self.threads} for name in names})

    def write(self, folder):
        (folder / FILE).write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, folder):
        """The setting of a folder; gpustore's own if it has none."""
        path = folder / FILE
        return cls(**json.loads(path.read_text())) if path.exists() else cls()


def settings(*, tiny=False):
    """All points of the sweep, those nearest to gpustore's own first."""
    own = Setting()
    sizes = (own.submission_nbytes,) if tiny else (64 * MIB, 128 * MIB, 256 * MIB, 512 * MIB)
    buffers = (2, own.buffers) if tiny else (2, 3, 4)
    threads = (THREADS,) if tiny else sorted({max(1, THREADS // 4), max(1, THREADS // 2), THREADS})
    found = [Setting(*point) for point in itertools.product(sizes, buffers, threads)]

    def distance(setting):
        mine = asdict(setting).values(), asdict(own).values()
        return sum(one != other for one, other in zip(*mine))

    return sorted({own, *found}, key=lambda one: (distance(one), str(one)))
