"""Bars of a run, and the tokens that an evaluation counts."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from onward.lm.request import Sample
from onward.progress import Bars
from onward.rubrics.comparison import timed
from onward.rubrics.policy.display import shown
from onward.rubrics.policy.episodes import Player
from onward.rubrics.policy.splits import training_tasks
from onward.rubrics.writers import NamedWriter

FACTS = {"reward": 1.0, "skill": 0.5, "questions": 1.0, "degenerate": 0.0}


def test_a_run_that_goes_on_shows_the_time_that_its_own_pace_leaves() -> None:
    """From step 600 of 1,150 in 10 s a step: after 10 more steps, 540 are left, which take 5,400 s."""
    now, console = [0.0], Console(file=io.StringIO(), width=120)
    with Bars(console, now=lambda: now[0]) as bars:
        emit = shown(bars)
        emit("demonstrations", step=100, total=200)
        now[0] = 10.0
        emit("demonstrations", step=200, total=200)
        for step in range(600, 611):
            emit("warm_start", step=step, total=1150, loss=1.5)
            now[0] += 10.0
        emit("warm_start", step=1150, total=1150, loss=1.0)
        emit("step", step=1, total=2, **FACTS)
        emit("step", step=2, total=2, **FACTS)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert lines[:2] == ["Demonstrations 100/200", "Demonstrations 200/200"]
    assert "Warm start 610/1,150 loss 1.500 (1:30:00 left)" in lines
    assert "Warm start 1,150/1,150 loss 1.000 (0:00 left)" in lines
    assert lines[-1].startswith("Learning 2/2 reward 1.00 · skill 0.50")


def test_the_cost_of_a_trained_writer_has_the_tokens_of_its_notes(
    player: Player, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, step = [0], player._sampler.step

    def counted() -> list[Sample]:
        samples = step()
        drawn[0] += sum(len(sample.token_ids) for sample in samples)
        return samples

    monkeypatch.setattr(player._sampler, "step", counted)
    found, cost = timed(NamedWriter("p", player), training_tasks((), 1)[:3], temperature=1.0)
    assert cost.completion_tokens == drawn[0] > sum(sum(one.row.sampled) for one in found.attempts)
