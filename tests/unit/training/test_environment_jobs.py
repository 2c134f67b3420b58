"""A request for an environment through the trainer role and its real child: one commit, with its evidence."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from arms_environment import Arms
from trainer_world import World, asked

from onward.contracts import TrainingRequest
from onward.errors import TrainingError
from onward.training import checkpoints
from onward.training.job import onpolicy, worker
from onward.training.role import results
from onward.training.role import trainer as service
from onward.training.spec import recipes, request

pytestmark = pytest.mark.slow

WORLDS = Path(__file__).parents[2] / "worlds"


async def test_a_job_learns_in_an_environment_and_commits_what_it_measured(
    tmp_path: Path, arms_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(WORLDS), *sys.path]))
    world = World(tmp_path, training={"environments": ["arms_environment:ARMS"]})
    world.ctx.base_model = arms_base
    arm = {"arm": "current", "model_id": "base", "adapter_digest": None, "model_digest": "d"}
    world.bucket("rl_releases").data["desired"] = (json.dumps({"arms": [arm]}).encode(), 1)
    plan = {"name": "arms_environment:ARMS", "episodes": 32, "max_tokens": 3, "held_out": 16}
    trainer = service.Trainer(world.ctx)
    await trainer.table.register(asked(plan))
    working = asyncio.create_task(trainer.run_jobs())
    while world.job.state not in service.TERMINAL:
        await asyncio.sleep(0.05)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    assert world.job.state == "completed", world.job.error
    assert world.job.samples == 96  # three steps of 32 episodes
    manifest = await checkpoints.fetch(world.ctx.objects, world.job.commit.object_prefix, tmp_path / "made")
    assert manifest.metrics["panel_hash"] == Arms().panel_hash()
    held_out = manifest.metrics["held_out"]
    assert held_out["before"]["episodes"] == held_out["after"]["episodes"] == 16
    (status,) = [said for said in world.published.values() if said["status"] == "completed"]
    assert status["evaluation_results"] == {
        "holdout_reward": held_out["after"]["reward"],
        "improvement_over_baseline": held_out["after"]["reward"] - held_out["before"]["reward"],
        "holdout": held_out["after"],
    }


async def test_a_job_reports_the_held_out_reward_of_the_policy_that_it_releases(
    tmp_path: Path, arms_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last policy is the worst of three here, and the first of them is the checkpoint."""
    measured = iter([(0.5, 0.4), (0.75, 0.7), (0.25, 0.2), (0.0, 0.1)])

    async def evaluate(self: onpolicy.OnPolicy, when: str) -> dict[str, Any]:
        success, reward = next(measured)
        return {"success": success, "reward": reward, "episodes": 16, "unscored": 0}

    monkeypatch.setattr(onpolicy.OnPolicy, "_evaluate", evaluate)
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(worker, "emit", lambda event, **facts: said.append({"event": event, **facts}))
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(worker.Stop, "listen", lambda self: None)
    plan = {"name": "arms_environment:ARMS", "episodes": 16, "max_tokens": 3, "steps": 3, "group_size": 4}
    settings = World(tmp_path, training={"environments": ["arms_environment:ARMS"]}).settings
    spec = request.resolve(
        asked(plan), settings, recipes.for_model("tiny"), model_folder=str(arms_base), start_digest=None,
        epoch=1,
    )  # fmt: skip
    (tmp_path / "spec.json").write_text(spec.model_dump_json())
    assert await asyncio.to_thread(worker.main, tmp_path) == 0, said[-1]
    metrics = said[-1]["metrics"]
    assert metrics["handed_out"]["step"] == 1 and metrics["handed_out"]["of"] == 3
    assert metrics["last"]["held_out"]["reward"] == 0.1
    assert results.evaluation_results(metrics) == {
        "holdout_reward": 0.7,
        "improvement_over_baseline": pytest.approx(0.3),
        "holdout": {"success": 0.75, "reward": 0.7, "episodes": 16, "unscored": 0},
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (asked({"name": "maze"}, "dpo"), "plays nothing"),
        (asked(None), "names no environment"),
        (asked({"name": "maze"}, source="s3"), "needs objects.trajectories_url"),
        (asked({"name": "maze", "group_size": 1}), "or use reinforce or ppo"),
        (asked({"name": "maze", "turns": 3}), "turns is wrong"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused_with_the_remedy(
    tmp_path: Path, given: TrainingRequest, words: str
) -> None:
    settings = World(tmp_path).settings
    with pytest.raises(TrainingError, match=words) as caught:
        request.check(given, settings)
        request.resolve(
            given, settings, recipes.for_model("tiny"), model_folder="", start_digest=None, epoch=1
        )
    assert caught.value.code == "DATA"


@pytest.mark.parametrize("algorithm", ["ppo", "dpo", "rloo", "grpo", "reinforce"])
def test_every_algorithm_of_the_published_schema_becomes_a_job(tmp_path: Path, algorithm: str) -> None:
    given = asked(None, algorithm, source="clickhouse", filter={"min_reward": 0.5})
    settings = World(tmp_path).settings
    request.check(given, settings)
    spec = request.resolve(
        given, settings, recipes.for_model("tiny"), model_folder="m", start_digest="d", epoch=2
    )
    assert (spec.algorithm, spec.min_reward, spec.start_digest) == (algorithm, 0.5, "d")
    assert spec.environment is None and spec.importance_cap is None


def test_rewards_per_turn_are_asked_for_with_what_they_sum_to(tmp_path: Path) -> None:
    settings = World(tmp_path).settings

    def given(algorithm: str, **numbers: Any) -> TrainingRequest:
        made = asked(None, algorithm, source="clickhouse").model_dump(mode="json")
        made["training_config"]["hyperparameters"] = {"dense_rewards": True, **numbers}
        made["training_config"]["dataset"] = {"source": "clickhouse", "sample_size": 8}
        return TrainingRequest.model_validate({k: v for k, v in made.items() if v is not None})

    with pytest.raises(TrainingError, match="which rloo cannot place"):
        request.check(given("rloo"), settings)
    with pytest.raises(TrainingError, match="set return_from to 'raw_total'"):
        request.check(given("ppo"), settings)
    request.check(given("ppo", return_from="raw_total"), settings)


def _numbers(tmp_path: Path, algorithm: str, **numbers: Any) -> request.JobSpec:
    settings = World(tmp_path).settings
    made = asked(None, algorithm, source="clickhouse").model_dump(mode="json")
    made["training_config"]["hyperparameters"] = numbers
    made["training_config"]["dataset"] = {"source": "clickhouse", "sample_size": 8}
    given = TrainingRequest.model_validate({k: v for k, v in made.items() if v is not None})
    request.check(given, settings)
    return request.resolve(
        given, settings, recipes.for_model("tiny"), model_folder="m", start_digest="d", epoch=1
    )


@pytest.mark.parametrize(
    ("algorithm", "numbers", "words"),
    [
        ("ppo", {"max_staleness": 3}, "max_staleness is wrong"),
        ("ppo", {"max_staleness": "abc"}, "max_staleness is wrong"),
        ("ppo", {"importance_cap": "x"}, "importance_cap is wrong"),
        ("ppo", {"gamma": 0}, "gamma is 0, and a learner needs more"),
        ("dpo", {"beta": -1}, "beta is wrong"),
        ("ppo", {"beta": 0.1}, "beta does nothing in ppo: leave it out, or use dpo"),
        ("dpo", {"kl_coef": 0.1}, "kl_coef does nothing in dpo"),
    ],
)
def test_a_number_of_ours_that_is_wrong_or_does_nothing_is_a_data_error_and_no_crash(
    tmp_path: Path, algorithm: str, numbers: dict[str, Any], words: str
) -> None:
    """``max_staleness: 3`` once left the trainer with an exception that it does not expect."""
    with pytest.raises(TrainingError, match=words) as caught:
        _numbers(tmp_path, algorithm, **numbers)
    assert caught.value.code == "DATA"


def test_numbers_of_the_published_schema_never_stop_a_job_and_unknown_ones_are_told(tmp_path: Path) -> None:
    spec = _numbers(tmp_path, "rloo", gamma=0.9, gae_lambda=0.9, learning_rate=0.5, entropy_coef=0.01)
    assert (spec.learning_rate, spec.ignored) == (0.5, ["entropy_coef"])


def test_a_valid_request_with_a_number_that_its_algorithm_does_not_use_runs(tmp_path: Path) -> None:
    """Publishers send their six numbers with every algorithm, and the published schema allows gamma 0."""
    assert _numbers(tmp_path, "reinforce", gamma=0, clip_epsilon=0.2).algorithm == "reinforce"
