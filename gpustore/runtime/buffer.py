"""Bytes in host memory, whoever holds them: :data:`Buffer`."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
