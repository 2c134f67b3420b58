"""The warm start of a run: it goes on after a kill or a stop, and ends with the same policy."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rubric_writer import toy_plan

from onward.errors import ConfigError, TrainingError
from onward.files import locked_folder
from onward.lm.tiny import build_tiny
from onward.rubrics.policy.plan import Plan, WarmStart
from onward.rubrics.policy.training import BASE, WARM_STATE, train
from onward.rubrics.policy.writer import load_writer
from onward.rubrics.tasks import make_task

DEMONSTRATIONS = WarmStart(demonstrations=64, steps=12, batch_rows=8, learning_rate=1e-2)
"""One and a half times over the demonstrations, so that a second pass has begun before the end."""
KILLED = 10
"""Step after which the process is killed, in the second pass. Its last saved state is that of step 9."""


def plan() -> Plan:
    return toy_plan(steps=0, save_every=3, warm_start=DEMONSTRATIONS)


def adapter_plan(model: Path) -> Plan:
    few = replace(DEMONSTRATIONS, demonstrations=8, steps=4, batch_rows=4)
    return toy_plan(model=str(model), steps=0, save_every=1, lora_rank=2, warm_start=few)


def weights(folder: Path, name: str = "model") -> bytes:
    return (folder / BASE / f"{name}.safetensors").read_bytes()


class Seen:
    """Events of a run, and a stop after the step ``last`` of its warm start."""

    def __init__(self, last: int = 0) -> None:
        self.last, self.steps, self.made = last, list[int](), list[int]()

    def __call__(self, event: str, **facts: Any) -> None:
        if event == "warm_start":
            self.steps.append(facts["step"])
        elif event == "demonstrations":
            self.made.append(facts["step"])

    def stop(self) -> bool:
        return bool(self.steps) and self.steps[-1] == self.last


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    train(plan(), folder)
    return folder


def test_a_warm_start_that_was_killed_goes_on_and_ends_with_the_same_weights(
    whole: Path, tmp_path: Path
) -> None:
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from onward.rubrics.policy.plan import Plan\n"
        "from onward.rubrics.policy.training import train\n"
        "folder = Path(sys.argv[1])\n"
        "def emit(event, **facts):\n"
        f"    if event == 'warm_start' and facts['step'] == {KILLED}:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "train(Plan.read(folder), folder, emit=emit)\n"
    )
    plan().write(tmp_path)
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, capture_output=True)
    assert done.returncode == -9, done.stderr
    assert not (tmp_path / BASE).exists()
    seen = Seen()
    train(plan(), tmp_path, emit=seen)
    assert seen.steps == [10, 11, 12]
    assert weights(tmp_path) == weights(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in whole.iterdir())


def test_a_stop_in_the_warm_start_saves_at_once_and_the_next_run_goes_on(whole: Path, tmp_path: Path) -> None:
    first, then = Seen(last=5), Seen()
    assert train(plan(), tmp_path, emit=first, stop=first.stop) is None
    assert first.steps == [1, 2, 3, 4, 5] and first.made == [64]
    assert train(plan(), tmp_path, emit=then) is not None
    assert then.steps == list(range(6, 13))
    assert weights(tmp_path) == weights(whole)
    assert not (tmp_path / WARM_STATE).exists()


def test_an_adapter_of_another_model_goes_on_too_and_writes_rubrics(tmp_path: Path) -> None:
    """Its vocabulary is not closed, so the grammars are those of the parser."""
    corpus = [
        '{"criteria": [{"check": "has_section", "arg": "summary", "weight": 1}]} ask accuracy helps none'
    ]
    model = build_tiny(
        tmp_path / "m", corpus, vocab=320, hidden=16, layers=1, heads=2, kv_heads=1, max_positions=4096
    )
    asked, stopped = adapter_plan(model), Seen(last=2)
    train(asked, tmp_path / "whole")
    assert train(asked, tmp_path / "parts", stop=stopped.stop, emit=stopped) is None
    train(asked, tmp_path / "parts")
    assert weights(tmp_path / "whole", "adapter_model") == weights(tmp_path / "parts", "adapter_model")
    assert set(load_writer(tmp_path / "parts" / "writer").write(make_task("expense_audit", 5)).checks)


def test_a_warm_start_whose_steps_are_not_finite_ends_with_a_sentence(tmp_path: Path) -> None:
    bad = replace(plan(), warm_start=replace(DEMONSTRATIONS, learning_rate=1e30))
    with pytest.raises(TrainingError, match=r"lower warm_start\.learning_rate"):
        train(bad, tmp_path)


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    with locked_folder(tmp_path, "busy"), pytest.raises(ConfigError, match="Another process trains"):
        train(plan(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_stop_in_the_last_step_of_the_warm_start_leaves_the_base(tmp_path: Path) -> None:
    """The first step of learning is taken and saved too."""
    events: list[str] = []
    asked = toy_plan(steps=2, warm_start=replace(DEMONSTRATIONS, steps=2, demonstrations=16))
    assert train(asked, tmp_path, stop=lambda: True) is None
    assert train(asked, tmp_path, stop=lambda: True, emit=lambda event, **_: events.append(event)) is None
    assert [one for one in events if one != "demonstrations"] == ["warm_start", "step"]
    assert (tmp_path / BASE / "writer.json").is_file()
