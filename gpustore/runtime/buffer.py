"""Type of bytes in host memory: :data:`Buffer`."""

from __future__ import annotations

Buffer = bytes | bytearray | memoryview
