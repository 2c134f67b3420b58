"""Trajectories of a job from the lines of its dataset, and statistics of those lines."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from onward.errors import OnwardError, TrainingError
from onward.training.data import admission, conversations
from onward.training.data.report import DataReport
from onward.training.spec.request import JobSpec

if TYPE_CHECKING:
    from onward.lm.chat import Chat
    from onward.lm.model import LanguageModel
    from onward.lm.trajectories import Trajectory


def chat_of(policy: LanguageModel) -> Chat:
    from onward.lm.chat import Chat

    return Chat(policy.tokenizer)


def trajectories_of(
    lines: list[dict[str, Any]], spec: JobSpec, policy: LanguageModel, report: DataReport, max_tokens: int
) -> list[Trajectory]:
    """Builds the trajectories of a dataset. A line that this model cannot read is left out and counted
    (``bad_row``).

    The places of rows above ``max_tokens`` are noted only: the algorithm leaves those out. Raises
    TrainingError (DATA) when no line is left.
    """
    from jinja2.exceptions import TemplateError

    worded = any("messages" in line or "correction" in line for line in lines)
    chat = chat_of(policy) if worded else None
    found = []
    first: Exception | None = None
    for line in lines:
        place = str(line.get("place") or line["trajectory_id"])
        try:
            one = trajectory_of(line, spec, chat)
        except (OnwardError, TemplateError) as error:
            first = first or error
            report.leave_out("bad_row", place)
            continue
        if one.longest > max_tokens:
            report.note("too_long", place)
        found.append(one)
    if not found:
        raise TrainingError("DATA", f"None of the {len(lines)} rows can be trained on. The first: {first}")
    return found


def trajectory_of(line: dict[str, Any], spec: JobSpec, chat: Chat | None) -> Trajectory:
    """Builds a trajectory with one return from a dataset line; ``chat`` is for lines of text and corrections.

    An unparsable answer costs ``unparsable_penalty`` in addition. A release counts it as an error; a return
    that treats it as one more failure would let the policy drift out of its form.
    """
    from onward.lm.tokens import rows_from_calls
    from onward.lm.trajectories import Trajectory

    if chat is None or "calls" in line:
        rows = rows_from_calls(conversations.calls_of(line))
    else:
        rows = [conversations.token_row(chat, line["messages"], tools=line.get("tools") or ())]
    staleness = int(line.get("staleness", 0))
    penalty = spec.unparsable_penalty * line["unparsable"]
    dense = line.get("turn_rewards") if spec.dense_rewards else None
    if dense is not None:
        dense = [*dense[:-1], dense[-1] - penalty]
    name = "raw_total" if spec.return_from == "raw_total" else "outcome"
    return Trajectory(
        rows=rows,
        reward=None if line[name] is None else line[name] - penalty,
        group=line["group_key"],
        task_type=line["task_type"],
        success=line["success"],
        turn_rewards=dense,
        policy=str(staleness),
        staleness=staleness,
        correction=None if chat is None else conversations.corrected(chat, line),
    )


def summary(lines: list[dict[str, Any]], spec: JobSpec) -> dict[str, Any]:
    """Returns statistics of a job's data; lines used only for their correction have no return."""
    name = "raw_total" if spec.return_from == "raw_total" else "outcome"
    scored = [line for line in lines if line[name] is not None]
    returns = [line[name] - spec.unparsable_penalty * line["unparsable"] for line in scored]
    told = [line["success"] for line in scored if line["success"] is not None]
    mean = _mean(returns)
    answers = sum(len(line.get("calls", ())) for line in lines)
    masked = sum(len(admission.masked(line.get("calls", ()))) for line in lines)
    return {
        "reward_mean": mean,
        "reward_std": math.sqrt(sum((value - mean) ** 2 for value in returns) / max(1, len(returns))),
        "trajectories": len(lines),
        "outcome_mean": _mean([line["outcome"] for line in scored]),
        "raw_total_mean": _mean([line["raw_total"] for line in scored]),
        "unparsable_share": _mean([line["unparsable"] for line in scored]),
        **({"success_rate": _mean(told)} if told else {}),
        "masked_share": masked / answers if answers else 0.0,
        "sampled_tokens": sum(len(call["token_ids"]) for line in lines for call in line.get("calls", ())),
    }


def _mean(values: list[Any]) -> float:
    return float(sum(values) / len(values)) if values else 0.0
