"""Red-team report of a candidate: rates, verdict and failing transcripts, as JSON and as one HTML file.

Invariants: every text of a transcript passes the redactor before it is stored. The page loads nothing from
elsewhere and runs no script, so an answer in it cannot act.
"""

from __future__ import annotations

import html
import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.errors import RedactionError
from onward.files import make_folder, write_whole
from onward.suites.safety.answers import word_of
from onward.suites.safety.judging import SafetyVerdict
from onward.suites.suite import ItemResult

Redact = Callable[[str], str]
"""Replaces secrets and personal data in a text. Raises RedactionError if it cannot."""
FORMAT = "onward.red-team-report.v1"
LIMITS = (
    "A program judges the answers. 'complied' means that an answer does not decline, not that it is of use. "
    "Passing is no proof of safety."
)
_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;color:#1b1f24;"
    "background:#fff}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .7rem;text-align:left;"
    "border-bottom:1px solid #d0d7de}"
    "pre{white-space:pre-wrap;background:#f6f8fa;padding:.6rem;margin:.3rem 0}"
    ".failed{color:#a40e26;font-weight:600}.passed{color:#116329}details{margin:.5rem 0}"
    "@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}pre{background:#161b22}"
    ".failed{color:#ff7b72}.passed{color:#56d364}td,th{border-color:#30363d}}"
)


def document(
    candidate: str,
    current: str,
    results: Sequence[ItemResult],
    before: Sequence[ItemResult],
    verdict: SafetyVerdict,
    redact: Redact,
) -> dict[str, Any]:
    """Returns the report as JSON values. ``candidate`` and ``current`` are names of models, ``results`` and
    ``before`` what they answered. Failing items are grouped by kind, those that current passes first."""
    old = {result.item_id: result for result in before}
    failing: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for result in sorted(results, key=lambda found: not old[found.item_id].success):
        if not result.success:
            failing[result.kind].append(_failure(result, old[result.item_id], redact))
    return {
        "format": FORMAT,
        "candidate": candidate,
        "current": current,
        "limits": LIMITS,
        **verdict.document(),
        "words": {"candidate": _words(results), "current": _words(before)},
        "failing": {kind: failing[kind] for kind in sorted(failing)},
    }


def page(report: Mapping[str, Any]) -> str:
    """Returns the report as one HTML page."""
    names = f"{_text(report['candidate'])} against {_text(report['current'])}"
    parts = [
        f"<h1>Red-team report: {names}</h1>",
        f"<p>Verdict: <b class='{_class(report['verdict'])}'>{_text(report['verdict'])}</b>. "
        f"{_text(report['why'])}</p><p>{_text(report['limits'])}</p>",
        "<h2>Aspects</h2>",
        _compared(report["aspects"], adjusted=True),
        "<h2>Kinds and transforms</h2>",
        _compared(report["kinds"], adjusted=False),
        "<h2>Bias: largest gap of each attribute</h2>",
        _gaps(report["gaps"]),
        "<h2>Failing transcripts of the candidate</h2>",
        *(_group(kind, found) for kind, found in report["failing"].items()),
    ]
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width,initial-scale=1'>"
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>Red-team report: {names}</title><style>{_STYLE}</style></head>"
        f"<body>{''.join(parts)}</body></html>"
    )


def write(folder: Path, report: Mapping[str, Any]) -> tuple[Path, Path]:
    """Writes ``red-team.json`` and ``red-team.html`` and returns their paths."""
    make_folder(folder, 0o700)
    as_json, as_html = folder / "red-team.json", folder / "red-team.html"
    write_whole(as_json, json.dumps(report, indent=1, ensure_ascii=False).encode(), 0o600)
    write_whole(as_html, page(report).encode(), 0o600)
    return as_json, as_html


def _failure(result: ItemResult, old: ItemResult, redact: Redact) -> dict[str, Any]:
    return {
        "item_id": result.item_id,
        "word": word_of(result),
        "note": _redacted(result.note, redact),
        "current": word_of(old),
        "current_passes": old.success,
        "transcript": [
            {"role": str(message["role"]), "content": _redacted(str(message["content"]), redact)}
            for message in result.transcript
        ],
    }


def _redacted(text: str, redact: Redact) -> str:
    try:
        return redact(text)
    except RedactionError:
        return "(withheld: the redactor failed)"


def _words(results: Sequence[ItemResult]) -> dict[str, dict[str, int]]:
    """Counts the words of the judgements by kind."""
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for result in results:
        counts[result.kind][word_of(result)] += 1
    return {kind: dict(sorted(found.items())) for kind, found in sorted(counts.items())}


def _text(value: object) -> str:
    return html.escape(str(value))


def _class(verdict: object) -> str:
    return verdict if verdict in ("passed", "failed") else "other"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th scope=col>{head}</th>' for head in heads)}</tr>{body}</table>"


def _rate(passed: int, items: int) -> str:
    return f"<meter max={max(1, items)} value={passed}></meter> {passed} of {items}"


def _compared(found: Sequence[Mapping[str, Any]], *, adjusted: bool) -> str:
    column = "adjusted_p" if adjusted else "p"
    heads = ("name", "candidate passes", "current passes", "won / lost", column, "verdict", "reason")
    rows = (
        (
            _text(one["name"]),
            _rate(one["candidate"], one["items"]),
            _rate(one["current"], one["items"]),
            f"{one['better']} / {one['worse']}",
            f"{one[column]:.4f}",
            f"<span class='{_class(one['verdict'])}'>{_text(one['verdict'])}</span>",
            _text(one["judged"]),
        )
        for one in found
    )
    return _table(heads, rows)


def _gaps(found: Sequence[Mapping[str, Any]]) -> str:
    heads = ("attribute", "group", "difference to the others", "interval", "templates", "verdict")
    rows = (
        (
            _text(gap["attribute"]),
            _text(gap["group"]),
            f"{gap['difference']:+.3f}",
            f"{gap['low']:+.3f} to {gap['high']:+.3f}",
            _text(gap["templates"]),
            _text(gap["verdict"]),
        )
        for gap in found
    )
    return _table(heads, rows)


def _group(kind: str, failures: Sequence[Mapping[str, Any]]) -> str:
    inner = "".join(
        f"<h4>{_text(one['item_id'])}: {_text(one['note'])} (current: {_text(one['current'])})</h4>"
        + "".join(f"<pre><b>{_text(m['role'])}</b>\n{_text(m['content'])}</pre>" for m in one["transcript"])
        for one in failures
    )
    return f"<details><summary>{_text(kind)}: {len(failures)}</summary>{inner}</details>"
