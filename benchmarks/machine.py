"""Description of the machine that a benchmark ran on, to be stored with its figures."""

from __future__ import annotations

import os
import platform
from typing import Any


def machine() -> dict[str, Any]:
    """Returns processor, cores, versions, and the present load averages."""
    import torch

    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_average": [round(value, 2) for value in os.getloadavg()],
    }


def machine_in_words(found: dict[str, Any]) -> str:
    """Formats the result of ``machine`` as a phrase, without the load, which is momentary."""
    return f"{found['cores']} cores ({found['processor']}), Python {found['python']}, torch {found['torch']}"
