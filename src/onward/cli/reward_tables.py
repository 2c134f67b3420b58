"""Tables for explanations and simulations of rewards, readable at 80 columns.

Layout only: every number comes from the documents that ``--json`` prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from onward.cli.output import Table, ident, plain_lines
from onward.cli.output import number as right
from onward.reward.scoring.explain import number

Document = Mapping[str, Any]


def show_explanation(found: Document, console: Console) -> None:
    status, name = found["status"], found["trajectory_id"]
    if status == "unscored":
        why = found["unscored"]
        detail = f" ({why['detail']})" if why["detail"] else ""
        _say(console, f"Trajectory {name} is unscored, which is not a zero: {why['reason']}{detail}.")
        return
    if status == "waiting":
        _say(console, f"Trajectory {name} is stored and waits for its reward: ask again in a moment.")
        return
    _head(found, console)
    console.print(_components(found))
    if found["weights_from"] == "settings":
        _say(console, "Column 'set': the present settings; this reward does not carry its own.")
    formulas = found["formulas"]
    _say(console, f"raw_total = {formulas['raw_total']}")
    _say(console, f"total_reward = {formulas['total_reward']}")
    _say(console, f"confidence = Σ weight·evidence = {formulas['confidence']}")
    if found["dense"]:
        turns = ", ".join(f"turn {one['turn_id']} {number(one['reward'])}" for one in found["dense"])
        _say(console, f"By turn: {turns}.")
    window = found["total_window"]
    if window and window.get("mean") is not None:
        _say(console, f"Window of raw totals before it: {_pairs(window)}.")
    for component, part in found["components"].items():
        _component(component, part, console)
    for component, why in found["not_applicable"].items():
        weight = number(why["configured_weight"])
        shared = f"weight {weight}, shared out among the others" if why["configured_weight"] else "weight 0"
        _say(console, f"\n{component} ({shared}) does not apply: {why['reason']}.")
    _feedback(found["feedback"], console)
    _superseded(found, console)


def _feedback(said: Sequence[Document], console: Console) -> None:
    if said:
        _say(console, "\nFeedback that was taken into account:")
    for row in said:
        value = "" if row["value"] is None else f" {number(row['value'])}"
        counted = ": this one counts" if row["counted"] else ""
        _say(console, f"{row['ts']} {row['kind']} {row['signal']}{value} ({row['feedback_id']}){counted}", 2)


def _because(reward: Document) -> str:
    return f", because of {_cause(reward['cause'])}" if reward["cause"] else ""


def _cause(cause: Document) -> str:
    return f"{cause.get('kind') or 'a repeat'} {cause.get('id') or ''}".strip()


def _head(found: Document, console: Console) -> None:
    _say(console, f"Trajectory {found['trajectory_id']}")
    _say(console, f"Reward {found['reward_id']}, revision {found['revision']}, {found['timestamp']}")
    shown = {name: found[name] for name in ("session_id", "task_type", "model_digest", "release_id")}
    _say(console, f"{_pairs({name: value for name, value in shown.items() if value})}.")
    outcome = found["outcome"]
    if outcome:
        said = "success" if outcome["success"] else "no success"
        more = ", an answer could not be read" if outcome.get("unparsable") else ""
        _say(console, f"Outcome: {said}, completion {number(outcome['completion'])}{more}.")
    if found["cause"]:
        _say(console, f"Scored again because of {_cause(found['cause'])}.")
    for contradiction in found["contradictions"]:
        _say(console, f"Contradiction: {contradiction}", style="yellow")


def _components(found: Document) -> Table:
    names = ("raw", "normal", "set", "weight", "w·raw", "w·normal")
    table = Table("component", *map(right, names))
    for name, part in found["components"].items():
        weight = part["weight"]
        numbers = (
            part["score"], part["normalised"], part["configured_weight"], weight,
            weight * part["score"], weight * part["normalised"],
        )  # fmt: skip
        table.add_row(_short(name), *(f"{value:.4f}" for value in numbers))
    table.section()
    blank = Text()
    totals = (f"{found[name]:.4f}" for name in ("raw_total", "total_reward"))
    table.add_row("total", blank, blank, blank, blank, *totals)
    return table


_WORDS = {
    "told": "reported", "told_by": "reported by", "unparsable": "answer unreadable",
    "corrected_at": "corrected in turn",
}  # fmt: skip
"""Name of a fact in the document → its printed words."""
_CRITERIA = ("criteria", "weights", "reasons", "opinions")


def _criteria(facts: Document) -> Table:
    """Returns a rubric criterion by criterion: its score, its weight, what was found."""
    table = Table("criterion", right("score"), right("weight"), "found")
    weights, reasons = facts.get("weights", {}), facts.get("reasons", {})
    opinions = facts.get("opinions", ())
    for name, score in facts["criteria"].items():
        found = reasons.get(name, "")
        if name in opinions:
            found = f"opinion of a model: {found}"
        weight = f"{weights[name]:.2f}" if name in weights else ""
        table.add_row(name, f"{score:.2f}", weight, found)
    return table


def _component(name: str, part: Document, console: Console) -> None:
    _say(
        console, f"\n{name}: {number(part['score'])} ({part['source']}, evidence {number(part['evidence'])})"
    )
    _say(console, part["reasoning"], 2)
    signals = {key: value for key, value in part["signals"].items() if isinstance(value, Mapping)}
    if signals:
        console.print(Padding(_signals(signals), (0, 0, 0, 1)))
    facts = {key: value for key, value in part["facts"].items() if value not in (None, {}, [])}
    if name == "rubric" and isinstance(facts.get("criteria"), Mapping):
        console.print(Padding(_criteria(facts), (0, 0, 0, 1)))
        facts = {key: value for key, value in facts.items() if key not in _CRITERIA}
    if facts:
        _say(
            console, f"{_pairs({_WORDS.get(str(key), str(key)): value for key, value in facts.items()})}.", 2
        )
    if part["window"].get("n"):
        _say(console, f"window before it: {_pairs(part['window'])}.", 2)
    _say(console, f"normalised: {part['formula']}", 2)


def _signals(signals: Mapping[str, Mapping[str, Any]]) -> Table:
    columns = list(dict.fromkeys(key for row in signals.values() for key in row))
    table = Table("signal", *map(right, columns))
    for name, row in signals.items():
        table.add_row(_short(name), *(_value(row.get(key)) for key in columns))
    return table


def _superseded(found: Document, console: Console) -> None:
    if not found["superseded"]:
        return
    _say(console, "\nIt supersedes, newest first:")
    for old in found["superseded"]:
        totals = _pairs({name: old[name] for name in ("raw_total", "total_reward", "confidence")})
        _say(
            console, f"revision {old['revision']}, {old['timestamp']}{_because(old)} ({old['reward_id']}):", 2
        )
        _say(console, f"{totals}; scores {_pairs(old['scores'])}.", 4)


def show_newest(rows: Sequence[Document], console: Console) -> None:
    """Prints one line per reward, newest first. Ids are never cut, because other commands take them."""
    table = Table(
        ident("trajectory"), ident("session"), ident("when (UTC)"), right("raw total"), right("total reward")
    )
    for row in rows:
        totals = (f"{row[name]:.4f}" for name in ("raw_total", "total_reward"))
        table.add_row(row["trajectory_id"], row["session_id"], str(row["ts"])[:19], *totals)
    console.print(table)


def show_simulation(found: Document, console: Console) -> None:
    weights = {name: weight for name, weight in found["weights"].items() if weight > 0.0}
    _say(
        console, f"Weights {_pairs(weights)}, on the newest {found['trajectories']} rewards by {found['by']}."
    )
    if found["unscored"]:
        _say(console, f"{found['unscored']} more would be unscored: no component of theirs has a weight.")
    if found["rescaled"]:
        _say(
            console,
            f"In {found['rescaled']} a component with a weight is missing: its weight is shared out among "
            "the others, so these totals do not compare exactly with the rest.",
            style="yellow",
        )
    _say(
        console,
        f"Spearman rho {_rho(found['spearman'])}; of {found['pairs']} ordered pairs "
        f"{found['swapped_share']:.2%} swap; mean {found['by']} {number(found['mean_old'])} → "
        f"{number(found['mean_new'])} ({_signed(found['mean_shift'])}).",
    )
    names = ("n", "rho", "mean old", "mean new", "shift")
    table = Table("task type", *map(right, names), title="By task type")
    for kind, row in found["by_task_type"].items():
        table.add_row(
            _short(kind or "-"), row["n"], _rho(row["spearman"]), f"{row['mean_old']:.4f}",
            f"{row['mean_new']:.4f}", f"{row['mean_shift']:+.4f}",
        )  # fmt: skip
    console.print(table)
    _moved(found["moved_most"], console)


def _moved(moved: Sequence[Document], console: Console) -> None:
    if not moved:
        _say(console, "No trajectory changes its rank.")
        return
    _say(console, "Moved most (rank 1 is the highest total):")
    for row in moved:
        _say(
            console,
            f"{row['trajectory_id']}: rank {row['old_rank']:g} → {row['new_rank']:g}, "
            f"{row['old']:.4f} → {row['new']:.4f}",
            2,
        )
        parts = (
            f"{name} {number(part['score'])} (weight {part['old_weight']:.3f} → {part['new_weight']:.3f})"
            for name, part in row["components"].items()
        )
        _say(console, "; ".join(parts), 4)


def _rho(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4g}"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items())


def _value(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, (int, float)):
        return number(value)
    if isinstance(value, Mapping):
        return f"({_pairs(value)})"
    return ", ".join(map(_value, value)) if isinstance(value, list) else str(value)


def _short(name: str) -> str:
    return name if len(name) <= 24 else name[:23] + "…"


def _say(console: Console, text: str, indent: int = 0, style: str = "") -> None:
    """Prints text that may contain names chosen by agents: no markup, no control characters."""
    lead = len(text) - len(text.lstrip("\n"))
    shown = Text(plain_lines(text[lead:]))
    console.print(Padding(shown, (lead, 0, 0, indent)), style=style or None, highlight=False)
