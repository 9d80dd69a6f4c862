"""Arguments of a copy that all its steps need: :class:`Request`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import gpustore
from gpustore.copying.options import Options

_CALLER = 5
"""Frames from :func:`warnings.warn` to the call of `gpustore.copy`."""


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of a copy.

    Attributes
    ----------
    target : str, dict or Spec
        Place of the copy.
    options : Options
        Properties of the copy.
    field : str or None
        Field of records to copy alone.
    overwrite : bool
        Whether an existing array or group is replaced.
    memory_nbytes : int
        Bound of the decoded regions in memory.
    context : Context
        Context of source and target.
    progress : callable
        ``progress(done, total)`` in decoded bytes.
    """

    target: Any
    options: Options
    field: str | None
    overwrite: bool
    memory_nbytes: int
    context: gpustore.Context
    progress: Callable[[int, int], object]

    @property
    def name(self) -> str:
        """Name of the target in messages."""
        if isinstance(self.target, str):
            return self.target
        if isinstance(self.target, gpustore.KvStore):
            return repr(self.target.path)
        spec = gpustore.Spec(self.target)
        try:
            return spec.url
        except gpustore.GpustoreError:  # Not everything has one, as S3 with an endpoint.
            return json.dumps(spec.to_json())

    def warn(self, notes: Iterable[str]) -> None:
        """Warn of properties that are lost, and of memory."""
        for note in notes:
            warnings.warn(note, gpustore.CopyWarning, stacklevel=_CALLER)
