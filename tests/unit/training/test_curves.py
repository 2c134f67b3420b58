"""The curves of a run, read back as the tools that show them read them."""

import json
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from onward.training.curves import LINES, Curves


def _read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_shows_each_step_once_also_after_a_resume_that_does_steps_again(tmp_path: Path) -> None:
    first = Curves(tmp_path)
    for step in (1, 2, 3):
        first.add(step, {"loss": step / 4, "unscored": 0, "note": "no number"})
    first.close()
    assert _read(tmp_path) == {
        "train/loss": [(1, 0.25), (2, 0.5), (3, 0.75)],
        "train/unscored": [(1, 0.0), (2, 0.0), (3, 0.0)],
    }
    again = Curves(tmp_path)
    again.start_at(1)  # the saved state was of step 1
    for step in (2, 3):
        again.add(step, {"loss": 10.0 * step})
    again.close()
    assert _read(tmp_path)["train/loss"] == [(1, 0.25), (2, 20.0), (3, 30.0)]
    lines = [json.loads(line) for line in (tmp_path / LINES).read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 0.25), (2, 20.0), (3, 30.0)]


def test_without_tensorboard_the_other_curves_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    curves = Curves(tmp_path)
    curves.add(1, {"loss": 1.0})
    curves.close()
    assert [path.name for path in curves.write()] == ["metrics.csv"]
    assert not list(tmp_path.glob("events*"))
