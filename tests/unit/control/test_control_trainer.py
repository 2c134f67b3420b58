"""The loop: when it evaluates, saves and stops, what it refuses, and that resuming changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from control_scripted import (
    LENGTH,
    Counting,
    Scripted,
    ScriptedAsync,
    assert_same_state,
    run_of,
    trainer_of,
    world_of,
)

from onward.control.core.contract import Step
from onward.control.evaluation.evaluate import Episodes, EvaluationStopped
from onward.control.policies.policy import Policy
from onward.control.running import checkpoint
from onward.control.running.log import read_rows
from onward.control.running.runs import Folder
from onward.control.running.trainer import Trainer
from onward.control.running.training_episodes import TrainingEpisodes
from onward.errors import ControlError, EnvironmentFault


def train(run: Any, path: Path, **kwargs: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    events: list[dict[str, Any]] = []
    trainer = trainer_of(run, path, events.append, **kwargs)
    trainer.start()
    return trainer.train(), events


def without_times(rows: list[dict[str, float]]) -> list[dict[str, float]]:
    timed = ("seconds", "steps_per_second", "share_")
    return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows]


@pytest.mark.parametrize("slots", [1, 4, 10])
def test_evaluations_are_due_by_steps_not_by_calls(tmp_path: Path, slots: int) -> None:
    """Bug case 22: an interval counted in calls comes ``slots`` times too late."""
    _, events = train(run_of(), tmp_path / "r", num=slots)
    at = [event["step"] for event in events if event["event"] == "evaluated"]
    assert at == [100, 200, 300, 400]
    assert [event["step"] for event in events if event["event"] == "saved"] == [200, 400]


def test_an_interval_that_the_slots_step_over_still_counts_once(tmp_path: Path) -> None:
    _, events = train(run_of(eval_every=50, timesteps=210), tmp_path / "r", num=70)
    assert [event["step"] for event in events if event["event"] == "evaluated"] == [70, 140, 210]


def test_the_algorithm_is_told_the_length_of_the_run_before_it_acts(tmp_path: Path) -> None:
    trainer = trainer_of(run_of(timesteps=1234), tmp_path / "r")
    assert trainer.algorithm.total_steps == 1234


def test_the_returns_reported_are_raw_sums_of_whole_episodes(tmp_path: Path) -> None:
    """Slot i starts i steps into an episode, so first episodes are shorter: lengths 5, 4, 3, 2."""
    episodes = TrainingEpisodes(4)
    envs = Counting(4)
    envs.reset(0)
    for _ in range(LENGTH):
        episodes.add(envs.step(np.array([1, 0, 1, 0])))
    assert episodes.count == 4
    assert list(episodes.returns) == [0.0, 3.0, 0.0, 5.0]
    assert list(episodes.lengths) == [2, 3, 4, 5]


def test_the_last_hundred_episodes_reach_a_threshold_by_hand() -> None:
    """100 episodes of 10, then of 20: the mean of the last hundred is 15 at episode 150."""

    def first(threshold: float, returns: list[float]) -> int | None:
        episodes = TrainingEpisodes(1)
        for episode_return in returns:
            episodes.end(episode_return, 1)
            if episodes.reach(threshold):
                return episodes.count
        return None

    returns = [10.0] * 100 + [20.0] * 100
    assert [first(threshold, returns) for threshold in (15.0, 10.0, 20.5)] == [150, 100, None]
    assert first(1.0, returns[:99]) is None
    assert first(0.1, [0.1] * 100) == 100  # a sum of a hundred tenths is a little off 10


def test_a_run_that_is_solved_stops_and_tells_its_solve_episode(tmp_path: Path) -> None:
    """After 50 updates (500 steps) action 1 is certain: then every episode returns 5."""
    run = run_of(timesteps=3000, threshold=5.0, eval_every=5000, checkpoint_every=5000)
    summary, events = train(run, tmp_path / "r")
    solved = summary["solved"]
    # 100 episodes of 5 steps must follow; a few late draws below the certain chance may come out as 1.
    assert summary["end"] == "solved"
    assert 980 <= solved["step"] <= 1024
    assert summary["steps"] == solved["step"]
    assert solved["episode"] == pytest.approx(solved["step"] / LENGTH, abs=4)
    confirmations = [event for event in events if event["event"] == "evaluated"]
    assert [event["episodes"] for event in confirmations] == [100]
    assert summary["final"] == {"episodes": 100, "return": 5.0, "std": 0.0, "success": 1.0}


def test_a_solution_that_greedy_episodes_do_not_confirm_is_none(tmp_path: Path) -> None:
    """Explores well, acts badly: the greedy action stays 0."""

    class Backwards(Scripted):
        gain = -0.05

    run = run_of(timesteps=1500, threshold=5.0, eval_every=5000, checkpoint_every=5000)
    summary, events = train(run, tmp_path / "r", algorithm=Backwards)
    assert summary["solved"] is None
    assert summary["end"] == "finished"
    tries = [event for event in events if event["event"] == "evaluated" and event["episodes"] == 100]
    assert len(tries) >= 4
    between = np.diff([event["step"] for event in tries]) / LENGTH
    assert (np.abs(between - 25) <= 4).all()  # four slots end their episodes at a time
    assert {event["eval_return"] for event in tries} == {0.0}


def half_of_them(policy: Any, episodes: int, seed: int, stopped: Any) -> Episodes:
    """Returns 0 and 10 in turn: their mean is 5, every second one succeeds."""
    returns = np.where(np.arange(episodes) % 2, 10.0, 0.0)
    return Episodes(returns, np.full(episodes, LENGTH), returns >= 5, None)


@pytest.mark.parametrize(("asked", "end"), [(0.0, "solved"), (0.5, "solved"), (0.9, "finished")])
def test_a_mean_over_the_bar_is_no_solution_where_success_is_asked_for(
    tmp_path: Path, asked: float, end: str
) -> None:
    """MountainCar: the mean passes −110 while only every second episode does."""
    run = run_of(timesteps=1500, threshold=5.0, eval_every=5000, checkpoint_every=5000, solve_success=asked)
    trainer = Trainer(run, Folder(tmp_path / "r"), of=replace(world_of(run), evaluate=half_of_them))
    trainer.start()
    assert trainer.train()["end"] == end


def test_the_best_policy_is_the_one_that_succeeds_most_often_then_the_one_with_the_higher_mean(
    tmp_path: Path,
) -> None:
    """Two of four over the bar with a mean of 5 are better than one of four with a mean of 25."""
    scores = iter([[100.0, 0, 0, 0], [10.0, 10, 0, 0], [90.0, 0, 0, 0], [10.0, 6, 0, 0], [10.0, 6, 0, 0]])

    def evaluate(policy: Any, episodes: int, seed: int, stopped: Any) -> Episodes:
        returns = np.array(next(scores))
        return Episodes(returns, np.full(4, LENGTH), returns >= 5, None)

    run = run_of(threshold=1000.0)
    trainer = Trainer(run, Folder(tmp_path / "r"), of=replace(world_of(run), evaluate=evaluate))
    trainer.start()
    assert trainer.train()["best"] == {"return": 5.0, "success": 0.5, "step": 200, "episodes": 10}


def test_a_run_can_go_on_after_it_is_solved(tmp_path: Path) -> None:
    run = run_of(timesteps=1400, threshold=5.0, eval_every=5000, stop_when_solved=False)
    summary, _ = train(run, tmp_path / "r")
    assert summary["end"] == "finished"
    assert summary["steps"] == 1400
    assert summary["solved"]["step"] <= 1024


def test_without_a_threshold_nothing_is_solved(tmp_path: Path) -> None:
    summary, _ = train(run_of(timesteps=1400), tmp_path / "r")
    assert summary["solved"] is None
    assert summary["final"]["success"] is None


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_state(tmp_path: Path) -> None:
    class Diverges(Scripted):
        loss = staticmethod(lambda updates: float("nan") if updates == 30 else 1.0)

    with pytest.raises(
        ControlError, match=r"step 300 because policy_loss became nan.*step 200.*learning_rate"
    ):
        train(run_of(), tmp_path / "r", algorithm=Diverges)
    state = checkpoint.load(Folder(tmp_path / "r").state)
    assert state["algorithm"]["counts"][0] == 200


def test_a_parameter_that_is_not_finite_is_never_saved_or_exported(tmp_path: Path) -> None:
    class Silent(Scripted):
        def update(self) -> dict[str, float]:
            told = super().update()
            if self.updates == 15:
                self.bias = self.bias * np.float32(np.inf)
            return told

    with pytest.raises(ControlError, match="a parameter is not finite any more: no state was saved yet"):
        train(run_of(), tmp_path / "r", algorithm=Silent)
    assert Policy.load(tmp_path / "r").parts.finite()
    assert not Folder(tmp_path / "r").state.exists()


def test_a_reward_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="a return of the environment became nan"):
        train(run_of(), tmp_path / "r", poison=20)


@pytest.mark.parametrize("stopped_at", [52, 200, 332])
def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path: Path, stopped_at: int) -> None:
    """Bug case 20, between and on the steps at which things are due."""
    whole, _ = train(run_of(), tmp_path / "whole")
    trainer = trainer_of(run_of(), tmp_path / "cut")

    def watch_steps(original: Any = trainer._iterate) -> None:
        original()
        if trainer.algorithm.steps == stopped_at:
            trainer.stop()

    trainer._iterate = watch_steps  # type: ignore[method-assign]
    trainer.start()
    first = trainer.train()
    assert (first["end"], first["steps"], first["final"]) == ("interrupted", stopped_at, None)
    again = trainer_of(run_of(), tmp_path / "cut")
    again.resume()
    resumed = again.train()
    assert resumed["final"] == whole["final"]
    assert resumed["best"] == whole["best"]
    states = [checkpoint.load(Folder(tmp_path / name).state) for name in ("whole", "cut")]
    assert_same_state(*states)
    rows = [without_times(read_rows(tmp_path / name / "metrics.csv")) for name in ("whole", "cut")]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("at", [200, 400])
def test_a_stop_within_an_evaluation_ends_it_and_a_resumed_run_does_it_again(tmp_path: Path, at: int) -> None:
    """Due at step 200 in the middle of the run, at step 400 at its end."""
    whole, _ = train(run_of(), tmp_path / "whole")
    trainer = trainer_of(run_of(), tmp_path / "cut")
    evaluate, asked = trainer._world.evaluate, 0

    def evaluated(policy: Any, episodes: int, seed: int, stopped: Any) -> Episodes:
        def stopped_later() -> bool:  # as by a signal, after some steps of the evaluation
            nonlocal asked
            asked += trainer.algorithm.steps == at
            if asked == 3:
                trainer.stop()
            return stopped()

        return evaluate(policy, episodes, seed, stopped_later)

    trainer._world = replace(trainer._world, evaluate=evaluated)
    trainer.start()
    first = trainer.train()
    assert (first["end"], first["steps"], first["final"], asked) == ("interrupted", at, None, 3)
    again = trainer_of(run_of(), tmp_path / "cut")
    again.resume()
    resumed = again.train()
    assert (resumed["final"], resumed["best"]) == (whole["final"], whole["best"])
    assert_same_state(*(checkpoint.load(Folder(tmp_path / name).state) for name in ("whole", "cut")))
    rows = [without_times(read_rows(tmp_path / name / "metrics.csv")) for name in ("whole", "cut")]
    assert rows[0] == rows[1]


@pytest.mark.parametrize("fault", [False, True])
def test_a_stop_within_an_evaluation_before_the_first_episode_ended_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: bool
) -> None:
    """No training episode ends within 400 steps: there is no return yet, which is no divergence."""
    monkeypatch.setattr(Counting, "step", endless(Counting.step))
    trainer = trainer_of(run_of(), tmp_path / "r")
    evaluated = one_return

    def stopped_one(policy: Any, episodes: int, seed: int, stopped: Any) -> Episodes:
        if trainer.algorithm.steps == 200:
            raise EnvironmentFault("no motor") if fault else EvaluationStopped
        return evaluated(policy, episodes, seed, stopped)

    trainer._world = replace(trainer._world, evaluate=stopped_one)
    trainer.start()
    if fault:
        with pytest.raises(EnvironmentFault, match="Step 200 is saved"):
            trainer.train()
    else:
        assert trainer.train()["end"] == "interrupted"
    again = trainer_of(run_of(), tmp_path / "r")
    again._world = replace(again._world, evaluate=evaluated)
    again.resume()
    summary = again.train()
    assert (summary["end"], summary["steps"], summary["episodes"]) == ("finished", 400, 0)
    steps = [row["step"] for row in read_rows(tmp_path / "r" / "metrics.csv") if "eval_return" in row]
    assert steps == [100, 200, 300, 400]


def endless(step: Any) -> Any:
    """Returns ``step`` without any end of an episode."""

    def stepped(envs: Counting, actions: Any) -> Step:
        found: Step = step(envs, actions)
        return replace(found, truncated=np.zeros(envs.num, bool), final_obs=None)

    return stepped


def one_return(policy: Any, episodes: int, seed: int, stopped: Any) -> Episodes:
    return Episodes(np.ones(episodes), np.full(episodes, LENGTH), None, None)


def test_a_fault_of_the_environment_saves_the_state_of_before_the_step(tmp_path: Path) -> None:
    trainer = trainer_of(run_of(), tmp_path / "r")
    step = trainer.envs.step

    def broken(actions: Any) -> Any:
        if trainer.algorithm.steps == 252:
            raise EnvironmentFault("Counting-v0, slot 1: step raised OSError; correct it.", "its traceback")
        return step(actions)

    trainer.envs.step = broken  # type: ignore[method-assign]
    trainer.start()
    with pytest.raises(EnvironmentFault) as fault:
        trainer.train()
    folder = Folder(tmp_path / "r")
    assert str(fault.value) == (
        "Counting-v0, slot 1: step raised OSError; correct it. Step 252 is saved: go on with "
        f"'onward control resume {folder.path}'. The traceback is in {folder.fault}."
    )
    assert folder.fault.read_text() == "its traceback"
    again = trainer_of(run_of(), tmp_path / "r")
    again.resume()
    assert again.algorithm.steps == 252
    assert again.train()["end"] == "finished"


def test_an_environment_that_fails_at_its_first_reset_leaves_no_run(tmp_path: Path) -> None:
    trainer = trainer_of(run_of(), tmp_path / "r")
    trainer.envs.reset = Mock(side_effect=EnvironmentFault("no motor"))  # type: ignore[method-assign]
    with pytest.raises(EnvironmentFault, match="no motor"):
        trainer.start()
    trainer.folder.check_free()


def test_two_runs_of_one_seed_are_equal_and_of_two_are_not(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        train(run_of(seed=seed), tmp_path / name)
    a, b, c = (checkpoint.load(Folder(tmp_path / name).state) for name in "abc")
    assert_same_state(a, b)
    assert not np.array_equal(a["algorithm"]["weight"], c["algorithm"]["weight"])


def test_the_best_policy_is_exported_not_the_last(tmp_path: Path) -> None:
    """The greedy action turns from 0 to 1 after ten updates and back after twenty-five."""

    class Rises(Scripted):
        def update(self) -> dict[str, float]:
            told = super().update()
            self.weight[:] = 0
            self.bias = np.array([0, 1 if 10 < self.updates < 25 else -1], np.float32)
            return told

    summary, _ = train(run_of(), tmp_path / "r", algorithm=Rises)
    assert summary["best"] == {"return": 5.0, "success": 0.0, "step": 200, "episodes": 10}
    assert summary["final"]["return"] == 5.0
    policy = Policy.load(tmp_path / "r")
    assert policy.env_id == "Counting-v0"
    assert policy.act(np.array([2.0], np.float32)) == 1


def test_shares_of_time_add_up(tmp_path: Path) -> None:
    summary, _ = train(run_of(), tmp_path / "r")
    assert sum(summary["shares"].values()) == pytest.approx(1, abs=1e-6)
    assert set(summary["shares"]) == {f"share_{p}" for p in ("env", "act", "update", "evaluate", "other")}
    assert json.loads((tmp_path / "r" / "summary.json").read_text()) == summary


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path: Path) -> None:
    train(run_of(), tmp_path / "r")
    with pytest.raises(ControlError, match=r"already holds a run: go on with it by 'onward control resume"):
        train(run_of(), tmp_path / "r")


def test_an_asynchronous_algorithm_is_run_and_watched_the_same_way(tmp_path: Path) -> None:
    run = run_of(timesteps=4000, threshold=5.0, eval_every=400)

    class Good(ScriptedAsync):
        def networks(self) -> Any:
            self.bias = np.array([0, 1], np.float32)
            return super().networks()

    summary, _ = train(run, tmp_path / "r", algorithm=Good)
    assert summary["end"] == "solved"
    assert summary["solved"]["episode"] == 104  # 13 × 8 is the first count of at least 100
    again = trainer_of(run, tmp_path / "r", algorithm=Good)
    again.resume()
    assert again.algorithm.steps == 520
