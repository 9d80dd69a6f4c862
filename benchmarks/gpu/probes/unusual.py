"""Which valid but unusual streams nvcomp decodes, one by one beside a plain stream."""

from benchmarks.gpu.frame import unusual
from benchmarks.gpu.nvcomp import Batch, packed
from benchmarks.gpu.stream import encode

_NEIGHBOUR = b"neighbour" * 1024
_BETWEEN = 4096


class Trial:
    """A case, to be decoded at the end of an arena whose beginning is a plain stream's."""

    def __init__(self, gpu, codec, case):
        arena, offsets, nbytes = packed([case.encoded, encode(codec, _NEIGHBOUR)], case.shift)
        self._gpu, self._expected = gpu, case.decoded
        self._src = gpu.upload(arena)
        self._at, self._capacity = len(_NEIGHBOUR), len(case.decoded)
        self._nbytes = self._at + self._capacity + _BETWEEN
        self._out = gpu.allocate(self._nbytes)
        gpu.fill(self._out.ptr, 0xA5, self._nbytes)
        src = [self._src.ptr + int(offset) for offset in offsets]
        dst = [self._out.ptr + self._at, self._out.ptr]
        self._batch = Batch(gpu, codec, src, nbytes, dst, [self._capacity, self._at])

    def decode(self):
        self._batch.decompress()
        self._gpu.wait(8)
        (status, _), (size, _) = self._batch.results()
        found = self._gpu.download(self._out.ptr, self._nbytes)
        end = self._at + self._capacity
        return {
            "status": int(status),
            "nbytes": int(size),
            "expected_nbytes": self._capacity,
            "equal": found[self._at : end].tobytes() == self._expected,
            "neighbour_equal": found[: self._at].tobytes() == _NEIGHBOUR,
            "wrote_beyond": bool((found[end:] != 0xA5).any()),
        }

    def claimed(self):
        """What nvcomp says, asked for the decoded size."""
        return int(self._batch.claimed_sizes()[0])


def run(findings, gpu, codec):
    for case in unusual(codec):
        if not findings.begin(case.name):
            continue
        trial = Trial(gpu, codec, case)
        findings.attempt(case.name, trial.decode)
        findings.leave_if_lost(gpu, case.name)
        name = f"{case.name}_claims_nbytes"
        if findings.begin(name):
            findings.attempt(name, trial.claimed)
            findings.leave_if_lost(gpu, name)
