"""A run that cannot go on bit for bit says why and goes on: other versions, environments without a state."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_scripted import Counting, Scripted, run_of, world_of

from onward.control.algorithms.registry import algorithm_class
from onward.control.core.config import CONFIGS
from onward.control.core.contract import Environments
from onward.control.environments import NoisyObservations
from onward.control.evaluation.evaluate import EvaluationStopped
from onward.control.running import checkpoint, origin
from onward.control.running.log import Log
from onward.control.running.runs import Folder, RunConfig
from onward.control.running.trainer import Trainer
from onward.control.running.world import World


class Robot(Counting):
    """A machine in the world: nobody can put it back."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        raise OSError("the arm is elsewhere")


class Mute(Counting):
    """Has no state at all."""

    def state_dict(self) -> dict[str, Any]:
        raise AttributeError("no attribute 'np_random'")


def stopped(run: RunConfig, path: Path, of: World, at: int = 48) -> Trainer:
    """Trains to step ``at`` and saves."""
    trainer = Trainer(run, Folder(path), lambda event: None, of)
    trainer.start()
    trainer._log = Log(path, tensorboard=False)
    while trainer.algorithm.steps < at:
        trainer._iterate()
    trainer._save(trainer.algorithm.steps)
    return trainer


def resumed(run: RunConfig, path: Path, of: World) -> Trainer:
    trainer = Trainer(run, Folder(path), lambda event: None, of)
    trainer.resume()
    trainer._log = Log(path, tensorboard=False)
    return trainer


@pytest.mark.parametrize(
    ("kind", "why"),
    [(Robot, "the arm is elsewhere"), (Mute, "could not be saved (no attribute 'np_random')")],
)
def test_a_run_goes_on_with_new_episodes_where_the_saved_ones_cannot(
    tmp_path: Path, kind: type[Counting], why: str
) -> None:
    run = run_of()
    of = replace(world_of(run), envs=lambda worker: kind(4))
    before = stopped(run, tmp_path, of)
    events: list[dict[str, Any]] = []
    trainer = Trainer(run, Folder(tmp_path), events.append, of)
    trainer.resume()
    assert len(trainer.differences) == 1 and why in trainer.differences[0]
    assert trainer.differences[0].startswith("new episodes begin, since the saved ones cannot go on: ")
    assert isinstance(trainer.algorithm, Scripted) and isinstance(before.algorithm, Scripted)
    assert np.array_equal(trainer.algorithm.bias, before.algorithm.bias)  # what was learned is there
    assert not trainer.episodes._lengths.any()  # no episode of two halves is counted
    trainer.train()
    assert events[0]["differences"] == trainer.differences
    assert trainer.algorithm.steps == run.timesteps


@pytest.mark.parametrize("kind", [Robot, Mute])
def test_the_deviations_of_noise_go_on_where_the_episodes_cannot(
    tmp_path: Path, kind: type[Counting]
) -> None:
    """Without them the first steps after the stop would have no noise."""
    run = run_of()
    of = replace(world_of(run), envs=lambda worker: NoisyObservations(kind(4), 0.2, relative=True))
    before = stopped(run, tmp_path, of).envs
    trainer = resumed(run, tmp_path, of)
    assert len(trainer.differences) == 1 and "the saved ones cannot go on" in trainer.differences[0]
    after = trainer.envs
    assert isinstance(before, NoisyObservations) and isinstance(after, NoisyObservations)
    assert before._met is not None and after._met is not None
    assert after._met.count == before._met.count + 4  # what was met, and the first of the new episodes
    assert (after._deviation() > 0.2).all()  # of steps 0 … 4: 0.2 times the root of 2
    seen: Any = trainer._obs
    assert not np.array_equal(seen, np.arange(4)[:, None])


def test_a_run_that_goes_on_as_it_was_has_nothing_to_say(tmp_path: Path) -> None:
    of = world_of(run_of())
    stopped(run_of(), tmp_path, of)
    assert resumed(run_of(), tmp_path, of).differences == []


def test_other_versions_and_threads_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = world_of(run_of())
    stopped(run_of(), tmp_path, of)
    now = origin.of_this_process(2)
    monkeypatch.setattr(origin, "of_this_process", lambda threads: {**now, "numpy": "9.9.9"})
    found = resumed(run_of(), tmp_path, of).differences
    assert found == [f"numpy was {np.__version__} and is 9.9.9", "threads was 1 and is 2"]


def test_a_state_of_an_earlier_version_goes_on_and_says_that_it_has_no_versions(tmp_path: Path) -> None:
    of, folder = world_of(run_of()), Folder(tmp_path)
    stopped(run_of(), tmp_path, of)
    state = checkpoint.load(folder.state)
    del state["origin"]
    checkpoint.save(folder.state, state)
    (why,) = resumed(run_of(), tmp_path, of).differences
    assert "an earlier version of Onward saved it" in why


OFF_POLICY = {"hidden": (16,), "batch_size": 16, "buffer_size": 150, "learning_starts": 32, "train_every": 4}
LEARNERS = {
    "ppo": {"num_envs": 4, "n_steps": 16, "batch_size": 32, "epochs": 1, "hidden": (8,)},
    "reinforce": {"num_envs": 4, "episodes": 8, "hidden": (8,)},
    "dqn": {**OFF_POLICY, "num_envs": 4, "n_step": 3},
}


class Placed(Counting):
    """Begins at a step of its own after a reset, so that a pair over the border would be seen."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        raise OSError("the arm is elsewhere")

    def reset(self, seed: int) -> tuple[Any, None]:
        super().reset(seed)
        self._at = np.full(self.num, 3 * (self._steps > 0), np.int64)
        return self._obs(), None


@pytest.mark.parametrize("algorithm", LEARNERS)
def test_no_step_joins_an_episode_before_the_stop_with_one_after_it(tmp_path: Path, algorithm: str) -> None:
    """Within an episode the observation grows by 1 a step, and a truncation ends at 5."""
    envs: list[Environments] = []

    def make(worker: int) -> Environments:
        made = Placed(4, apart=False)
        made._steps = 1 if envs else 0
        envs.append(made)
        return made

    of = World(make, algorithm_class(algorithm), world_of(run_of()).evaluate)
    config = CONFIGS[algorithm](**LEARNERS[algorithm])
    run = run_of(algorithm=algorithm, settings=config, timesteps=400)
    stopped(run, tmp_path, of, at=40 + 8)  # two steps into an episode
    trainer = resumed(run, tmp_path, of)
    before = trainer.algorithm.steps
    for _ in range(3):
        trainer._iterate()
    learner: Any = trainer.algorithm
    assert learner.steps == before + 12
    if algorithm == "ppo":
        rollout = learner.rollout
        obs, following = rollout.obs[: rollout.at, :, 0], rollout.next_obs()[: rollout.at - 1, :, 0]
        assert (following - obs[:-1] == 1).all()
    elif algorithm == "reinforce":
        for episode in learner._done[-4:]:
            assert (np.diff(episode["obs"][:, 0]) == 1).all()
    else:
        batch = learner.replay.sample(200)
        steps = batch.next_obs[:, 0] - batch.obs[:, 0]
        assert (steps >= 1).all() and (batch.next_obs[:, 0] <= 5).all()


def test_a_confirmation_that_was_stopped_is_made_again_after_the_stop(tmp_path: Path) -> None:
    """All training episodes earn 0, which is the threshold: the first window of them is to be confirmed."""
    run = run_of(threshold=0.0, timesteps=2000, eval_every=10_000)
    of, stopping = world_of(run), [True]

    def evaluate(policy: Any, episodes: int, seed: int, stopped: Any) -> Any:
        if episodes == 100 and stopping:
            stopping.clear()
            raise EvaluationStopped
        return of.evaluate(policy, episodes, seed, stopped)

    cut = replace(of, evaluate=evaluate)
    trainer = Trainer(run, Folder(tmp_path / "cut"), lambda event: None, cut)
    trainer.start()
    assert trainer.train()["end"] == "interrupted"
    again = Trainer(run, Folder(tmp_path / "cut"), lambda event: None, cut)
    again.resume()
    whole = Trainer(run, Folder(tmp_path / "whole"), lambda event: None, of)
    whole.start()
    one, other = again.train()["solved"], whole.train()["solved"]
    assert one is not None and (one["episode"], one["step"]) == (other["episode"], other["step"])
