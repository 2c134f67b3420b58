"""Explains the whole computation of a stored reward, as numbers that a person can check with a calculator.

Pure: all numbers come from stored payloads, and nothing is scored again. The one exception is a weight before
rescaling: where a reward does not carry it, it comes from the present settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from onward.errors import NotFoundError
from onward.reward.measures.normalise import MINIMUM_SAMPLES
from onward.warehouse import Warehouse, queries, reward_queries, trajectory_queries

_OURS = frozenset(("normalized", "window", "evidence", "signals"))
"""Parts of ``raw_data`` that have a field of their own in an explanation."""
_SHOWN = 5
"""Maximum trajectories named for a session."""
_ORDER = ("n", "value", "mean", "std", "min", "max", "least_std", "gate", "z", "weight", "method")

Document = dict[str, Any]


async def look_up(
    warehouse: Warehouse, trajectory_id: str, configured: Mapping[str, float]
) -> Document | None:
    """Explains a trajectory's reward. ``status`` is ``rewarded``, ``unscored`` (with the reason) or
    ``waiting`` (stored, not scored yet). A prefix that only one id has will do. Returns None for an unknown
    id. Raises WarehouseError."""
    history = await queries.reward_history(warehouse, trajectory_id)
    if history:
        used = json.loads(history[-1]["payload"])["metadata"].get("feedback_ids") or []
        rows = await reward_queries.feedback_by_id(warehouse, used)
        return explain(history, configured, [rows[name] for name in used if name in rows])
    why = await queries.why_unscored(warehouse, trajectory_id)
    if why is not None:
        return {"trajectory_id": trajectory_id, "status": "unscored", "unscored": dict(why)}
    if await queries.trajectory(warehouse, trajectory_id) is not None:
        return {"trajectory_id": trajectory_id, "status": "waiting"}
    meant = await trajectory_queries.ids_that_begin(warehouse, trajectory_id, 2)
    return await look_up(warehouse, meant[0], configured) if len(meant) == 1 else None


async def unknown_id(warehouse: Warehouse, name: str) -> NotFoundError:
    """Builds the error for an id that ``look_up`` does not find; for a session's it names trajectories."""
    found = await reward_queries.trajectories_of_sessions(warehouse, [name], _SHOWN)
    if found:
        return NotFoundError(
            f"{name} is a session, no trajectory: give one of its newest, {', '.join(found)}."
        )
    meant = await trajectory_queries.ids_that_begin(warehouse, name, _SHOWN)
    if meant:
        return NotFoundError(f"{name} begins several ids: give more of one ({', '.join(meant)}).")
    return NotFoundError(
        f"No trajectory {name} is known here: it was never stored. 'onward trajectories list' shows ids."
    )


def explain(
    history: Sequence[Mapping[str, Any]],
    configured: Mapping[str, float],
    feedback: Sequence[Mapping[str, Any]] = (),
) -> Document:
    """Explains the newest reward in ``history`` (rows of ``reward_history_v``, oldest first), step by step.

    ``configured``: component → weight of the present settings; ``feedback``: rows of ``feedback_v`` that the
    reward took into account.
    """
    row = history[-1]
    reward: Document = json.loads(row["payload"])
    metadata = reward["metadata"]
    stored = metadata.get("weights")
    weights = stored or configured
    parts = sorted(reward["reward_components"].items(), key=lambda item: (-item[1]["weight"], item[0]))
    components = {name: _component(part, weights.get(name, 0.0)) for name, part in parts}
    return {
        "trajectory_id": reward["trajectory_id"],
        "status": "rewarded",
        "reward_id": reward["reward_id"],
        "revision": row["revision"],
        "timestamp": reward["timestamp"],
        **{name: reward.get(name) for name in ("session_id", "reward_type")},
        **{name: metadata.get(name) for name in ("evaluator", "evaluation_method", "task_type")},
        **{name: metadata.get(name) or None for name in ("model_digest", "release_id")},
        "outcome": metadata.get("outcome"),
        "contradictions": _contradictions(metadata, components),
        "components": components,
        "not_applicable": {
            name: {"reason": reason, "configured_weight": weights.get(name, 0.0)}
            for name, reason in (metadata.get("not_applicable") or {}).items()
        },
        "weights_from": "reward" if stored else "settings",
        "raw_total": metadata.get("raw_total"),
        "total_reward": reward["total_reward"],
        "total_window": _in_order(reward.get("normalization") or {}),
        "confidence": metadata.get("confidence"),
        "dense": metadata.get("dense"),
        "formulas": _formulas(reward, components),
        "feedback": _feedback(feedback, components),
        "cause": metadata.get("cause"),
        "supersedes": metadata.get("supersedes"),
        "superseded": [_earlier(old) for old in reversed(history[:-1])],
    }


def _component(part: Mapping[str, Any], configured: float) -> Document:
    raw = part.get("raw_data") or {}
    window = raw.get("window") or {}
    normalised = raw.get("normalized", part["score"])
    z, formula = _normalisation(part["score"], window, normalised)
    return {
        "score": part["score"],
        "source": part["source"],
        "reasoning": part.get("reasoning") or "",
        "evidence": raw.get("evidence"),
        "signals": {name: _in_order(signal) for name, signal in (raw.get("signals") or {}).items()},
        "facts": {name: value for name, value in raw.items() if name not in _OURS},
        "window": _in_order(window),
        "z": z,
        "normalised": normalised,
        "formula": formula,
        "configured_weight": configured,
        "weight": part["weight"],
    }


def _in_order(numbers: Any) -> Any:
    """Reorders the keys for reading, a value before its mean; stored JSON has its keys sorted."""
    if not isinstance(numbers, Mapping):
        return numbers
    first = [name for name in _ORDER if name in numbers]
    return {name: numbers[name] for name in dict.fromkeys([*first, *numbers])}


def _normalisation(score: float, window: Mapping[str, Any], value: float) -> tuple[float | None, str]:
    """Returns z, where there is one, and the formula from ``score`` to ``value``, as text."""
    method = window.get("method", "none")
    gate = window.get("gate", 1.0)
    if method == "z-score":
        z = (score - window["mean"]) / window.get("least_std", window["std"])
        least = " (the least deviation)" if "least_std" in window else ""
        divisor = number(window.get("least_std", window["std"])) + least
        text = f"z = ({number(score)} − {number(window['mean'])}) / {divisor} = {number(z)}; "
        return z, text + f"(z + 2)/4 = {_limited((z + 2.0) / 4.0, gate, value)}"
    if method == "min-max" and "min" in window:
        low, high = window["min"], window["max"]
        least = 2.0 * window.get("least_std", 0.0)
        spread = max(high - low, least)
        divisor = (
            f"{number(least)} (the least range)"
            if spread > high - low
            else f"({number(high)} − {number(low)})"
        )
        text = f"1 − ({number(high)} − {number(score)}) / {divisor} = "
        return None, text + _limited(1.0 - (high - score) / spread, gate, value)
    if method == "min-max":
        return None, f"min-max against the window gives {number(value)}"
    count = window.get("n", 0)
    if count < MINIMUM_SAMPLES:
        why = f"the window holds {count} of the {MINIMUM_SAMPLES} scores that are needed"
    elif window.get("std") == 0.0:
        why = f"all {count} scores of the window are equal"
    else:
        why = "no normalisation is set"
    return None, f"the raw score stands: {why}"


def _limited(given: float, gate: float, value: float) -> str:
    """Describes ``given`` cut to [0, 1], times the completion score where the component is gated by it."""
    cut = min(1.0, max(0.0, given))
    text = number(given) if cut == given else f"{number(given)}, clipped to {number(cut)}"
    return text if gate == 1.0 else f"{text}, times completion {number(gate)} = {number(value)}"


def _formulas(reward: Mapping[str, Any], components: Mapping[str, Document]) -> dict[str, str]:
    metadata = reward["metadata"]
    parts = [part for part in components.values() if part["weight"] > 0.0]
    return {
        "raw_total": _sum((part["weight"], part["score"]) for part in parts)
        + f" = {number(metadata.get('raw_total'))}",
        "total_reward": _sum((part["weight"], part["normalised"]) for part in parts)
        + f" = {number(reward['total_reward'])}",
        "confidence": _sum((part["weight"], part["evidence"]) for part in parts)
        + f" = {number(metadata.get('confidence'))}",
    }


def _sum(pairs: Any) -> str:
    return " + ".join(f"{number(weight)}·{number(value)}" for weight, value in pairs)


def number(value: Any) -> str:
    """Formats up to six significant digits; the exact double is in the JSON."""
    return "-" if value is None else f"{float(value):.6g}".replace("-", "−")


def _contradictions(metadata: Mapping[str, Any], components: Mapping[str, Document]) -> list[str]:
    """Returns contradictions between results and the reported outcome, from metadata and components."""
    places = [metadata, *(part["facts"] for part in components.values())]
    return list(dict.fromkeys(str(item) for place in places for item in place.get("contradictions") or ()))


def _feedback(rows: Sequence[Mapping[str, Any]], components: Mapping[str, Document]) -> list[Document]:
    """Returns the feedback without its text, and marks the piece that gives the score."""
    facts = components.get("user_feedback", {}).get("facts", {})
    names = ("feedback_id", "kind", "signal", "value", "source", "ts")
    counted = facts.get("feedback_id")
    return [
        {**{name: row.get(name) for name in names}, "counted": row["feedback_id"] == counted} for row in rows
    ]


def _earlier(row: Mapping[str, Any]) -> Document:
    reward = json.loads(row["payload"])
    return {
        "reward_id": reward["reward_id"],
        "revision": row["revision"],
        "timestamp": reward["timestamp"],
        "cause": reward["metadata"].get("cause"),
        "raw_total": reward["metadata"].get("raw_total"),
        "total_reward": reward["total_reward"],
        "confidence": reward["metadata"].get("confidence"),
        "scores": {name: part["score"] for name, part in reward["reward_components"].items()},
    }
