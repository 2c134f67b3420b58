"""The curves of a run, read back as the tools that show them read them."""

import json
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from onward.plotting import LIGHT
from onward.training.job.curves import LINES, Curves, _figure, finding


def _read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def test_tensorboard_shows_each_step_once_also_after_a_resume_that_does_steps_again(tmp_path: Path) -> None:
    first = Curves(tmp_path)
    for step in (1, 2, 3):
        first.add_step(step, {"loss": step / 4, "unscored": 0, "note": "no number"})
    first.close()
    assert _read(tmp_path) == {
        "train/loss": [(1, 0.25), (2, 0.5), (3, 0.75)],
        "train/unscored": [(1, 0.0), (2, 0.0), (3, 0.0)],
    }
    again = Curves(tmp_path)
    again.start_at(1)  # the saved state was of step 1
    for step in (2, 3):
        again.add_step(step, {"loss": 10.0 * step})
    again.close()
    assert _read(tmp_path)["train/loss"] == [(1, 0.25), (2, 20.0), (3, 30.0)]
    lines = [json.loads(line) for line in (tmp_path / LINES).read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 0.25), (2, 20.0), (3, 30.0)]


def test_the_picture_states_how_success_went_and_has_a_dark_version(tmp_path: Path) -> None:
    curves = Curves(tmp_path)
    for step in range(1, 21):
        curves.add_step(step, {"loss": 1.0, "success_rate": 0.25 if step < 11 else 0.75, "scored": 32})
    curves.close()
    assert finding(curves.rows) == "Success rate 0.25 → 0.75 in 20 steps"
    assert finding([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}]) == "Loss 2.00 → 1.50 in 2 steps"
    assert [path.name for path in curves.write(dark=True)] == ["metrics.csv", "curves.png", "curves-dark.png"]


def test_success_is_drawn_from_0_to_1_with_its_95_percent_interval(tmp_path: Path) -> None:
    """8 of 10: by Wilson 0.4902 to 0.9433."""
    rows = [{"step": step, "success_rate": 0.8, "scored": 10, "reward_mean": 3.0} for step in (1, 2)]
    figure = _figure(rows, ["reward_mean", "success_rate"], LIGHT)
    reward, success = figure.axes
    assert success.get_ylim() == (-0.02, 1.02)
    assert reward.get_ylim()[1] > 2.0
    band = success.collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((0.4902, 0.9433), abs=5e-5)


def test_without_tensorboard_the_other_curves_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.event_file_writer", None)
    curves = Curves(tmp_path)
    curves.add_step(1, {"loss": 1.0})
    curves.close()
    assert [path.name for path in curves.write()] == ["metrics.csv"]
    assert not list(tmp_path.glob("events*"))
