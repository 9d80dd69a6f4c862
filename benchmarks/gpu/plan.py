"""Which probes each command has, in order, with their limits of time."""

from dataclasses import dataclass, replace

from benchmarks.gpu import read_plan

CODECS = ("zstd", "lz4", "deflate", "gzip", "snappy")

SECONDS = 290
"""Of each command, together with what it does itself less than five minutes."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One question.

    `limit` and `usual` are seconds: the most it may take, and what is kept for it while others run.
    An `elastic` probe takes its points in order of importance until its time is up.
    """

    name: str
    limit: float
    usual: float
    needs_device: bool = True
    elastic: bool = False

    @property
    def module(self):
        return self.name.partition(":")[0]

    @property
    def variant(self):
        return self.name.partition(":")[2]

    def as_variant(self, variant):
        """The same probe in another variant."""
        return replace(self, name=f"{self.module}:{variant}")

    @property
    def kept(self):
        """Seconds kept for it while others run."""
        return 0 if self.elastic else self.usual


_FIRST = (
    Probe("driver", 20, 2, needs_device=False),
    Probe("environment", 40, 4, needs_device=False),
)

PROBES = {
    "health": (
        *_FIRST,
        Probe("engines", 40, 15),
        Probe("arrays", 60, 30),
        Probe("suite", 170, 110, needs_device=False),
        Probe("sanitizer", 90, 60, needs_device=False),
    ),
    "limits": (
        *_FIRST,
        Probe("engines", 40, 10),
        Probe("copies", 40, 15),
        *(Probe(f"decode_rate:{codec}", 40, 20, elastic=True) for codec in CODECS),
        Probe("kernels", 60, 40),
        Probe("sweep", 90, 80),
    ),
    "reads": (
        *_FIRST,
        Probe("copies", 40, 15),
        *(
            Probe(f"reads:{variant}", limit, 8, elastic=True)
            for variant, limit in read_plan.variants()
        ),
    ),
}
"""The probes of each command. What could hurt the device comes last."""

ALIVE = Probe("alive", 40, 5)
"""Asked after every failure: does the device still answer, and rightly?"""


def allowance(probe, later, left):
    """Seconds `probe` may take of `left`, so that the probes `later` get theirs."""
    kept = sum(other.kept for other in later)
    if not probe.elastic:
        return min(probe.limit, max(left - kept / 2, 5), left)
    elastic = [probe, *(other for other in later if other.elastic)]
    share = probe.limit / sum(other.limit for other in elastic)
    return min(probe.limit, 1.3 * (left - kept) * share, left - kept)
