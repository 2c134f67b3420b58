from __future__ import annotations

import errno
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rubric_writer import toy_plan

from onward.errors import ConfigError, TrainingError
from onward.lm.learner import Learner
from onward.lm.tokens import TokenRow
from onward.rubrics.language import InvalidRubric, Rubric
from onward.rubrics.policy import episodes, training
from onward.rubrics.policy.episodes import Attempt
from onward.rubrics.policy.plan import Plan
from onward.rubrics.policy.scoring import TruthScorer
from onward.rubrics.policy.training import BASE, METRICS, train, trajectories
from onward.rubrics.policy.writer import load_writer
from onward.rubrics.reward import RubricReward
from onward.rubrics.tasks import make_task


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that has its warm start and no step of learning."""
    folder = tmp_path_factory.mktemp("warm")
    train(toy_plan(steps=0), folder)
    return folder


def begun(warm: Path, folder: Path) -> Path:
    shutil.copytree(warm / BASE, folder / BASE)
    return folder


def rewards(folder: Path) -> list[float]:
    return [json.loads(line)["reward"] for line in (folder / METRICS).read_text().splitlines()]


def test_a_few_steps_raise_the_reward_and_a_shuffled_reward_does_not(warm: Path, tmp_path: Path) -> None:
    truth, rng = TruthScorer(), random.Random(0)

    def shuffled(attempts: Sequence[Attempt]) -> list[RubricReward]:
        found = truth(attempts)
        rng.shuffle(found)
        return found

    plan = toy_plan(steps=20, learning_rate=1e-2)
    train(plan, begun(warm, tmp_path / "true"))
    train(plan, begun(warm, tmp_path / "shuffled"), judge=shuffled)
    true, other = (rewards(tmp_path / name) for name in ("true", "shuffled"))
    assert sum(true[-5:]) / 5 > true[0] + 0.3
    assert sum(other[-5:]) / 5 < other[0] + 0.1


def test_a_run_that_was_stopped_ends_with_the_same_writer(warm: Path, tmp_path: Path) -> None:
    plan = toy_plan(steps=6, algorithm="reinforce")
    whole = train(plan, begun(warm, tmp_path / "whole"))
    looks = iter([False, False, False, True, False, False, False])
    assert train(plan, begun(warm, tmp_path / "parts"), stop=lambda: next(looks)) is None
    parts = train(plan, tmp_path / "parts")
    assert whole is not None and parts is not None
    assert (whole / "model.safetensors").read_bytes() == (parts / "model.safetensors").read_bytes()
    assert rewards(tmp_path / "whole") == rewards(tmp_path / "parts")
    assert not (tmp_path / "parts" / "state").exists()


def test_episodes_of_one_task_are_a_group_and_a_failed_one_has_no_reward() -> None:
    tasks = [make_task("expense_audit", 1), make_task("expense_audit", 2), make_task("release_notes", 1)]
    attempts = [Attempt(task, TokenRow([1], [True], [0.0]), (), "", None) for task in tasks for _ in "ab"]
    found = trajectories(attempts, [RubricReward(float(n)) for n in range(5)] + [RubricReward(None)])
    groups = [one.group for one in found]
    assert groups[0::2] == groups[1::2] and len(set(groups)) == 3
    assert [one.reward for one in found] == [0, 1, 2, 3, 4, None]
    assert [one.task_type for one in found[::2]] == ["expense_audit", "expense_audit", "release_notes"]


def test_the_learning_rate_falls_in_a_line_to_a_tenth(
    warm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates: list[float] = []

    def learned(learner: Learner, algorithm: Any, scored: Any) -> None:
        rates.append(learner.stepper.learning_rate)

    monkeypatch.setattr(training, "_learned", learned)
    train(toy_plan(steps=4, learning_rate=1e-2), begun(warm, tmp_path))
    assert rates == pytest.approx([1e-2, 7e-3, 4e-3, 1e-3])


def test_a_step_that_is_not_finite_ends_the_run_with_a_sentence(warm: Path, tmp_path: Path) -> None:
    def huge(attempts: Sequence[Attempt]) -> list[RubricReward]:
        return [RubricReward(3e38 if n % 2 else 0.0) for n in range(len(attempts))]

    with pytest.raises(TrainingError, match="was not finite: lower the learning rate"):
        train(toy_plan(steps=1), begun(warm, tmp_path), judge=huge)


def test_a_folder_with_another_plan_is_refused(warm: Path) -> None:
    with pytest.raises(ConfigError, match="another plan"):
        train(toy_plan(steps=1), warm)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"algorithm": "magic"}, "no algorithm 'magic'"),
        ({"algorithm": "ppo"}, "needs a critic"),
        ({"group_size": 1}, "group_size = 1"),
        ({"questions": 4}, "questions = 4"),
        ({"learning_rate": float("inf")}, "learning_rate = inf"),
        ({"options": {"type": "grpo"}}, "give it as algorithm"),
    ],
)
def test_an_impossible_plan_is_refused_in_a_sentence(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Plan(**change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"warmth": 3}, "no setting warmth"),
        ({"group_sise": 3}, "did you mean group_size?"),
        ({"warm_start": {"step": 3}}, r"warm_start\.step: did you mean steps?"),
        ({"notes": "no"}, "notes of a rubrics run is 'no': give true or false"),
        ({"group_size": 2.5}, "group_size of a rubrics run is 2.5: give a whole number"),
        ({"seed": None}, "seed of a rubrics run is None: give a whole number"),
        ({"steps": True}, "steps of a rubrics run is True: give a whole number"),
        ({"learning_rate": "1"}, "give a number"),
        ({"families": "expense_audit"}, "give a list of names"),
        ({"families": [3]}, "give a list of names"),
        ({"options": 3}, "options of a rubrics run is 3: give an object"),
        ({"warm_start": 3}, "warm_start of a rubrics run is 3: give one of its settings"),
        ({"size": {"heads": 3}}, "heads = 3 is out of range"),
        ({"size": {"layers": 0}}, "layers = 0 is out of range"),
        ({"warm_start": {"care": {"informed": 7}}}, "informed = 7.0 is out of range"),
    ],
)
def test_a_value_that_a_plan_cannot_have_is_refused_in_a_sentence(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Plan.from_dict(values)


def test_a_folder_that_may_not_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Path.open

    def refused(path: Path, mode: str = "r", *more: Any, **options: Any) -> Any:
        if tmp_path in path.parents and mode != "r":
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, mode, *more, **options)

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(ConfigError, match=r"plan\.json cannot be written \(Read-only file system\)"):
        train(toy_plan(), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["warm_state", "state"])
def test_a_saved_state_that_is_no_folder_is_one_sentence(warm: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run" if name == "warm_state" else begun(warm, tmp_path / "run")
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("")
    with pytest.raises(ConfigError, match=rf"since \S*/{name}/CURRENT cannot be used \(Not a directory\)"):
        train(toy_plan(steps=1), folder)


def test_a_damaged_plan_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(ConfigError, match="is damaged: start the run anew in another folder"):
        train(toy_plan(), tmp_path)


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    plan = toy_plan(algorithm="grpo", options={"normalise_std": False})
    plan.write(tmp_path)
    assert Plan.read(tmp_path) == plan
    assert Plan.from_dict({"learning_rate": 1, "families": ["expense_audit"]}) == Plan(
        learning_rate=1.0, families=("expense_audit",)
    )


def test_a_writer_writes_the_same_rubric_again_and_asks_whom_it_is_given(warm: Path) -> None:
    writer, task = load_writer(warm / "writer"), make_task("expense_audit", 5)
    asked: list[str] = []

    def ask(topic: str) -> str:
        asked.append(topic)
        return "Sources come first."

    first = writer.write(task)
    assert isinstance(first, Rubric) and first == writer.write(task)
    assert set(first.checks) <= set(task.active)
    one = writer.attempt([task], ask, temperature=1.0, seed=3)[0]
    assert list(one.questions) == asked


def test_a_writer_from_before_the_notes_writes_without_them(warm: Path, tmp_path: Path) -> None:
    folder = tmp_path / "writer"
    shutil.copytree(warm / BASE, folder)
    facts = json.loads((folder / "writer.json").read_text())
    assert facts.pop("notes") is True
    (folder / "writer.json").write_text(json.dumps(facts))
    writer = load_writer(folder)
    assert writer.attempt([make_task("expense_audit", 7)])[0].notes == ""


def test_a_text_that_is_no_rubric_is_an_error_with_its_reason(
    warm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episodes, "parse", refuse)
    with pytest.raises(InvalidRubric, match="no rubric"):
        load_writer(warm / "writer").write(make_task("expense_audit", 5))


def refuse(text: str, checks: object) -> Rubric:
    raise InvalidRubric("This is no rubric: write one.")


def test_a_folder_without_a_writer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no writer\.json"):
        load_writer(tmp_path)
    for damaged in ("{", "[]", '{"base": null}'):
        (tmp_path / "writer.json").write_text(damaged)
        with pytest.raises(ConfigError, match=r"has an unreadable writer\.json"):
            load_writer(tmp_path)
