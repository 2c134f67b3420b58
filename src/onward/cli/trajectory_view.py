"""Text view of a trajectory: a head with its facts, then its turns, then the reward and the feedback.

Layout only. Stored text is never interpreted as markup, and its control characters are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.text import Text

from onward.capture.conversations.messages import NO_RESULT
from onward.cli.tables import Table, cell, number, plain

Document = Mapping[str, Any]
_INDENT = (0, 0, 0, 2)


def view(document: Document) -> None:
    """Prints ``{trajectory, reward, unscored, feedback}`` on standard output."""
    console = Console()
    trajectory = document["trajectory"]
    for part in _head(trajectory):
        console.print(part, highlight=False)
    for turn in trajectory["turns"]:
        for part in _turn(turn):
            console.print(part, highlight=False)
    console.print()
    for part in (*_reward(document), *_feedback(document["feedback"])):
        console.print(part, highlight=False)


def _head(trajectory: Document) -> Iterator[RenderableType]:
    context, metadata = trajectory["task_context"], trajectory["metadata"]
    yield Text(f"Trajectory {plain(trajectory['trajectory_id'])}", style="bold")
    facts = {
        "agent": trajectory["agent_id"],
        "session": trajectory["session_id"],
        "began": trajectory["start_timestamp"],
        "ended": trajectory["end_timestamp"],
        "model": metadata["model"],
        "task": context["task_id"],
        "kind": context.get("task_type"),
        "domain": context.get("domain"),
        "group": context.get("group_id"),
        "outcome": metadata.get("outcome"),
        "release": metadata.get("release"),
        "tokens": metadata.get("total_tokens"),
    }
    for name, value in facts.items():
        if value not in (None, ""):
            yield _line(f"{name:8}", cell(value))
    yield _line("request ", _short(context["instructions"]))


def _turn(turn: Document) -> Iterator[RenderableType]:
    seen, action, result = turn["observation"], turn["action"], turn["result"]
    yield Text()
    took = result.get("execution_time_ms")
    yield Text(f"Turn {turn['turn_id']}{f' ({took:g} ms)' if took is not None else ''}", style="bold")
    yield from _observation(seen)
    for thought in turn.get("thought_process") or ():
        yield from _said("thought", thought, "dim")
    if action["type"] == "response":
        yield from _said("answer", action.get("raw_response") or "(nothing was said)", "green")
    else:
        arguments = json.dumps(action.get("tool_args") or {}, ensure_ascii=False)
        yield from _said(
            action["type"].replace("_", " "), f"{action.get('tool_name') or ''}({arguments})", "cyan"
        )
    if result.get("output") is not None:
        yield from _said("result", result["output"])
    elif action["type"] == "tool_call" and result["success"]:
        yield from _said("result", NO_RESULT, "dim")
    if not result["success"]:
        yield from _said("failed", result.get("error") or "no reason was reported", "red")
    sampled = action.get("sampling")
    if sampled:
        count = len(sampled.get("token_ids") or ())
        yield _line("sampled ", f"{count} tokens by {plain(str(sampled.get('model_digest')))}", "dim")


def _observation(seen: Document) -> Iterator[RenderableType]:
    content, name = seen["content"], seen["type"].replace("_", " ")
    if isinstance(content, Mapping) and isinstance(content.get("messages"), list):
        for message in content["messages"]:
            told = message if isinstance(message, Mapping) else {"content": message}
            calls = told.get("tool_calls")
            yield from _said(str(told.get("role", name)), told.get("content") or calls or "", "blue")
    elif isinstance(content, Mapping) and "same_as_turn" in content:
        yield _line(name, f"as in turn {content['same_as_turn']}", "dim")
    else:
        yield from _said(name, content, "blue")


def _reward(document: Document) -> Iterator[RenderableType]:
    reward, unscored = document["reward"], document["unscored"]
    if reward is None:
        why = "it waits for its reward" if unscored is None else f"{unscored['reason']} {unscored['detail']}"
        yield Text(f"Unscored, which is not a zero: {plain(why).strip()}.")
        return
    metadata = reward["metadata"]
    table = Table("component", number("score"), number("weight"), "why", title="Reward")
    for name, part in reward["reward_components"].items():
        table.add(name, f"{part['score']:.4f}", f"{part['weight']:.4f}", part.get("reasoning"))
    yield table
    totals = {"raw_total": metadata.get("raw_total"), "total_reward": reward["total_reward"]}
    yield Text(", ".join(f"{name} {value:.4f}" for name, value in totals.items() if value is not None))
    outcome = metadata.get("outcome") or {}
    if outcome:
        success = "success" if outcome.get("success") else "no success"
        yield Text(f"{success}, completion {cell(outcome.get('completion'))}")


def _feedback(said: list[Document]) -> Iterator[RenderableType]:
    if not said:
        return
    table = Table("when", "kind", "signal", number("value"), "comment", title="Feedback")
    for row in said:
        table.add(str(row["ts"])[:19], row["kind"], row["signal"], row["value"], row["comment"])
    yield Text()
    yield table


def _said(name: str, content: Any, style: str = "") -> Iterator[RenderableType]:
    """Yields a name and, indented below it, the content."""
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False, indent=1)
    yield Text(plain(name), style=style or "none")
    yield Padding(Text("\n".join(map(plain, text.split("\n")))), _INDENT)


def _line(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((name, style or "dim"), " ", (value, style))


def _short(text: str) -> str:
    first = plain(text.split("\n")[0])
    return first if first == text and len(first) <= 200 else f"{first[:200]} …"
