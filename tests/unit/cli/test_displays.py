"""The progress displays of train and control on terminals of 80, 100 and 160 columns."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from onward.cli import control_display, train_display

CONTROL_ROW = {
    "return_mean": 134.2, "episodes": 1234, "steps_per_second": 12_345.0, "share_env": 0.2, "share_act": 0.3,
    "share_update": 0.4, "share_evaluate": 0.1,
}  # fmt: skip
TRAIN_METRICS = {
    "reward_mean": 0.52,
    "success_rate": 0.47,
    "loss": 0.123,
    "kl_divergence": 0.0042,
    "ess": 0.97,
}


def shown(console: Console) -> str:
    """All that was written to the terminal, without control codes."""
    assert isinstance(console.file, io.StringIO)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", console.file.getvalue())


def last_line(console: Console) -> str:
    """The line that a finished bar left on the terminal."""
    return [line for line in shown(console).splitlines() if line.startswith(("seed 7", "grpo"))][-1]


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Console:
    made = Console(width=request.param, height=24, force_terminal=True, color_system=None, file=io.StringIO())
    for module in (train_display, control_display):
        monkeypatch.setattr(module, "Console", lambda **_: made)
    return made


@pytest.mark.parametrize(
    ("console", "note"),
    [
        (80, "34% · return 134.2 · greedy 200.0 …"),
        (100, "34% · return 134.2 · greedy 200.0 · 1,234 episodes …"),
        (
            160,
            "34% · return 134.2 · greedy 200.0 · 1,234 episodes · 12,345 steps/s · "
            "env 20% act 30% update 40% evaluate 10%",
        ),
    ],
    indirect=["console"],
)
def test_control_shows_seed_bar_share_metrics_and_time(console: Console, note: str) -> None:
    with control_display.Display(as_json=False) as display:
        display.show_event(
            {"event": "started", "seed": 7, "total": 1000, "step": 0, "resumed": False, "differences": []}
        )
        display.show_event({"event": "evaluated", "seed": 7, "eval_return": 200.0})
        display.show_event({"event": "row", "seed": 7, "step": 340, "row": CONTROL_ROW})
        display.show_event({"event": "done", "seed": 7, "summary": {}})
    line = last_line(console)
    assert line.startswith("seed 7 ━━")
    assert note in line
    assert "0:00" in line
    assert len(line.rstrip()) <= console.width


@pytest.mark.parametrize(
    ("console", "note"),
    [
        (80, "34/100 · reward 0.52 · success 0.47 · loss 0.123 …"),
        (100, "34/100 · reward 0.52 · success 0.47 · loss 0.123 · KL 0.0042 …"),
        (160, "34/100 · reward 0.52 · success 0.47 · loss 0.123 · KL 0.0042 · ESS 0.97"),
    ],
    indirect=["console"],
)
def test_train_shows_algorithm_bar_step_metrics_and_time(console: Console, note: str, tmp_path: Path) -> None:
    class Spec:
        algorithm, base_model = "grpo", "tiny"

    spec: Any = Spec()
    with train_display.Display(tmp_path, spec, as_json=False) as display:
        display.show_event(
            {"event": "progress", "step": 34, "total_steps": 100, "elapsed": 5.0, "metrics": TRAIN_METRICS}
        )
    line = last_line(console)
    assert line.startswith("grpo ━━")
    assert note in line
    assert "0:00" in line
    assert len(line.rstrip()) <= console.width


@pytest.mark.parametrize("console", [160], indirect=True)
def test_train_shows_why_a_model_runs_by_transformers(console: Console, tmp_path: Path) -> None:
    class Spec:
        algorithm, base_model = "rloo", "mine"

    spec: Any = Spec()
    loaded = {"event": "stage", "name": "loaded", "reason": "its model_type is 'gpt2'", "notes": ["Look."]}
    with train_display.Display(tmp_path, spec, as_json=False) as display:
        display.show_event({**loaded, "path": "fast"})
        assert "gpt2" not in shown(console)
        display.show_event({**loaded, "path": "transformers"})
    assert "runs by the modules of transformers, the slower path: its model_type is 'gpt2'." in shown(console)
    assert "Look." in shown(console)


def test_without_a_terminal_each_seed_has_plain_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = io.StringIO()
    monkeypatch.setattr(control_display, "Console", lambda **_: Console(width=80, file=out))
    with control_display.Display(as_json=False) as display:
        display.show_event(
            {"event": "started", "seed": 7, "total": 1000, "step": 0, "resumed": False, "differences": []}
        )
        display.show_event({"event": "row", "seed": 7, "step": 340, "row": {**CONTROL_ROW, "share_act": 0.0}})
    assert out.getvalue().startswith(
        "seed 7 340/1,000 34% · return 134.2 · 1,234 episodes · 12,345 steps/s · env 20% update 40%"
    )
