"""Bytes in host memory, whoever holds them: :data:`Buffer`."""

from __future__ import annotations

__all__ = ["Buffer"]

Buffer = bytes | bytearray | memoryview
