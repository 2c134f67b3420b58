"""The style of pictures: intervals as published, a light and a dark version, no drawing library at import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onward import plotting


def test_wilsons_interval_is_the_published_one() -> None:
    """Newcombe 1998 (Two-sided intervals for the single proportion), table I, method 3."""
    assert plotting.wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert plotting.wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert plotting.wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert plotting.wilson(1, 29) == pytest.approx((0.0061, 0.1718), abs=5e-5)
    assert plotting.wilson(0, 0) == (0.0, 1.0)


def test_the_interval_of_a_difference_is_the_published_one() -> None:
    """Newcombe 1998 (Interval estimation for the difference), table II, method 10: 9/10 against 3/10."""
    assert plotting.difference(0.3, 0.9, 10) == pytest.approx((0.1705, 0.8090), abs=5e-5)
    assert plotting.difference(0.9, 0.3, 10) == pytest.approx((-0.8090, -0.1705), abs=5e-5)


def test_a_picture_has_a_light_and_a_dark_version_in_their_own_colours(tmp_path: Path) -> None:
    from matplotlib import image, rcParams
    from matplotlib.figure import Figure

    def paint(style: plotting.Style) -> Any:
        figure = Figure(figsize=(2, 2))
        axes = figure.add_subplot()
        axes.plot([0, 1], [0.2, 0.9])
        plotting.rates(axes.yaxis)
        assert axes.get_ylim()[0] <= 0.0 and axes.get_ylim()[1] >= 1.0
        return figure

    before = rcParams["axes.facecolor"]
    made = plotting.save(paint, tmp_path / "new" / "curves.png")
    assert [path.name for path in made] == ["curves.png", "curves-dark.png"]
    corners = [tuple(round(float(part) * 255) for part in image.imread(path)[0, 0][:3]) for path in made]
    assert corners == [(255, 255, 255), (13, 17, 23)]
    assert rcParams["axes.facecolor"] == before
    assert [path.name for path in plotting.save(paint, tmp_path / "light.png", dark=False)] == ["light.png"]


def test_the_style_and_the_bars_import_nothing_of_onward_and_no_drawing_library() -> None:
    code = (
        "import sys, onward\n"
        "before = set(sys.modules)\n"
        "import onward.plotting, onward.progress\n"
        "print(sorted(m for m in set(sys.modules) - before if m.startswith(('onward.', 'matplotlib'))))"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "['onward.plotting', 'onward.progress']"
