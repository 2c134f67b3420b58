"""``onward demo --model FOLDER``: a model that Onward did not make goes through the whole loop.

The network is random and its weights are trained for a while on demonstrations, as those of ``tiny`` are.
What is asked for is a released adapter, not a rise of success; so amounts are as small as the loop takes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path

import pytest
from rich.console import Console

from onward.demo import evaluate, run, settings
from onward.envs import desk
from onward.lm import sft
from onward.lm.chat import Chat
from onward.lm.model_path import path_of
from onward.lm.policy import Policy
from onward.training.data import conversations
from onward.training.spec import recipes
from onward.training.warm_start import desk_base

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]
FAMILIES = ("llama", "qwen2", "qwen3", "gemma2")
STEPS, ROWS = 80, 20
TASKS = 20
"""Held-out tasks of a test, and tasks of the validation."""
PACE = settings.Pace(trajectories=64, steps=((0.5, 60, 8),), test_panels=1)
MATURE_SECONDS = 4.0
"""Seconds after which a session that is still under way counts as one without an error."""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_users_folder_runs_to_a_released_adapter(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _trained(_random(family, tmp_path / "random"), tmp_path / "mine")
    config = json.loads((folder / "config.json").read_text())
    assert (config["model_type"], path_of(config).name) == (family, "fast")
    recipe = recipes.for_model(str(folder))
    plan = dataclasses.replace(recipe.warm_up, first_check=2, max_steps=2, groups=2)
    small = dataclasses.replace(recipe, warm_up=plan, threads=1, session_seconds=MATURE_SECONDS)
    monkeypatch.setitem(recipes.RECIPES, str(folder), small)
    monkeypatch.setitem(settings.PACES, str(folder), PACE)
    monkeypatch.setattr(evaluate, "TASKS", TASKS)
    options = run.Options(model=str(folder), cycles=1, folder=tmp_path / "demo", seed=3)
    demonstration = run.Demonstration(options, Console(quiet=True))
    validation = demonstration.settings.validation.model_copy(update={"size": TASKS})
    demonstration.settings = demonstration.settings.model_copy(update={"validation": validation})
    result = asyncio.run(demonstration.run())
    (cycle,) = result.cycles
    assert cycle.trajectories >= PACE.trajectories
    assert cycle.decision == "promoted", cycle.reason
    assert result.current_model == cycle.candidate
    assert (result.lost, result.duplicates) == (0, 0)


def _random(family: str, folder: Path) -> Path:
    """Makes a random network of this family with the tokenizer of the tiny model."""
    desk_base.build(folder)
    if family == "llama":
        return folder
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = AutoConfig.from_pretrained(folder)
    config = AutoConfig.for_model(
        family,
        vocab_size=sizes.vocab_size, hidden_size=96, num_hidden_layers=2, num_attention_heads=3,
        num_key_value_heads=3, head_dim=32, intermediate_size=256, max_position_embeddings=2048,
        bos_token_id=sizes.bos_token_id, eos_token_id=sizes.eos_token_id, pad_token_id=sizes.pad_token_id,
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def _trained(random: Path, folder: Path) -> Path:
    """Trains all weights on demonstrations with mistakes, as the warm start of ``tiny`` does."""
    policy = Policy.load(random)
    chat = Chat(policy.tokenizer)
    talks = desk.demonstrations(200, 0, 0.5)
    rows = [conversations.token_row(chat, talk, known=True) for talk in talks] * (STEPS * ROWS // 200)
    for _ in sft.fit(policy, None, rows, learning_rate=3e-3, batch_rows=ROWS, warmup_steps=10, seed=0):
        pass
    policy.save(folder)
    return folder
