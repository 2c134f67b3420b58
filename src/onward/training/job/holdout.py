"""The split of logged work by task: some tasks are held out, and no attempt at them is trained on. Pure.

Invariants: all attempts at a task are on one side. A task's side is a function of seed and task alone, never
of the other data: a task that one job holds out is not trained on by the next one with the same seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Line = dict[str, Any]


@dataclass(frozen=True)
class Holdout:
    """A split dataset. ``tasks`` counts all tasks; ``reason`` says why nothing is held out."""

    train: list[Line]
    held_out: list[Line]
    tasks: int = 0
    reason: str | None = None


def split(lines: Sequence[Line], share: float, seed: int, *, fewest: int = 2) -> Holdout:
    """Holds out about ``share`` of the tasks, with all their lines. If fewer than ``fewest`` lines would be
    left to train on, or no task would be held out, nothing is held out."""
    if not share:
        return Holdout(list(lines), [])
    names = task_names(lines)
    tasks = len(set(names))
    chosen = {name for name in names if _draw(seed, name) < share}
    train = [line for line, name in zip(lines, names, strict=True) if name not in chosen]
    held_out = [line for line, name in zip(lines, names, strict=True) if name in chosen]
    if not held_out or len(train) < fewest:
        left = "none of them falls into" if not held_out else "too little is left beside"
        reason = f"the data has {tasks} tasks, and {left} a held-out share of {share:g}: collect more tasks"
        return Holdout(list(lines), [], tasks, reason)
    return Holdout(train, held_out, tasks)


def task_names(lines: Sequence[Line]) -> list[str]:
    """Returns the name of each line's task. Lines that share a group or a task id are of one task; so are
    those without a group that begin with the same prompt, since a recorder gives each of them an id."""
    first: dict[str, int] = {}
    parents = list(range(len(lines)))

    def root(at: int) -> int:
        while parents[at] != at:
            parents[at] = parents[parents[at]]
            at = parents[at]
        return at

    known = [_known_by(line) for line in lines]
    for at, names in enumerate(known):
        for name in names:
            parents[root(at)] = root(first.setdefault(name, at))
    smallest: dict[int, str] = {}
    for at, names in enumerate(known):
        smallest[root(at)] = min([smallest.get(root(at), names[0]), *names])
    return [smallest[root(at)] for at in range(len(lines))]


def _known_by(line: Mapping[str, Any]) -> list[str]:
    names = [f"{kind}:{line[kind]}" for kind in ("group_key", "task_id") if line.get(kind) is not None]
    if line.get("group_key") is None and (prompt := _prompt(line)):
        names.append("prompt:" + hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest())
    return names or [f"trajectory:{line['trajectory_id']}"]


def _prompt(line: Mapping[str, Any]) -> list[Any]:
    """Returns what the first answer answered: tokens, or messages."""
    for call in line.get("calls", ()):
        if call["prompt_ids"] and call.get("continues") is None:
            return call["prompt_ids"]
    prompt = []
    for message in line.get("messages", ()):
        if message["role"] == "assistant":
            break
        prompt.append([message["role"], message.get("content")])
    return prompt


def _draw(seed: int, name: str) -> float:
    digest = hashlib.sha256(f"held-out/{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
