"""What is written to metrics.csv and TensorBoard can be read back, and a resumed run tells no step twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onward.control.running.log import Csv, Log, Means, Times, read_rows, tag


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """By TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder))
    reader.Reload()
    return {t: [(e.step, e.value) for e in reader.Scalars(t)] for t in reader.Tags()["scalars"]}


def test_a_row_is_read_back_from_both_files(tmp_path: Path) -> None:
    log = Log(tmp_path)
    log.write({"step": 10.0, "return_mean": 1.5, "policy_loss": 0.1})
    log.write({"step": 20.0, "return_mean": 2.5, "eval_return": 7.0})
    log.close()
    assert read_rows(tmp_path / "metrics.csv") == [
        {"step": 10.0, "return_mean": 1.5, "policy_loss": 0.1},
        {"step": 20.0, "return_mean": 2.5, "eval_return": 7.0},
    ]
    assert scalars(tmp_path) == {
        "rollout/return_mean": [(10, 1.5), (20, 2.5)],
        "train/policy_loss": [(10, pytest.approx(0.1))],
        "eval/eval_return": [(20, 7.0)],
    }


def test_every_digit_of_a_number_is_kept(tmp_path: Path) -> None:
    table = Csv(tmp_path / "m.csv")
    table.write({"step": 1.0, "x": 0.1 + 0.2})
    table.close()
    assert read_rows(tmp_path / "m.csv")[0]["x"] == 0.1 + 0.2


def test_a_resumed_log_cuts_off_what_comes_after_its_step(tmp_path: Path) -> None:
    log = Log(tmp_path)
    for step in (10.0, 20.0, 30.0):
        log.write({"step": step, "x": step})
    log.close()
    log = Log(tmp_path, step=20)
    log.write({"step": 30.0, "x": -30.0})
    log.close()
    rows = read_rows(tmp_path / "metrics.csv")
    assert [(row["step"], row["x"]) for row in rows] == [(10, 10), (20, 20), (30, -30)]
    assert scalars(tmp_path)["train/x"] == [(10, 10.0), (20, 20.0), (30, -30.0)]


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("step,x,y\n1,2,3\n4,5")
    assert read_rows(tmp_path / "m.csv") == [{"step": 1.0, "x": 2.0, "y": 3.0}]


def test_a_new_column_keeps_the_earlier_rows(tmp_path: Path) -> None:
    table = Csv(tmp_path / "m.csv")
    table.write({"step": 1.0})
    table.write({"step": 2.0, "late": 3.0})
    table.close()
    assert (tmp_path / "m.csv").read_text().splitlines() == ["step,late", "1.0,", "2.0,3.0"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("return_mean", "rollout/return_mean"), ("episodes", "rollout/episodes"),
        ("eval_success", "eval/eval_success"), ("share_env", "time/share_env"),
        ("steps_per_second", "time/steps_per_second"), ("value_loss", "train/value_loss"),
    ],
)  # fmt: skip
def test_metrics_are_grouped(name: str, expected: str) -> None:
    assert tag(name) == expected


def test_means_are_over_the_updates_since_the_last_row_and_survive_a_save() -> None:
    means = Means()
    means.add({"loss": 1.0, "kl": 4.0})
    means.add({"loss": 3.0})
    again = Means(means.state_dict())
    again.add({"loss": 5.0})
    assert means.take() == {"loss": 2.0, "kl": 4.0}
    assert means.take() == {}
    assert again.take() == {"loss": 3.0, "kl": 4.0}


def test_times_go_on_from_earlier_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 101.0, 103.0, 110.0])
    monkeypatch.setattr("onward.control.running.log.time", _Clock(clock))
    times = Times({"total": 30.0, "env": 10.0})
    with times.of("update"):
        pass
    shares = times.shares()
    assert shares["share_env"] == pytest.approx(10 / 40)
    assert shares["share_update"] == pytest.approx(2 / 40)
    assert shares["share_other"] == pytest.approx(28 / 40)


class _Clock:
    def __init__(self, ticks: Any) -> None:
        self.perf_counter = lambda: next(ticks)
        self.process_time = lambda: 0.0
