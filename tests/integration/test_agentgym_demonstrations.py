"""Demonstrations from a server of AgentGym's kind: by a solver, from a file, and never of held-out tasks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textcraft_world import GOALS, served_textcraft

from onward.errors import ConfigError
from onward.training.job import local
from onward.training.job.run_options import RunOptions

RESERVED = {1, 4, 6, 7}
"""Tasks that are never trained on: SHA-256 of textcraft/N, its first 8 bytes divisible by 5."""

Served = tuple[str, list[tuple[str, dict[str, Any]]]]


@pytest.fixture
def served() -> Iterator[Served]:
    with served_textcraft() as found:
        yield found


def options(place: str, out: Path, **given: Any) -> RunOptions:
    plan = {"tasks": len(GOALS), "held_out": 2, **given.pop("plan", {})}
    return RunOptions("sft", "tiny", None, out, env=place, plan=plan, **given)


def shown(prepared: local.PreparedRun) -> set[int]:
    assert prepared.lines is not None
    return {int(line["trajectory_id"].split("-")[3]) for line in prepared.lines}


def test_the_solver_shows_training_tasks_and_what_it_cannot_solve_is_left_out(
    served: Served, tmp_path: Path
) -> None:
    place, asked = served
    prepared = local.prepare(options(place, tmp_path))
    assert shown(prepared) == set(range(len(GOALS))) - RESERVED - {GOALS.index("coal pit")}
    assert RESERVED.isdisjoint(body["data_idx"] for path, body in asked if path == "reset")
    line = next(line for line in prepared.lines or () if "oak planks." in line["messages"][1]["content"])
    assert [message["content"] for message in line["messages"] if message["role"] == "assistant"] == [
        "Action: get 1 oak log",
        "Action: craft 4 oak planks using 1 oak log",
    ]
    assert (line["success"], line["outcome"]) == (True, 1.0)

    other = local.prepare(options(place, tmp_path, plan={"held_out": 0}))
    assert shown(other) == shown(prepared)


def test_attempts_in_a_file_are_played_again_and_only_successes_count(served: Served, tmp_path: Path) -> None:
    place, _ = served
    train = [at for at in range(len(GOALS)) if at not in RESERVED]
    right = ["Action: get 2 oak log", "Thought: now.\nAction: craft 4 oak planks using 1 oak log"]
    records = [
        {"item_id": f"textcraft_{at}", "messages": [{"role": "assistant", "content": one} for one in right]}
        for at in train
    ]
    path = tmp_path / "attempts.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert shown(local.prepare(options(place, tmp_path, data=[path]))) == {GOALS.index("oak planks")}
    path.write_text(json.dumps({**records[0], "item_id": f"textcraft_{min(RESERVED)}"}))
    with pytest.raises(ConfigError, match="all of them held out or unknown"):
        local.prepare(options(place, tmp_path, data=[path]))


def test_a_player_that_solves_nothing_is_told_before_anything_is_trained(
    served: Served, tmp_path: Path
) -> None:
    place, _ = served
    with pytest.raises(ConfigError, match="None of 4 demonstrations succeeded in textcraft"):
        local.prepare(options(place, tmp_path, solver="textcraft_world:helpless"))


def test_solver_and_file_together_are_refused(tmp_path: Path) -> None:
    given = options("http://127.0.0.1:9", tmp_path, solver="textcraft", data=[tmp_path / "attempts.jsonl"])
    with pytest.raises(ConfigError, match="from --data or from --solver: leave one out"):
        local.prepare(given)
