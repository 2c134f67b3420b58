"""The warm start: what it leaves behind, that it stops where it should, and that learning goes on from it."""

import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from onward.envs import desk
from onward.errors import ConfigError, TrainingError
from onward.lm.chat import Chat
from onward.lm.policy import Policy
from onward.training import checkpoints
from onward.training.data import conversations
from onward.training.spec import recipes
from onward.training.warm_start import desk_attempts, desk_base
from onward.training.warm_start.warmup import WarmUpResult, warm_up

pytestmark = pytest.mark.slow

TINY = recipes.for_model("tiny")


def short(**numbers: object) -> recipes.Recipe:
    plan = replace(TINY.warm_up, first_check=2, check_every=1, max_steps=3, groups=1, window=(0.0, 1.0))
    return replace(TINY, warm_up=replace(plan, **numbers))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return desk_base.build(tmp_path_factory.mktemp("base") / "tiny", seed=0)


def test_every_value_of_the_desk_is_one_token_wherever_it_stands(base: Path) -> None:
    chat = Chat(Policy.load(base).tokenizer)
    for value in ("Mara", "24", "monday", "budget", "travel", "lamp"):
        (alone,) = chat.encode(value)
        for text in (f"what is {value}?", f'{{"text": "{value}"}}', f"Result: {value}", f"note {value} and"):
            assert alone in chat.encode(text), (value, text)
            assert chat.tokenizer.decode(chat.encode(text)) == text


def test_tiny_has_about_a_million_parameters_and_short_calls(base: Path) -> None:
    policy = Policy.load(base)
    chat = Chat(policy.tokenizer)
    assert 0.8e6 < sum(t.numel() for t in policy.weights.tensors()) < 1.2e6
    for task in desk.tasks("test", 100):
        for answer in desk.solve(task):
            assert len(chat.encode(answer)) + 1 <= 10 < TINY.max_tokens


def test_demonstration_row_trains_the_answers_and_their_ends_only(base: Path) -> None:
    chat = Chat(Policy.load(base).tokenizer)
    for told in desk.demonstrations(10):
        talk: list[dict[str, Any]] = [dict(message) for message in told]
        row = conversations.token_row(chat, told, known=True)
        trained = [i for i, sampled in zip(row.ids, row.sampled, strict=True) if sampled]
        answers = [m["content"] for m in talk if m["role"] == "assistant"]
        assert trained == [i for a in answers for i in [*chat.encode(a), chat.end_of_turn]]
        assert row.ids[: len(chat.render(talk[:2]))] == chat.render(talk[:2])


def test_result_is_a_verified_zero_adapter_over_trained_weights_and_repeats(tmp_path: Path) -> None:
    events: list[str] = []
    first = warm_up(
        "tiny",
        tmp_path / "a",
        seed=3,
        threads=1,
        recipe=short(),
        emit=lambda event, **_: events.append(event),
    )
    manifest = checkpoints.verify(first.adapter_folder)
    policy = Policy.load(first.base_folder)
    assert manifest.adapter_digest == first.adapter_digest
    assert manifest.base_digest == policy.base_digest
    adapter = policy.add_adapter("v0", first.adapter_folder)
    assert all(not p.any() for name, p in adapter.params.items() if "lora_B" in name)
    assert first.steps == 2 and {"stage", "progress", "check"} <= set(events)
    second = warm_up("tiny", tmp_path / "b", seed=3, threads=1, recipe=short())
    assert second.adapter_digest == first.adapter_digest
    assert Policy.load(second.base_folder).base_digest == policy.base_digest


def test_a_window_that_is_never_reached_is_a_convergence_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="did not reach 80% to 90%") as caught:
        warm_up("tiny", tmp_path, threads=1, recipe=short(window=(0.8, 0.9)))
    assert caught.value.code == "CONVERGENCE"


def test_other_models_need_a_base_and_get_an_adapter(tmp_path: Path, base: Path) -> None:
    with pytest.raises(ConfigError, match="--base"):
        warm_up("mine", tmp_path)
    recipe = replace(short(), first_lora_layer=0.5)
    before = Policy.load(base).base_digest
    result = warm_up("mine", tmp_path, base=base, threads=1, recipe=recipe)
    policy = Policy.load(base)
    adapter = policy.add_adapter("v0", result.adapter_folder)
    assert policy.base_digest == before
    assert adapter.layers == [2, 3]
    assert any(p.any() for name, p in adapter.params.items() if "lora_B" in name)


def test_child_speaks_json_lines_and_fails_with_one_sentence(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "onward.training.warm_start.warmup",
        "--json",
        "--model",
        "mine",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert lines[-1]["event"] == "failed" and "--base" in lines[-1]["message"]


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> WarmUpResult:
    return warm_up("tiny", tmp_path_factory.mktemp("warmed"), seed=0, threads=1)


@pytest.mark.long
def test_v0_of_tiny_is_a_start_from_which_learning_is_possible(warmed: WarmUpResult) -> None:
    assert 0.2 <= warmed.success <= 0.4
    assert sum(0.05 <= rate <= 0.8 for rate in warmed.by_kind.values()) >= 3
    assert warmed.mixed_share >= 0.4


@pytest.mark.long
@pytest.mark.parametrize("shuffled", [False, True])
def test_success_rises_by_reinforcement_and_not_with_shuffled_rewards(
    warmed: WarmUpResult, shuffled: bool
) -> None:
    from onward.lm.advantages import RunningBaseline
    from onward.lm.learner import Learner, LearnerConfig

    torch.set_num_threads(1)
    policy = Policy.load(warmed.base_folder)
    policy.add_adapter("a", warmed.adapter_folder)
    panel = [task for seed in (0, 1) for task in desk.tasks("test", 100, seed)]

    def test_success() -> float:
        return desk_attempts.success(
            desk_attempts.attempt(policy, "a", panel, max_tokens=TINY.max_tokens, seed=7)
        )

    baseline, start = RunningBaseline(), test_success()
    for cycle in (1, 2):
        found = desk_attempts.attempt(
            policy, "a", desk.tasks("train", 256, cycle), max_tokens=TINY.max_tokens, seed=cycle
        )
        returns = [one.outcome.completion for one in found]
        if shuffled:
            random.Random(cycle).shuffle(returns)
        values = baseline.advantages(returns, [one.task.kind for one in found])
        scale = (sum(v * v for v in values) / len(values)) ** 0.5
        config = LearnerConfig(
            learning_rate=TINY.learning_rate,
            epochs=TINY.epochs,
            minibatch_rows=TINY.batch_size,
            clip_epsilon=TINY.clip_epsilon,
            normaliser=TINY.normaliser,
            seed=cycle,
        )
        list(Learner(policy, "a", config).update([one.row for one in found], [v / scale for v in values]))
    rise = test_success() - start
    assert rise <= 0.1 if shuffled else rise >= 0.15
