"""Shared by benchmarks: the machine that stands with their figures, and the wait of a program under load."""

from __future__ import annotations

import asyncio
import cProfile
import os
import platform
import sys
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


async def until_told(profile: str) -> None:
    """Serves until a line comes on standard input; with ``profile``, writes a profile of that time there."""
    profiler = cProfile.Profile() if profile else None
    if profiler is not None:
        profiler.enable()
    await asyncio.to_thread(sys.stdin.readline)
    if profiler is not None:
        profiler.disable()
        profiler.dump_stats(profile)
