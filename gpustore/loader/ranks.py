"""Ranks: which part of each batch of a training job this process takes."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import gpustore
from gpustore.loader.parameters import difference, listed, whole_number

Ranks = tuple[int, int]
"""Rank of this process, and number of processes."""


def ranks_of(dist: str | Ranks | Callable[[], Ranks] | None) -> Ranks:
    """Return the rank of this process and the number of processes.

    Parameters
    ----------
    dist : {"auto", "torch", "jax"}, tuple of int, callable or None
        ``"torch"`` asks ``torch.distributed``, ``"jax"`` JAX; ``"auto"`` asks the one of them that
        the program uses and has initialised, and otherwise the variables ``RANK`` and
        ``WORLD_SIZE``. A callable returns the tuple. None is one process.

    Raises
    ------
    ValueError
        If the tuple is no rank, or the library is not initialised.
    """
    if dist is None:
        return 0, 1
    if callable(dist):
        found = dist()
    elif dist == "auto":
        found = _torch() or _jax() or _environment()
    elif dist == "torch":
        asked = _torch()
        if asked is None:
            raise ValueError('dist="torch": torch.distributed is not initialised')
        found = asked
    elif dist == "jax":
        jax = sys.modules.get("jax")
        if jax is None:
            raise ValueError('dist="jax": the program has not imported jax')
        found = jax.process_index(), jax.process_count()
    elif isinstance(dist, str):
        raise ValueError(f'dist: expected "auto", "torch", "jax" or (rank, world), got {dist!r}')
    else:
        found = dist
    rank, world = (whole_number(n, "dist", 0) for n in listed(found, "dist", "(rank, world)", 2))
    if rank >= world:
        raise ValueError(f"dist: expected 0 <= rank < world, got rank {rank} of {world}")
    return rank, world


_loaders: Final = itertools.count()
"""Numbers of loaders whose ranks are those of torch.distributed."""


def check_alike(dist: Any, fingerprint: Mapping[str, Any], number: int | None = None) -> None:
    """Check that all ranks of torch.distributed make a loader alike.

    The first rank leaves its fingerprint in the store of the process group, with which each later
    one compares its own: none waits for another.

    Parameters
    ----------
    dist : object
        The parameter of :func:`ranks_of`.
    fingerprint : mapping
        Values of JSON that must be the same, by name.
    number : int, optional
        Number of the loader among those of its process; by default the next one.

    Raises
    ------
    MismatchError
        If they differ; the message says in what.
    """
    if not isinstance(dist, str) or dist == "jax" or _torch() is None:
        return
    number = next(_loaders) if number is None else number
    mine = json.dumps(fingerprint, sort_keys=True)
    store = sys.modules["torch"].distributed.distributed_c10d._get_default_store()
    first = store.compare_set(f"gpustore/loader/{number}", "", mine)
    if first.decode() != mine:
        other = difference(json.loads(first), json.loads(mine))
        assert other is not None
        name, theirs, ours = other
        raise gpustore.MismatchError(
            f"ranks differ: loader {number} of this process has another {name} than that of "
            f"another rank, {ours} and {theirs}; make the same loaders on all ranks"
        )


def _torch() -> Ranks | None:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return None
    if not torch.distributed.is_initialized():
        return None
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def _jax() -> Ranks | None:
    jax = sys.modules.get("jax")
    # The number of processes is not asked for before: that would begin to use the devices.
    if jax is None or not jax.distributed.is_initialized():
        return None
    return jax.process_index(), jax.process_count()


def _environment() -> Ranks:
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def worker_of() -> Ranks | None:
    """Return the number of this worker process of a DataLoader, and of how many; None elsewhere."""
    torch = sys.modules.get("torch")
    info = None if torch is None else torch.utils.data.get_worker_info()
    return None if info is None else (info.id, info.num_workers)
