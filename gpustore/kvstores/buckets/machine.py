"""Detects EC2 and GCE by the names in the machine's firmware.

Only there a metadata service hands out credentials. Asking for it on any other machine takes
seconds, or never ends.

Sources: Amazon EC2 user guide, "Identify EC2 instances"; Google Compute Engine documentation,
"Detect if a VM is running in Compute Engine".
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

FIRMWARE: Final = Path("/sys/class/dmi/id")
_NAMES: Final = ("sys_vendor", "bios_vendor", "board_vendor", "product_name")


def is_made_by(maker: str) -> bool:
    """Whether one of the firmware's names begins with `maker`, as ``"Amazon EC2"``."""
    for name in _NAMES:
        try:
            if (FIRMWARE / name).read_text(errors="replace").startswith(maker):
                return True
        except OSError:  # No such machine, or no such system.
            continue
    return False
