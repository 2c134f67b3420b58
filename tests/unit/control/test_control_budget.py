"""Evaluations take a limited share of a run's time; what was changed for that is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_scripted import LENGTH, Counting, run_of, trainer_of

from onward.control import environments
from onward.control.core.config import PPOConfig
from onward.control.evaluation.evaluate import Episodes
from onward.control.running import budget as budgets
from onward.control.running.budget import EvaluationBudget
from onward.control.running.log import Times
from onward.control.running.runs import Folder
from onward.control.running.trainer import Trainer


class Clock(Times):
    """Of a run that trained for ``trained`` seconds, evaluations apart."""

    trained = 0.0

    def total(self) -> float:
        return self.trained + self.spent["evaluate"]


def budget(share: float, trained: float, *spent: tuple[float, int]) -> EvaluationBudget:
    clock = Clock()
    clock.trained = trained
    found = EvaluationBudget(share, clock)
    for seconds, episodes in spent:
        found.spend(seconds, episodes)
    return found


def test_the_first_evaluation_and_those_of_the_first_seconds_are_whole() -> None:
    assert budget(0.15, 1.0).episodes(20) == 20
    assert budget(0.15, 1.0, (1.4, 20)).episodes(20) == 20  # 2.8 of 3.8 seconds, but short
    assert budget(0.15, 1.0, (1.6, 20)).episodes(20) != 20


def test_an_evaluation_gets_as_many_episodes_as_fit_its_share() -> None:
    """Spent 20 s of 220. 0.2 · (220 + x) = 20 + x gives x = 30 seconds, and an episode takes one."""
    found = budget(0.2, 200.0, (20.0, 20))
    assert (found.episodes(40), found.episodes(30), found.episodes(20)) == (30, 30, 20)
    assert found.report() == {"share": 20 / 220, "limit": 0.2, "shortened": 1, "left_out": 0}


def test_too_little_time_leaves_an_evaluation_out_unless_it_is_needed() -> None:
    found = budget(0.15, 100.0, (20.0, 20))
    assert (found.episodes(20), found.episodes(20, needed=True), found.episodes(3, needed=True)) == (0, 5, 3)
    assert (found.left_out, found.shortened) == (1, 2)


def test_a_share_of_one_limits_nothing() -> None:
    assert budget(1.0, 1.0, (1000.0, 20)).episodes(100) == 100


def test_a_resumed_run_remembers_what_its_evaluations_took() -> None:
    first = budget(0.15, 100.0, (20.0, 20))
    first.episodes(20)
    clock = Clock(first._times.spent)
    clock.trained = 100.0
    again = EvaluationBudget(0.15, clock, first.state_dict())
    assert again.episodes(20) == 0 and again.left_out == 2


def test_slow_evaluations_are_left_out_of_a_run_and_training_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trainer_of(run_of(), tmp_path / "whole")
    whole.start()
    whole.train()
    monkeypatch.setattr(budgets, "FREE_SECONDS", 0.0)
    events: list[dict[str, Any]] = []
    short = trainer_of(run_of(eval_share=1e-9), tmp_path / "short", events.append)
    short.start()
    summary = short.train()
    evaluated = [(event["step"], event["episodes"]) for event in events if event["event"] == "evaluated"]
    # The first is whole: nobody knows yet what it takes. The last looks like the best, so it is whole too.
    assert evaluated == [(100, 10), (400, 10)]
    assert (summary["evaluation"]["left_out"], summary["evaluation"]["shortened"]) == (2, 1)
    assert summary["final"]["episodes"] == 5
    one, other = whole.algorithm.state_dict(), short.algorithm.state_dict()
    assert (one["bias"] == other["bias"]).all() and (one["weight"] == other["weight"]).all()


@pytest.mark.parametrize(("whole_again", "step"), [(3.0, 100), (4.5, 400)])
def test_a_lucky_short_evaluation_does_not_replace_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole_again: float, step: int
) -> None:
    """4 over ten episodes, then 5 over five at step 400, where ten say ``whole_again``."""
    monkeypatch.setattr(budgets, "FREE_SECONDS", 0.0)
    returns = iter([(10, 4.0), (5, 5.0), (10, whole_again), (5, 0.0)])

    def evaluate(policy: Any, episodes: int, seed: int, stopped: Any) -> Episodes:
        wanted, found = next(returns)
        assert episodes == wanted
        return Episodes(np.full(episodes, found), np.full(episodes, LENGTH), None, None)

    trainer = trainer_of(run_of(eval_share=1e-9), tmp_path / "r")
    trainer._world = replace(trainer._world, evaluate=evaluate)
    trainer.start()
    assert trainer.train()["best"] == {
        "return": max(4.0, whole_again), "success": 0.0, "step": step, "episodes": 10,
    }  # fmt: skip


def test_shortened_evaluations_share_one_small_set_of_environments_and_all_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, closed = [], []

    def make_counted(source: Any, num: int, **options: Any) -> Counting:
        envs = Counting(num)
        made.append(num)
        monkeypatch.setattr(envs, "close", lambda: closed.append(num))
        return envs

    monkeypatch.setattr(environments, "make", make_counted)
    small = PPOConfig(num_envs=4, n_steps=16, batch_size=64, epochs=1, hidden=(8,))
    trainer = Trainer(run_of(eval_episodes=20, settings=small), Folder(tmp_path / "r"))
    lengths = iter([20, 5, 6, 19])
    monkeypatch.setattr(trainer.budget, "episodes", lambda wanted, needed=False: next(lengths, 7))
    trainer.start()
    assert trainer.train()["final"]["episodes"] == 7
    assert sorted(made) == sorted(closed) == [4, 5, 20]  # training, short ones, whole ones


def test_where_a_run_ends_does_not_depend_on_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The third confirmation is the first to succeed; by the budget there is time for one only."""

    def trained(name: str, share: float) -> tuple[dict[str, Any], list[int]]:
        run = run_of(timesteps=3000, threshold=5.0, eval_every=5000, eval_share=share)
        tries: list[int] = []

        def evaluate(policy: Any, episodes: int, seed: int, stopped: Any) -> Episodes:
            if episodes == 100 and len(tries) < 3:
                tries.append(trainer.algorithm.steps)
            returns = np.full(episodes, 5.0 * (len(tries) == 3))
            return Episodes(returns, np.full(episodes, LENGTH), None, None)

        trainer = trainer_of(run, tmp_path / name)
        trainer._world = replace(trainer._world, evaluate=evaluate)
        trainer.start()
        return trainer.train(), tries

    monkeypatch.setattr(budgets, "FREE_SECONDS", 0.0)
    whole, short = trained("whole", 1.0), trained("short", 1e-9)
    assert whole[1] == short[1] and whole[0]["steps"] == short[0]["steps"] == short[1][2]
    assert whole[0]["end"] == short[0]["end"] == "solved"
    assert (short[0]["evaluation"]["left_out"], short[0]["evaluation"]["shortened"]) == (
        0,
        1,
    )  # the final one
