"""Curves over seeds: what the band holds, and that a picture comes out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from onward.control.core.config import PPOConfig
from onward.control.running.curves import _finding, _groups, band, draw
from onward.control.running.log import Csv
from onward.control.running.runs import Folder, RunConfig, write_json
from onward.errors import ControlError


def rows(*points: tuple[float, float]) -> list[dict[str, float]]:
    return [{"step": step, "eval_return": value} for step, value in points]


def test_seeds_are_compared_at_equal_steps() -> None:
    """One evaluated at 0, 10, the other at 0, 5, 10: lines between their own points."""
    found = band([rows((0, 0), (10, 10)), rows((0, 0), (5, 20), (10, 20))], "eval_return")
    assert found is not None
    at = np.searchsorted(found.steps, 2.5)
    step = found.steps[at]
    np.testing.assert_allclose(found.seeds[:, at], [step, 4 * step])
    np.testing.assert_allclose(found.middle[at], 2.5 * step)


def test_the_middle_is_the_interquartile_mean() -> None:
    """Of 0, 1, 2, 3, 100 the smallest and the largest go: (1 + 2 + 3) / 3."""
    found = band([rows((0, v), (10, v)) for v in (100, 0, 1, 3, 2)], "eval_return")
    assert found is not None
    np.testing.assert_allclose(found.middle, 2.0)


def test_a_seed_that_was_solved_early_keeps_its_last_value() -> None:
    found = band([rows((0, 0), (10, 5)), rows((0, 0), (20, 9))], "eval_return")
    assert found is not None
    assert found.steps[-1] == 20
    np.testing.assert_allclose(found.seeds[:, -1], [5, 9])


def test_a_metric_that_no_run_has_gives_no_band() -> None:
    assert band([rows((0, 0))], "return_mean") is None


def written(folder: Path, seed: int, env: str = "CartPole-v1") -> Path:
    run = RunConfig(env=env, algorithm="ppo", settings=PPOConfig(), seed=seed)
    at = Folder.of(folder, run)
    at.begin(run)
    table = Csv(at.metrics)
    generator = np.random.default_rng(seed)
    for step in range(0, 100_001, 5000):
        value = 500 / (1 + np.exp(-(step - 30_000 - 5000 * seed) / 8000)) + generator.normal(0, 12)
        table.write({"step": step, "return_mean": 0.8 * value, "eval_return": min(500.0, value)})
    table.close()
    write_json(at.summary, {"threshold": 475.0})
    return at.path


def test_a_picture_of_all_seeds_is_drawn(tmp_path: Path) -> None:
    picture = draw([written(tmp_path, seed) for seed in range(5)], tmp_path / "curves.png")
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 20_000


def test_the_title_says_how_many_seeds_were_solved(tmp_path: Path) -> None:
    folders = [written(tmp_path, seed) for seed in range(3)]
    for folder in folders[:2]:
        write_json(folder / "summary.json", {"threshold": 475.0, "solved": {"episode": 300, "step": 60_000}})
    assert _finding(*_groups(folders)) == "CartPole-v1: ppo (default) solved by 2 of 3 seeds"
    for folder in folders:
        (folder / "summary.json").unlink()
    assert _finding(*_groups(folders[:1])).startswith("CartPole-v1: ppo (default) ends at 49")


def test_a_picture_has_a_dark_version(tmp_path: Path) -> None:
    picture = draw([written(tmp_path, 0)], tmp_path / "curves.png")
    assert (tmp_path / "curves-dark.png").read_bytes() != picture.read_bytes()


def test_a_run_that_was_not_evaluated_yet_is_drawn_without_a_warning(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    run = RunConfig(env="X-v0", algorithm="ppo", settings=PPOConfig())
    at = Folder.of(tmp_path, run)
    at.begin(run)
    table = Csv(at.metrics)
    table.write({"step": 10, "return_mean": 1.0})
    table.close()
    draw([at.path], at.picture)
    assert [str(warning.message) for warning in recwarn] == []


def test_one_picture_shows_one_environment(tmp_path: Path) -> None:
    folders = [written(tmp_path, 0), written(tmp_path, 0, "Acrobot-v1")]
    with pytest.raises(ControlError, match="One picture shows one environment, not Acrobot-v1, CartPole-v1"):
        draw(folders, tmp_path / "c.png")
    with pytest.raises(ControlError, match="holds no run"):
        draw([tmp_path], tmp_path / "c.png")
