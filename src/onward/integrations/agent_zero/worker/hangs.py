"""The plugin's report of workers that hung, written to a file for ``onward agent-zero check``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onward.files import read_json, write_whole

_NAME = "hangs.json"


def save(data: Path, told: Mapping[str, Any]) -> None:
    """``told``: ``count`` since the start of Agent Zero, ``at`` (the last time), ``seconds`` (the limit).
    Raises OSError."""
    write_whole(data / _NAME, json.dumps(told).encode(), 0o600)


def sentence(data: Path) -> str:
    """Returns the report in words; empty if there is none."""
    told = read_json(data / _NAME)
    if not isinstance(told, dict) or not isinstance(seconds := told.get("seconds"), (int, float)):
        return ""
    times = "once" if told.get("count") == 1 else f"{told.get('count')} times"
    return (
        f"It made no progress for {seconds:g} seconds, was ended and started again: {times} in one run of "
        f"Agent Zero, the last time at {told.get('at')}."
    )
