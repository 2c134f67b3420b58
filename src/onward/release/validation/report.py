"""The report of a validation as one HTML file: verdict, a picture of every suite, the items that were lost.

The file needs nothing else: the picture is inside of it. Texts of a model are escaped.
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

from onward import plotting
from onward.release.wording import item_notes, suite_counts
from onward.report_page import picture, write_page


def write(path: Path, model: str, against: str, found: Mapping[str, Any], human: float | None) -> None:
    """Writes the report. Raises ImportError without matplotlib."""
    summary = found["summary"]
    suites: Mapping[str, Any] = summary.get("suites", {})
    title = f"{model} against {against}: {found['verdict']}"
    parts: list[str] = []
    if "difference" in summary:
        parts.append(
            f"<p>All benchmark suites, each with the same weight: {escape(suite_counts(summary))}.</p>"
        )
    if human is not None:
        parts.append(f"<p>Score given by a person: {human:.2f}.</p>")
    drawn = {name: facts for name, facts in suites.items() if "difference" in facts}
    if drawn:
        parts.append(_picture(drawn, title))
    parts += [_suite_table(suites), *(_lost(name, facts) for name, facts in suites.items())]
    parts.append(f"<p>Not run: {escape(', '.join(found['not_run']))}.</p>")
    write_page(path, title, parts)


def _picture(suites: Mapping[str, Any], finding: str) -> str:
    words = "Difference of success in each suite, with its 95 % interval"
    return picture(lambda style: _draw(style, suites, finding), words)


def _draw(style: plotting.Style, suites: Mapping[str, Any], finding: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.6 + 0.5 * len(suites)), layout="constrained")
    rates, gaps = figure.subplots(1, 2, sharey=True)
    for at, facts in enumerate(suites.values()):
        for arm, colour in (("current", style.colours[1]), ("candidate", style.colours[0])):
            label = arm if at == 0 else None
            rates.plot([facts[arm]], [at], "o", color=colour, label=label, clip_on=False)
        middle, ends = facts["difference"], (facts["low"], facts["high"])
        gaps.plot(ends, [at, at], color=style.colours[0])
        gaps.plot([middle], [at], "o", color=style.colours[0])
    limit = next(iter(suites.values()))["limit"]
    gaps.axvline(limit, color=style.faint, linestyle="--")
    gaps.set_xlabel(f"difference; the limit is {limit:+.2f}")
    plotting.rates(rates.xaxis)
    rates.set_xlabel("success")
    rates.set_yticks(range(len(suites)), list(suites))
    rates.set_ylim(-0.5, len(suites) - 0.5)
    rates.legend(loc="upper left", bbox_to_anchor=(0, 1.25), ncols=2)
    plotting.title(figure, finding)
    return figure


def _suite_table(suites: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{facts['role']}</td><td>{facts['verdict']}</td>"
        f"<td>{escape(facts['judged'])}</td>"
        f"<td>{escape(suite_counts(facts)) if 'difference' in facts else '-'}</td>"
        f"<td>{facts['unscored']['items']}</td></tr>"
        for name, facts in suites.items()
    )
    head = "<th>suite<th>counts as<th>verdict<th>why<th>numbers<th>not judged"
    notes = "".join(
        f"<p>{escape(name)}: {escape(words)}.</p>"
        for name, facts in suites.items()
        for words in item_notes(facts)
    )
    return f"<h2>Suites</h2><table><tr>{head}</tr>{rows}</table>{notes}"


def _lost(name: str, facts: Mapping[str, Any]) -> str:
    lost = facts.get("failing", ())
    if not lost:
        return ""
    rows = "".join(
        f"<tr><td>{escape(one['item_id'])}</td><td>{escape(one['kind'])}</td>"
        f"<td>{escape(one.get('note', ''))}</td><td>{escape(one.get('answer', ''))}</td></tr>"
        for one in lost
    )
    head = "<th>item<th>kind<th>why<th>answer"
    return f"<h2>Lost in {escape(name)}</h2><table><tr>{head}</tr>{rows}</table>"
