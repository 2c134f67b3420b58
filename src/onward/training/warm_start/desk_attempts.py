"""Attempts of a policy at desk tasks, inside one process, to measure the warm start.

The agents of a running system go through the gateway instead. This path is for training children, which have
the weights in memory. Every attempt has exact token rows.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from onward.envs.desk import DeskOutcome, Episode, Task
from onward.lm import paths
from onward.lm.chat import Chat
from onward.lm.model import LanguageModel
from onward.lm.request import Sample, SampleRequest
from onward.lm.tokens import TokenRow


@dataclass
class Attempt:
    """One conversation with its verdict; ``row`` contains every token seen and sampled."""

    task: Task
    outcome: DeskOutcome
    unparsable: bool
    row: TokenRow


@dataclass
class _Running:
    episode: Episode
    messages: list[dict[str, Any]]
    row: TokenRow
    context: list[int] = field(default_factory=list)
    calls: int = 0


def attempt(
    policy: LanguageModel,
    adapter: str | None,
    tasks: Sequence[Task],
    *,
    max_tokens: int,
    temperature: float = 1.0,
    seed: int = 0,
    batch: int = 64,
) -> list[Attempt]:
    """Runs one attempt per entry of ``tasks`` (repeat a task for a group), in that order. The same arguments
    give the same attempts, whatever the load of the machine."""
    chat = Chat(policy.tokenizer)
    sampler = paths.sampler(policy, max_batch=batch)
    running = [_start(chat, task, temperature) for task in tasks]

    def submit(index: int) -> None:
        one = running[index]
        digest = hashlib.sha256(f"{seed}/{index}/{one.calls}".encode()).digest()
        sampler.submit(
            SampleRequest(
                request_id=str(index),
                prompt_ids=one.row.ids + one.context,
                max_new_tokens=max_tokens,
                temperature=temperature,
                stop_ids=chat.stop_ids,
                adapter=adapter,
                seed=int.from_bytes(digest[:6], "big"),
                for_training=temperature > 0,
            )
        )

    for index in range(len(running)):
        submit(index)
    while sampler.busy:
        for sample in sampler.step():
            index = int(sample.request_id)
            if _advance(chat, running[index], sample):
                submit(index)
    return [
        Attempt(one.episode.task, one.episode.outcome(), one.episode.unparsable, one.row) for one in running
    ]


def by_kind(attempts: Sequence[Attempt]) -> dict[str, float]:
    """Returns the share of successes per kind of task."""
    found: defaultdict[str, list[bool]] = defaultdict(list)
    for one in attempts:
        found[one.task.kind].append(one.outcome.success)
    return {kind: sum(values) / len(values) for kind, values in sorted(found.items())}


def success(attempts: Sequence[Attempt]) -> float:
    """Returns the share of successes."""
    return sum(one.outcome.success for one in attempts) / len(attempts)


def mixed_share(attempts: Sequence[Attempt]) -> float:
    """Returns the share of tasks whose attempts neither all succeed nor all fail: only they rank attempts."""
    groups: defaultdict[str, set[bool]] = defaultdict(set)
    for one in attempts:
        groups[one.task.task_id].add(one.outcome.success)
    return sum(len(outcomes) == 2 for outcomes in groups.values()) / len(groups)


def _start(chat: Chat, task: Task, temperature: float) -> _Running:
    episode = Episode(task)
    messages: list[dict[str, Any]] = [dict(message) for message in episode.messages()]
    return _Running(episode, messages, TokenRow([], [], [], temperature), chat.render(messages))


def _advance(chat: Chat, one: _Running, sample: Sample) -> bool:
    """Appends a sampled answer and the desk's reply; returns True when another answer is needed."""
    row = one.row
    row.ids += one.context + sample.token_ids
    row.sampled += [False] * len(one.context) + [True] * len(sample.token_ids)
    row.logprobs += [0.0] * len(one.context) + sample.logprobs
    one.calls += 1
    answer = chat.text(sample.token_ids)
    step = one.episode.step(answer)
    if step.observation is None:
        return False
    before = list(one.messages)
    one.messages.append({"role": "assistant", "content": answer})
    one.messages.append({"role": "user", "content": step.observation})
    context = chat.extend(row.ids, before, one.messages, sample.finish_reason == "stop")
    one.context = context or []
    return context is not None
