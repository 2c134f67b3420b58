"""The page of a rubric: its criteria, the designed outputs, and both scores of each side by side.

Texts of models and of outputs are escaped.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from onward import plotting
from onward.report_page import picture, table, write_page
from onward.rubrics.explanation import Explanation, name_of, signed
from onward.rubrics.tasks import describe
from onward.rubrics.tasks.render import markdown


def write_rubric_page(path: Path, found: Explanation, writer: str = "") -> None:
    """Writes the page of an explained rubric. Raises ImportError without matplotlib."""
    total = found.reward.total
    reward = "no reward" if total is None else f"reward {total:.3f}"
    title = f"Rubric for {name_of(found.task)}: {reward}"
    write_page(path, title, _parts(found, writer))


def _parts(found: Explanation, writer: str) -> Iterator[str]:
    yield f"<p>{escape(found.task.brief)}</p>"
    if writer:
        yield f"<p>Written by {escape(writer)}.</p>"
    yield picture(lambda style: _draw(style, found), "Both scores of every designed output")
    yield "<h2>Criteria</h2>"
    yield table(
        ("criterion", "asks", "weight", "share", "true share", "holds in", "fails in", "gap"),
        [
            (
                str(one.check), one.question, str(one.weight), f"{one.share:.2f}", f"{one.true_share:.2f}",
                _numbers(one.holds), _numbers(one.fails),
                "separates none" if one.gap is None else signed(one.gap),
            )
            for one in found.criteria
        ],
    )  # fmt: skip
    yield (
        "<p>Share: its part of this rubric's score; true share: its weight in the truth. Gap: how much "
        "better, by the truth, the outputs are in which it holds.</p>"
    )
    if found.missing:
        yield "<h2>Missing</h2>"
        yield table(
            ("check of the truth", "asks", "true share"),
            [(str(check), describe(check), f"{weight:.2f}") for check, weight in found.missing],
        )
    yield "<h2>Reward</h2>"
    yield table(("term", "value"), [(name, signed(value, 3)) for name, value in found.reward.terms.items()])
    if found.reward.gate or found.reward.failure:
        yield f"<p>{escape(found.reward.gate or found.reward.failure)}</p>"
    yield "<h2>Outputs</h2>"
    probes = found.task.probes()
    for one in found.outputs:
        text = markdown(found.task.build(probes[one.number - 1]))
        yield (
            f"<details><summary>Output {one.number}: this rubric {one.score:.2f}, truth {one.truth:.2f}, "
            f"difference {signed(one.score - one.truth)}</summary><p>Satisfies "
            f"{escape(', '.join(one.satisfied) or 'no check')}.</p><pre>{escape(text)}</pre></details>"
        )


def _numbers(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers)) or "none"


def _draw(style: plotting.Style, found: Explanation) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axis = figure.subplots()
    at = np.arange(1, len(found.outputs) + 1)
    axis.bar(at - 0.2, [one.score for one in found.outputs], 0.4, color=style.colours[0], label="this rubric")
    axis.bar(at + 0.2, [one.truth for one in found.outputs], 0.4, color=style.colours[1], label="truth")
    axis.set_xticks(at)
    axis.set_xlabel("designed output")
    axis.set_ylabel("score")
    axis.set_ylim(0, 1)
    axis.legend(loc="upper left", bbox_to_anchor=(0, 1.2), ncols=2)
    worst = max(found.outputs, key=lambda one: abs(one.score - one.truth))
    gap = worst.score - worst.truth
    plotting.title(figure, f"The two scores differ most in output {worst.number}, by {signed(gap)}")
    return figure
