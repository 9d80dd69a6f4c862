"""Whose machine this is, as its firmware says: only there a service hands out credentials.

To ask that service anywhere else takes seconds, or never ends.

Sources: Amazon EC2 user guide, "Identify EC2 instances"; Google Compute Engine documentation,
"Detect if a VM is running in Compute Engine".
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

FIRMWARE: Final = Path("/sys/class/dmi/id")
_NAMES: Final = ("sys_vendor", "bios_vendor", "board_vendor", "product_name")


def is_made_by(maker: str) -> bool:
    """Whether one of the firmware's names begins with `maker`."""
    for name in _NAMES:
        try:
            if (FIRMWARE / name).read_text(errors="replace").startswith(maker):
                return True
        except OSError:  # No such machine, or no such system.
            continue
    return False
