"""Speed of a loader of random patches of an array, and what limits it, for ``gpustore bench``."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpustore.display.text import format_shape
from gpustore.loader import PatchLoader, RandomPatches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import gpustore

BATCH = 8
"""Patches of a batch."""

_MEMORY = 1 << 30
_MANY_DECODES = 1.6
_MANY_WINDOWS = 256
"""Windows of an epoch from which on it is not explained, as that takes seconds."""

_FEW = 20
"""Patches from which on there is advice on the stage that limits."""

_SLOW_CODECS = {"gzip", "zlib", "bz2", "lzma"}


@dataclass(frozen=True, slots=True)
class LoaderSpeed:
    """Work of a loader.

    Attributes
    ----------
    patches : int
    seconds, first_s : float
        Seconds of all batches, and until the first.
    bytes_returned : int
        Bytes of the patches.
    stats : dict
        See :meth:`gpustore.loader.PatchLoader.stats`.
    advice : list of str
        Whole sentences.
    """

    patches: int
    seconds: float
    first_s: float
    bytes_returned: int
    stats: dict[str, Any]
    advice: list[str]


def measure_loader(
    store: gpustore.TensorStore, shape: Sequence[int], window: int, seconds: int, seed: int
) -> LoaderSpeed:
    """Iterate over batches of patches, for `seconds` or an epoch, and at least one.

    An epoch has as many patches as have the elements of the array.

    Parameters
    ----------
    store : TensorStore
    shape : sequence of int
        Extents of a patch.
    window : int
        Bytes of a window.
    seconds : int
    seed : int
        Seed of the sampler.
    """
    count = max(BATCH, math.ceil(store.size / math.prod(shape)))
    sampler = RandomPatches(shape, per_epoch=count, seed=seed, window=window)
    memory = max(_MEMORY, 3 * window)
    begin = time.perf_counter()
    patches = nbytes = 0
    first_s = taken = 0.0
    with PatchLoader(store, sampler=sampler, batch_size=BATCH, memory=memory) as loader:
        for batch in loader:
            taken = time.perf_counter() - begin
            first_s = first_s or taken
            patches += len(batch["image"])
            nbytes += batch["image"].nbytes
            if taken >= seconds:
                break
    stats = loader.stats()
    advice = stage_advice(store, shape, stats) if patches >= _FEW else []
    if math.ceil(store.nbytes / window) <= _MANY_WINDOWS:
        loader.set_epoch(0)
        explained = loader.explain()
        if explained.decodes_per_chunk > _MANY_DECODES:
            advice.append(explained.advice[0])
    return LoaderSpeed(patches, taken, first_s, nbytes, stats, advice)


def stage_advice(
    store: gpustore.TensorStore, shape: Sequence[int], stats: dict[str, Any]
) -> list[str]:
    """Return sentences on the stage that limits.

    Parameters
    ----------
    store : TensorStore
    shape : sequence of int
        Extents of a patch.
    stats : dict
        See :meth:`gpustore.loader.PatchLoader.stats`.
    """
    stage = stats["limited_by"]
    read = max(stats["read_s"], 1e-9)
    if stage == "storage":
        rate = stats["bytes_read"] / read / 1e6
        is_raw = stats["bytes_read"] >= stats["bytes_decoded"]
        smaller = "compressed chunks (`gpustore copy --codec zstd`) or " if is_raw else ""
        return [
            f"Storage limits: {rate:.3g} MB/s came from it. What helps is {smaller}a larger "
            "--window, with which less is read twice, or storage that is nearer."
        ]
    if stage == "decode":
        rate = stats["bytes_decoded"] / read / 1e6
        codecs = [one.codec for one in store.explain().codecs]
        slow = sorted(_SLOW_CODECS.intersection(codecs))
        helps = (
            f"`gpustore copy --codec zstd` decodes several times as fast as {slow[0]}."
            if slow
            else "What helps is more cores, fewer decodes of a chunk, or a codec that decodes "
            "faster (`gpustore copy --codec blosc-lz4`)."
        )
        return [f"Decoding limits: {rate:.3g} MB/s of {', '.join(codecs)}. {helps}"]
    if stage == "cut":
        return [
            f"Cutting limits: one thread copies patches of {format_shape(shape)} out of windows. "
            "Reading is fast enough; several ranks or workers cut in parallel."
        ]
    return []
