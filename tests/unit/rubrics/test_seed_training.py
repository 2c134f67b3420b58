"""The plain training loop: stored log-probs, the gradient, the reward, the printed lines, and convergence."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from onward.rubrics import train
from onward.rubrics.evaluation import ValidationEngine
from onward.rubrics.gym.loading import load_workflow
from onward.rubrics.gym.parts import WorkflowError
from onward.rubrics.gym.phases import ExecutionPhase, RubricObservation
from onward.rubrics.gym.softmax_policy import SHARED_RATE, Decision, SoftmaxPolicy
from onward.rubrics.gym.truth_files import truth_of
from onward.rubrics.gym.workers import Worker, requirements
from onward.rubrics.seed import (
    EpisodeSummary,
    LoopSettings,
    Rollout,
    RubricDecompositionManagerAgent,
    RubricRewardFunction,
    collect_rollout,
    load_ground_truth_rubrics,
    load_training_workflows,
    train_rubric_manager,
)
from onward.rubrics.seed_training import NO_RUBRIC, _run_scores, update

QUICK = LoopSettings(group=4, rounds=1, skills=(0.6,))


def observation(name: str) -> RubricObservation:
    workflow = load_workflow(name)
    return RubricObservation(
        workflow=name, goal=workflow.goal, stakeholder=workflow.owner, requirements=requirements(workflow)
    )


def test_the_stored_log_probs_are_those_of_the_policy() -> None:
    writer = SoftmaxPolicy(seed=1)
    writer.parameters = {"check unique": np.array([0.3, -0.2, 0.1, 0.0]), "answer not asked": np.ones(4)}
    _, decisions = writer.write(observation("ediscovery"))
    for one in decisions:
        prior = np.array([2.5, 0, 0, 0]) if len(one.probabilities) == 4 else np.array([1.0, 0])
        logits = prior + sum(writer.parameters.get(key, 0.0) for key in one.keys)
        assert one.logprob == pytest.approx(logits[one.choice] - np.log(np.exp(logits).sum()))


def test_the_update_is_the_gradient_of_the_stored_log_probs() -> None:
    """Against finite differences of the log-probability, with respect to one parameter vector."""
    writer = SoftmaxPolicy()
    writer.parameters["own w x"] = np.array([0.4, -0.1, 0.2])
    prior = np.zeros(3)
    chances = writer.probabilities(["own w x"], prior)
    decision = Decision(("own w x",), 1, tuple(chances))

    def logprob(vector: np.ndarray) -> float:
        return float(vector[1] - np.log(np.exp(vector).sum()))

    before = writer.parameters["own w x"].copy()
    eye = np.eye(3) * 1e-6
    numeric = np.array([(logprob(before + row) - logprob(before - row)) / 2e-6 for row in eye])
    writer.update([([decision], 2.0)], rate=0.5)
    assert writer.parameters["own w x"] - before == pytest.approx(0.5 * 2.0 * numeric, abs=1e-8)


def test_shared_parameters_move_slower() -> None:
    writer = SoftmaxPolicy()
    decision = Decision(("check unique", "own w x"), 0, (0.5, 0.5))
    writer.update([([decision], 1.0)], rate=1.0)
    assert writer.parameters["own w x"] == pytest.approx([0.5, -0.5])
    assert writer.parameters["check unique"] == pytest.approx([0.5 * SHARED_RATE, -0.5 * SHARED_RATE])


def rollout(reward: float, choice: int) -> Rollout:
    decision = Decision(("own w x",), choice, (0.5, 0.5))
    return Rollout("w", truth_of("ediscovery").evaluator(), (0.5,), (0.5,), reward, 0, (decision,))


def test_equal_rewards_change_nothing_and_a_better_choice_gains() -> None:
    writer = SoftmaxPolicy()
    update(writer, [rollout(-0.1, 0), rollout(-0.1, 1)], 1.0)
    assert writer.parameters == {}
    update(writer, [rollout(-0.1, 0), rollout(-0.5, 1)], 1.0)
    # Rewards less that of the other: ±0.4, over the standard deviation 0.2: ±2. Mean of ±2 · (±1/2).
    assert writer.parameters["own w x"] == pytest.approx([1.0, -1.0])


@pytest.mark.parametrize(
    ("settings", "more", "expected"),
    [
        ({}, {}, -0.13),
        ({"distance": "squared"}, {}, -0.0169),
        ({"question_price": 0.05}, {"questions": 3}, -0.28),
        ({"quality_weight": 0.1}, {"criteria": 5}, -0.03),
        ({"quality_weight": 0.1}, {"criteria": 9}, -0.08),
        ({"coverage_weight": 0.8}, {"coverage": 0.5}, 0.27),
    ],
)
def test_the_reward_by_hand(settings: dict, more: dict, expected: float) -> None:
    assert RubricRewardFunction(**settings).compute_reward(0.72, 0.85, **more) == pytest.approx(expected)


def test_the_sum_of_the_quick_start() -> None:
    """S4: −0.13² + 0.1 (quality) − 0.05 (one question) + 0.8 (coverage), which it rounds to 0.833."""
    reward = RubricRewardFunction("squared", quality_weight=0.1, question_price=0.05, coverage_weight=0.8)
    found = reward.compute_reward(0.72, 0.85, criteria=4, questions=1, coverage=1.0)
    assert found == pytest.approx(-0.0169 + 0.1 - 0.05 + 0.8)
    assert round(found, 3) == 0.833


@pytest.mark.parametrize(("synthetic", "truth"), [(None, 0.5), (0.5, None)])
def test_a_missing_score_is_never_a_good_one(synthetic: float | None, truth: float | None) -> None:
    assert RubricRewardFunction().compute_reward(synthetic, truth) == NO_RUBRIC == -1.0


async def test_the_scores_of_a_run_are_the_engines() -> None:
    workflow, truth = load_workflow("data_breach"), truth_of("data_breach").evaluator()
    engine = ValidationEngine(seed=1)
    worker = Worker(0.6, 7)
    run = await _run_scores(workflow, truth, engine, worker)
    ExecutionPhase(worker).run(workflow)
    for seed in range(6):
        rubric, _ = SoftmaxPolicy(seed).write(observation("data_breach"))
        result = await engine.evaluate_timestep(workflow, 0, None, workflow_evaluators=[rubric])
        assert run.score(rubric) == pytest.approx(result.weighted_preference_total)


async def test_a_rollout_has_scores_reward_and_log_probs() -> None:
    workflow = load_workflow("product_recall")
    manager = RubricDecompositionManagerAgent(seed=3)
    found = await collect_rollout(workflow, truth_of("product_recall").evaluator(), manager)
    assert found.synthetic[0] is not None and found.truth[0] is not None
    assert found.reward == pytest.approx(-abs(found.synthetic[0] - found.truth[0]))
    # 7 topics, one decision for each requirement, one for the aggregation.
    assert len(found.action_logprobs) == 7 + len(requirements(workflow)) + 1
    assert np.all(found.action_logprobs <= 0)


async def test_training_repeats_by_its_seed() -> None:
    async def trained(seed: int) -> list[EpisodeSummary]:
        settings = LoopSettings(group=4, rounds=1, skills=(0.6,), seed=seed)
        workflows = load_training_workflows(1)
        return (await train_rubric_manager(workflows, None, 2, settings, report=lambda one: None))[1]

    assert await trained(1) == await trained(1) != await trained(2)


async def test_a_saved_policy_goes_on_and_a_foreign_file_is_refused(tmp_path: Path) -> None:
    writer, _ = await train_rubric_manager(
        load_training_workflows(1), load_ground_truth_rubrics(), 1, QUICK, report=lambda one: None
    )
    writer.save(tmp_path / "policy.json")
    loaded = SoftmaxPolicy.load(tmp_path / "policy.json")
    assert loaded.parameters.keys() == writer.parameters.keys()
    assert all(np.allclose(loaded.parameters[key], value) for key, value in writer.parameters.items())
    (tmp_path / "other.json").write_text("[]")
    with pytest.raises(WorkflowError, match="has no rubric writer"):
        SoftmaxPolicy.load(tmp_path / "other.json")


def test_the_command_prints_a_line_per_episode_and_the_progress(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "p.json"
    assert train.main(["--episodes", "2", "--workflows", "1", "--out", str(out), "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("Synthetic: ") for line in lines[:2])
    assert lines[2].endswith("(1 workflows).")
    assert lines[3] == f"The trained policy is in {out}: go on with --resume {out}."
    assert out.is_file()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--episodes", "0"], "--episodes is 0"),
        (["--episodes", "1", "--workflows", "0"], "--workflows is 0"),
        (["--episodes", "1", "--resume", "none.json"], "has no rubric writer"),
        (["--episodes", "1", "--model-path", "none"], "needs vLLM, which is not installed"),
    ],
)
def test_bad_options_are_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    assert train.main([*options, "--quiet"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 1
    assert reason in errors[0]


def test_workflows_are_chosen_so_that_each_is_visited_again() -> None:
    assert [train.chosen_workflows(n, None, 21) for n in (1, 10, 100, 1000)] == [1, 2, 20, 21]
    assert train.chosen_workflows(10, 7, 21) == 7


def visits(rewards: list[float], count: int) -> tuple[float, float]:
    """Returns the mean reward of the first and of the last visit to each of ``count`` workflows."""
    return math.fsum(rewards[:count]) / count, math.fsum(rewards[-count:]) / count


async def converged(episodes: int, count: int, seed: int) -> tuple[float, float]:
    settings = LoopSettings(seed=seed)
    _, found = await train_rubric_manager(
        load_training_workflows(count), None, episodes, settings, report=lambda one: None
    )
    return visits([one.reward for one in found], count)


@pytest.mark.long
async def test_ten_episodes_converge_by_their_own_lines() -> None:
    pairs = [await converged(10, 2, seed) for seed in (1, 2, 3)]
    first, last = (sum(pair[place] for pair in pairs) / len(pairs) for place in (0, 1))
    assert last > first + 0.05
    assert last > 0.75 * first


@pytest.mark.long
async def test_a_hundred_episodes_converge_by_their_own_lines() -> None:
    first, last = await converged(100, 20, 1)
    assert last > 0.75 * first


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--episodes", "0"], "--episodes is 0: give 1 or more."),
        (["--workflows", "-1"], "--workflows is -1: give 1 or more."),
        (["--model-path", ".", "--out", "p.json"], "--out and --resume are for the small policy: "),
        (["--out", "."], "The file . cannot be written (Is a directory): "),
    ],
)
def test_options_that_cannot_be_used_are_refused_before_the_first_episode(
    words: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith(sentence) and len(said.err.splitlines()) == 1 and said.out == ""
