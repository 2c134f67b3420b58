"""The last few checkpoints of a run are kept; one that is half written never counts."""

from pathlib import Path

import pytest

from onward.training.job import steps


def _write(out: Path) -> None:
    (out / "weights").write_text(out.name)


def test_only_the_last_few_are_kept_by_number_not_by_name(tmp_path: Path) -> None:
    for step in (5, 50, 100, 1000):
        steps.add(tmp_path, step, 2, _write)
    assert [step for step, _ in steps.found(tmp_path)] == [100, 1000]


def test_one_that_was_half_written_does_not_count_and_is_made_again(tmp_path: Path) -> None:
    def die(out: Path) -> None:
        _write(out)
        raise KeyboardInterrupt

    steps.add(tmp_path, 5, 3, _write)
    with pytest.raises(KeyboardInterrupt):
        steps.add(tmp_path, 10, 3, die)
    assert [step for step, _ in steps.found(tmp_path)] == [5]
    steps.add(tmp_path, 10, 3, _write)
    assert [step for step, _ in steps.found(tmp_path)] == [5, 10]


def test_a_run_that_goes_on_drops_those_that_it_repeats(tmp_path: Path) -> None:
    for step in (5, 10, 15):
        steps.add(tmp_path, step, 3, _write)
    steps.start_at(tmp_path, 10)
    assert [step for step, _ in steps.found(tmp_path)] == [5, 10]
    steps.start_at(tmp_path / "none", 0)
