"""Body of an HTTP response, kept as its plan says."""

from __future__ import annotations

from gpustore.kvstores.http.message import BodyPlan
from gpustore.runtime.buffer import Buffer


class Body:
    """Body of one response: the bytes received so far, within the bounds of its plan."""

    __slots__ = ("_at", "_kept", "_plan", "_skip")

    def __init__(self, plan: BodyPlan) -> None:
        self._plan = plan
        self._skip = plan.skip
        self._at = 0
        self._kept = bytearray()

    @property
    def is_full(self) -> bool:
        """Whether no more bytes are wanted."""
        memory = self._plan.memory
        if memory is not None:
            return self._at == len(memory)
        return self._plan.too_long is None and len(self._kept) == self._plan.max_nbytes

    @property
    def most(self) -> int | float:
        """Most bytes that may follow."""
        if self._plan.memory is not None or self._plan.too_long is None:
            return float("inf")
        return self._plan.max_nbytes - len(self._kept)

    def refuse(self, nbytes: int) -> None:
        """Raise the error for a body with `nbytes` more than it may have."""
        assert self._plan.too_long is not None
        raise self._plan.too_long(len(self._kept) + nbytes)

    def direct(self, nbytes: int) -> memoryview | None:
        """Memory to receive into, for at most `nbytes`; None: give them to :meth:`take`."""
        if self._plan.memory is None or self._skip:
            return None
        return self._plan.memory[self._at : self._at + nbytes]

    def advance(self, nbytes: int) -> None:
        """Count `nbytes` received into the memory of :meth:`direct`."""
        self._at += nbytes

    def take(self, data: memoryview) -> int:
        """Keep the wanted bytes of `data`; return the number of bytes skipped before them."""
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        data = data[skipped:]
        memory = self._plan.memory
        if memory is not None:
            count = min(len(data), len(memory) - self._at)
            memory[self._at : self._at + count] = data[:count]
            self._at += count
            return skipped
        if len(data) > self.most:
            self.refuse(len(data))
        self._kept += data[: self._plan.max_nbytes - len(self._kept)]
        return skipped

    def finish(self) -> Buffer:
        """Return the bytes kept; EOFError if the memory of the plan is not full."""
        memory = self._plan.memory
        if memory is None:
            return self._kept
        if self._at < len(memory):
            raise EOFError(f"the body is {len(memory) - self._at} bytes too short")
        return memory
