"""What a benchmark ran on, to stand beside its figures."""

from __future__ import annotations

import os
import platform
from typing import Any


def machine() -> dict[str, Any]:
    """Processor, cores, versions, and the load averages now."""
    import torch

    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def machine_in_words(found: dict[str, Any]) -> str:
    """What ``machine`` found, as a phrase; without the load, which was that of one moment."""
    return f"{found['cores']} cores ({found['processor']}), Python {found['python']}, torch {found['torch']}"
