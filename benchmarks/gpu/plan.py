"""Which probes there are, in order, with their limits of time."""

from dataclasses import dataclass

CODECS = ("zstd", "lz4", "deflate", "gzip", "snappy")


@dataclass(frozen=True, slots=True)
class Probe:
    """One question.

    `limit` and `usual` are seconds: the most it may take, and what is kept for it while others run;
    `quick` is the latter where only the most telling points are wanted, None to leave it out.
    An `elastic` probe takes its points in order of importance until its time is up.
    """

    name: str
    limit: float
    usual: float
    quick: float | None = None
    needs_gpu: bool = True
    elastic: bool = False

    @property
    def module(self):
        return self.name.partition(":")[0]

    @property
    def variant(self):
        return self.name.partition(":")[2]

    def most(self, quick):
        """Seconds it may take when nothing else is to run."""
        return min(self.limit, 3 * self.quick + 5) if quick and self.quick else self.limit

    def kept(self, quick):
        """Seconds kept for it while others run."""
        if self.elastic:
            return 0
        return self.quick if quick and self.quick else self.usual


PROBES = (
    Probe("driver", 20, 2, 1, needs_gpu=False),
    Probe("environment", 40, 4, 3, needs_gpu=False),
    Probe("page_cache", 45, 20, 4, needs_gpu=False),
    Probe("streams", 30, 5, 2, needs_gpu=False),
    Probe("device", 40, 8, 6),
    Probe("copies", 45, 15, 6),
    Probe("costs", 40, 10, 5),
    Probe("asynchrony", 40, 12, 4),
    Probe("asynchrony_bindings", 45, 15, 5),
    Probe("kvikio_reads", 45, 20, 6),
    *(Probe(f"decode_rate:{codec}", 40, 20, 4, elastic=True) for codec in CODECS),
    Probe("decode_rate:gzip_lookahead", 30, 10, elastic=True),
    *(Probe(f"decode_rate_bindings:{codec}", 15, 6, elastic=True) for codec in CODECS),
    *(Probe(f"unusual:{codec}", 20, 4, 3 if codec in "zstd gzip" else None) for codec in CODECS),
    *(Probe(f"damage:{codec}", 25, 6, 3 if codec == "lz4" else None) for codec in CODECS),
    *(Probe(f"damage_bindings:{codec}", 15, 5) for codec in CODECS),
)
"""What could hurt the device comes last."""

HEALTH = Probe("health", 40, 5)
"""Asked after every failure: does the device still answer, and rightly?"""


def allowance(probe, later, left, *, quick=False):
    """Seconds `probe` may take of `left`, so that the probes `later` get theirs."""
    kept = sum(other.kept(quick) for other in later)
    most = probe.most(quick)
    if not probe.elastic:
        return min(most, max(left - kept / 2, 5), left)
    elastic = [probe, *(other for other in later if other.elastic)]
    share = most / sum(other.most(quick) for other in elastic)
    return min(most, 1.3 * (left - kept) * share, left - kept)
