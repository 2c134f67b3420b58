"""Job folders for a child in this process, and a policy that chooses either arm half of the time."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from job_world import Events, MakeJob

import onward.lm  # noqa: F401  (before torch: it makes waiting threads passive)
from onward import plotting
from onward.lm.chat import Chat
from onward.lm.policy import Policy
from onward.lm.sft import fit
from onward.lm.tiny import build_tiny
from onward.lm.tokens import TokenRow
from onward.training.data import conversations
from onward.training.job import worker
from onward.training.spec.request import JobSpec

SMALL: dict[str, Any] = {"hidden": 32, "layers": 2, "heads": 2, "kv_heads": 1, "intermediate": 64}


@pytest.fixture
def pictures() -> None:
    """Lets the jobs of a test draw their curves, which takes most of a short job's time."""


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Events:
    """What a job in this process says. It draws its curves if the test asks for ``pictures``."""
    said: Events = []
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(plotting, "save", lambda *_, **__: [])
    monkeypatch.setattr(worker, "emit", lambda event, **facts: said.append({"event": event, **facts}))
    monkeypatch.setattr(worker, "die_with_parent", lambda: None)
    monkeypatch.setattr(worker.Stop, "listen", lambda self: None)
    return said


@pytest.fixture(scope="session")
def arms_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network that says left or right with probability one half in each of two turns."""
    import torch

    torch.set_num_threads(1)
    texts = ["Choose.", "left or right", "left", "right", "system\n", "user\n", "assistant\n"] * 40
    policy = Policy.load(build_tiny(tmp_path_factory.mktemp("arms"), texts, vocab=300, **SMALL))
    chat = Chat(policy.tokenizer)
    start = [{"role": "system", "content": "Choose."}, {"role": "user", "content": "left or right"}]
    rows = [
        conversations.token_row(
            chat,
            [*start, {"role": "assistant", "content": a}, start[1], {"role": "assistant", "content": b}],
        )
        for a, b in itertools.product(("left", "right"), repeat=2)
    ] * 4
    # cues that decide: without them both words get the same embedding, and no adapter could choose
    rows += [
        TokenRow([cue, *chat.encode(word)], [False, True], [0.0] * 2)
        for cue, word in ((30, "left"), (31, "right"))
    ] * 8
    for _ in fit(policy, None, rows, learning_rate=1e-2, batch_rows=16, epochs=40):
        pass
    warm = tmp_path_factory.mktemp("warm-arms")
    policy.save(warm)
    return warm


@pytest.fixture
def make_job(tmp_path: Path, arms_base: Path) -> MakeJob:
    """A job folder with ``spec.json``; keyword arguments are fields of the spec."""
    numbers = itertools.count()

    def make(**changes: Any) -> Path:
        folder = tmp_path / f"run-{next(numbers)}"
        folder.mkdir()
        values: dict[str, Any] = {
            "job_id": "job-1", "epoch": 1, "algorithm": "reinforce", "base_model": "tiny",
            "model_folder": str(arms_base), "start_digest": None, "learning_rate": 1e-2, "epochs": 1,
            "batch_rows": 4, "clip_epsilon": 0.2, "lora_rank": 4, "lora_alpha": 8.0,
            "first_lora_layer": 0.0, "normaliser": "token", "return_from": "outcome",
            "unparsable_penalty": 0.0, "standardise": False, "negative_weight": 1.0, "kl_coef": 0.0,
            "seed": 0, "threads": 1, **changes,
        }  # fmt: skip
        (folder / "spec.json").write_text(JobSpec.model_validate(values).model_dump_json())
        return folder

    return make
