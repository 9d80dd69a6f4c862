"""What the reads of a batch will do, said before it is submitted.

They are sorted as :mod:`gpustore.pipelines.read_batch` sorts them: reads of one array that share
their chunks are explained together, each other one by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from gpustore.explain.dry_run import rehearse_pieces
from gpustore.explain.explain import explain, explained_pieces
from gpustore.explain.explanation import Explanation
from gpustore.pipelines.read_batch import BatchedRead, together


def explain_batch(reads: Sequence[BatchedRead]) -> list[Explanation]:
    """Explain reads of one array.

    Raises
    ------
    CorruptChunkError, NotFoundError, StoreIOError
        As the reads, if an index of a shard is damaged or missing chunks are an error.
    """
    joined, alone, plans = together(reads)
    found = []
    if plans is not None:
        array = joined[0].array
        shapes = [tuple(one.transform.domain.shape) for one in joined]
        memories = [one.memory for one in joined]
        rehearsal = partial(rehearse_pieces, array, plans, shapes, memories, reads=len(joined))
        found.append(explained_pieces(array, plans, shapes, rehearsal, together=len(joined)))
    return found + [explain(one.array, one.transform, one.memory) for one in alone]


EXPLAIN = explain_batch
