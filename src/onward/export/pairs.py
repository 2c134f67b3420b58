"""Preference pairs in TRL's conversational form: a better and a worse attempt at the same task.

Pairs are chosen as in training (``lm.pairs``): within a group, the widest difference first. Both
conversations must begin with the same messages and tools; otherwise they do not answer the same prompt.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onward.capture.conversations.messages import Message, conversation
from onward.export.records import Record
from onward.lm.pairs import widest
from onward.lm.tool_words import in_words, with_objects
from onward.training.data.admission import group_key

MOST_PER_GROUP = 500
"""Maximum number of attempts per group that are compared: all pairs among them are examined."""
ReturnFrom = Literal["outcome", "raw_total"]


@dataclass(frozen=True)
class Rules:
    """Same meaning as the options of the same names of ``onward train``."""

    return_from: ReturnFrom = "outcome"
    margin: float = 0.0
    min_reward: float | None = None
    per_task: int = 8
    seed: int = 0


@dataclass(frozen=True)
class _Attempt:
    trajectory_id: str
    reward: float | None
    prompt: list[Message]
    answer: list[Message]
    tools: list[dict[str, Any]]


class Pairs:
    """Makes pairs group by group. ``left_out`` counts, by reason, the attempts that are in no pair."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.left_out: Counter[str] = Counter()
        self._random = random.Random(rules.seed)

    def of_group(self, records: Sequence[Record]) -> Iterator[dict[str, Any]]:
        """Yields the pairs among attempts with the same ``group_id``."""
        comparable: defaultdict[str, list[_Attempt]] = defaultdict(list)
        for record in records:
            attempt = self._attempt(record)
            if isinstance(attempt, str):
                self.left_out[attempt] += 1
            else:
                comparable[self._key(record, attempt)].append(attempt)
        for attempts in comparable.values():
            rules = self.rules
            found = widest(
                attempts,
                margin=rules.margin,
                min_reward=rules.min_reward,
                per_task=rules.per_task,
                rnd=self._random,
            )
            paired: set[str] = set()
            for better, worse, width in found:
                if in_words(better.answer, ()) == in_words(worse.answer, ()):
                    continue  # only the ids of their calls differ
                paired |= {better.trajectory_id, worse.trajectory_id}
                yield _pair(better, worse, width)
            reason = "alone" if len(attempts) == 1 else "in_no_pair"
            self.left_out[reason] += sum(one.trajectory_id not in paired for one in attempts)

    def _attempt(self, record: Record) -> _Attempt | str:
        outcome = record.outcome
        reward = record.raw_total if self.rules.return_from == "raw_total" else None
        if outcome is not None and self.rules.return_from == "outcome":
            reward = outcome.get("completion")
        if reward is None:
            return "unscored"
        whole = conversation(record.trajectory, as_said=True).until_last_answer()
        if not whole.answers:
            return "no_answer"
        first = next(n for n, one in enumerate(whole.messages) if one["role"] == "assistant")
        if first == 0 or whole.messages[first - 1]["role"] not in ("user", "tool"):
            return "no_prompt"
        name = str(record.trajectory["trajectory_id"])
        return _Attempt(name, float(reward), whole.messages[:first], whole.messages[first:], whole.tools)

    def _key(self, record: Record, attempt: _Attempt) -> str:
        """Returns the values that two attempts must share: task and start, and the prompt. For ``raw_total``
        they must also share the reward components, because it is a sum of those that apply."""
        group = group_key(record.trajectory["task_context"])
        shared: list[Any] = [group, attempt.prompt, attempt.tools]
        if self.rules.return_from == "raw_total" and record.reward is not None:
            shared.append(sorted(record.reward["reward_components"]))
        return json.dumps(shared, sort_keys=True)


def _pair(better: _Attempt, worse: _Attempt, width: float) -> dict[str, Any]:
    made: dict[str, Any] = {
        "prompt": with_objects(better.prompt),
        "chosen": with_objects(better.answer),
        "rejected": with_objects(worse.answer),
        "margin": width,
        "chosen_id": better.trajectory_id,
        "rejected_id": worse.trajectory_id,
    }
    if better.tools:
        made["tools"] = json.dumps(better.tools, ensure_ascii=False)
    return made
