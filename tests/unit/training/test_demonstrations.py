"""Demonstrations in an environment of this process: attempts in a file count for every training task."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from onward.envs.registry import find
from onward.errors import ConfigError
from onward.training.job import local
from onward.training.job.run_options import RunOptions
from onward.training.spec.environment_plan import EnvironmentPlan


def attempt(index: int) -> dict[str, Any]:
    """The answers of the environment's own reference at a training task."""
    crafting = find("crafting")
    ref = crafting.panel("train")[index]
    play, player = crafting.start(ref), crafting.reference(crafting.task(ref))
    answers = []
    while not play.done:
        answers.append(player(play.observation))
        play.step(answers[-1])
    assert play.success
    return {"item_id": ref.task_id, "messages": [{"role": "assistant", "content": one} for one in answers]}


def test_attempts_in_a_file_count_beyond_the_number_of_demonstrations(tmp_path: Path) -> None:
    path = tmp_path / "attempts.jsonl"
    path.write_text("".join(json.dumps(attempt(index)) + "\n" for index in (3, 700, 999)))
    wanted = RunOptions("sft", "tiny", None, tmp_path, env="crafting", data=[path], demonstrations=2)
    plan = EnvironmentPlan(place="crafting")

    def shown(count: int) -> list[str]:
        return sorted(line["trajectory_id"] for line in local.demonstrations(wanted, plan, count))

    assert [name.split("-")[3].split("/")[0] for name in shown(2)] == ["3", "700"]
    assert len(shown(3)) == 3
    path.write_text(json.dumps({**attempt(3), "item_id": "crafting_1000"}))
    with pytest.raises(ConfigError, match="held out or unknown"):
        shown(3)
