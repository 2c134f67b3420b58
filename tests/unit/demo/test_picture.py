"""The picture of a demonstration: what it says, and where each candidate is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from demo_results import cycle, planted, rejected, result
from matplotlib import rc_context

from onward import plotting
from onward.demo import picture


def drawn(*cycles: Any, **changes: Any) -> Any:
    """The figure in light colours."""
    with rc_context(plotting.LIGHT.settings):
        return picture._figure(result(*cycles, **changes), plotting.LIGHT)


def lines(axes: Any) -> dict[str, Any]:
    return {line.get_label(): line for line in axes.get_lines() if not line.get_label().startswith("_")}


def test_each_fate_has_its_mark_and_only_released_versions_are_joined() -> None:
    left = drawn(cycle(1), rejected(2), planted(3)).axes[0]
    found = lines(left)
    assert list(found["released"].get_xdata()) == [0, 1]
    assert list(found["released"].get_ydata()) == [0.30, 0.54]
    hollow = found["rejected"]
    assert (list(hollow.get_xdata()), list(hollow.get_ydata())) == ([2], [0.60])
    assert (hollow.get_marker(), hollow.get_markerfacecolor()) == ("X", "none")
    back = found["rolled back (outcome in traffic)"]  # a planted one skips validation
    assert (list(back.get_xdata()), list(back.get_ydata())) == ([3], [0.0])
    assert [text.get_text() for text in left.get_xticklabels()] == ["v0", "v1", "v2", "v3"]


def test_titles_state_the_findings_and_rates_go_from_0_to_1() -> None:
    figure = drawn(cycle(1), rejected(2), cycle(3))
    left, right = figure.axes
    assert figure.get_suptitle() == "Success on held-out tasks rose from 0.30 to 0.76 (tiny, seed 0)"
    assert left.get_title(loc="left") == "2 of 3 candidates promoted, 1 rejected"
    planted_too = drawn(cycle(1), rejected(2), planted(3)).axes[0]
    assert planted_too.get_title(loc="left") == (
        "1 of 2 candidates promoted, 1 rejected; the planted one rolled back"
    )
    assert right.get_title(loc="left") == "most gained by lookup: 0.20 → 0.90"
    assert left.get_ylim() == right.get_xlim() == (-0.02, 1.02)


def test_rates_have_their_95_percent_intervals() -> None:
    """Validation: 54 of 100, by Wilson 0.4426 to 0.6344 (scipy.stats.binomtest)."""
    left = drawn(cycle(1)).axes[0]
    whiskers = [path.vertices[:, 1] for bars in left.collections for path in bars.get_paths()]
    assert any(list(ends) == pytest.approx([0.4426, 0.6344], abs=5e-5) for ends in whiskers)


@pytest.mark.parametrize(
    ("found", "headline"),
    [
        (result(cycle(1), final_success=0.34), "Success on held-out tasks hardly moved, from 0.30 to 0.34"),
        (result(cycle(1), final_success=0.1), "Success on held-out tasks fell from 0.30 to 0.10"),
        (result(rejected(1), planted(2)), "Nothing was learned: success on held-out tasks stayed at 0.30"),
    ],
)
def test_a_run_that_did_not_learn_is_told_as_one(found: Any, headline: str) -> None:
    assert picture.headline(found) == headline


def test_only_a_version_at_the_end_of_a_name_is_shortened() -> None:
    assert [picture.short(name) for name in ("agent-zero-rl-v12", "a-v2.3", "vera", "my-model")] == [
        "v12", "v2.3", "vera", "my-model",
    ]  # fmt: skip


def test_it_is_written_light_and_dark(tmp_path: Path) -> None:
    made = picture.draw(result(cycle(1), rejected(2), planted(3)), tmp_path / "curves.png")
    assert [path.name for path in made] == ["curves.png", "curves-dark.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in made)
