"""Words of the fixtures of this folder, and the lines of a dataset."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from onward.training.data import dataset

Events = list[dict[str, Any]]
MakeJob = Callable[..., Path]


def write_lines(folder: Path, outcomes: list[float], groups: int = 2) -> None:
    """Attempts of two calls each at ``groups`` tasks in turn, all from the same prompt."""
    lines = [
        {
            "trajectory_id": f"t{n}", "session_id": "s", "task_type": "a", "group_key": f"g{n % groups}",
            "outcome": outcome, "success": outcome == 1.0, "raw_total": outcome, "unparsable": False,
            "staleness": 0,
            "calls": [
                {"generation_id": f"{n}.0", "continues": None, "prompt_ids": [5, 6, 7],
                 "token_ids": [8 + n, 9], "logprobs": [-5.0, -5.0], "temperature": 1.0, "top_p": 1.0,
                 "top_k": None},
                {"generation_id": f"{n}.1", "continues": f"{n}.0", "prompt_ids": [4, 4],
                 "token_ids": [20 + n, 2], "logprobs": [-5.0, -5.0], "temperature": 1.0, "top_p": 1.0,
                 "top_k": None},
            ],
        }
        for n, outcome in enumerate(outcomes)
    ]  # fmt: skip
    (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
