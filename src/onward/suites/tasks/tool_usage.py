"""The task ``tool_usage``: office work with the desk's six tools, in wordings of the test split.

No training job and no release's desk suite uses these wordings. The desk's own program judges.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial

from onward.envs import desk
from onward.suites.tasks.task import Complete, Item, Judgement, Messages, ask, digest_of

_SIZE = 60
_SEED = 17
_SPLIT = "test"


class ToolUsage:
    """Desk tasks of five kinds."""

    name = "tool_usage"
    max_tokens = 96

    def items(self) -> Sequence[Item]:
        return [_item(task) for task in desk.tasks(_SPLIT, _SIZE, _SEED)]

    async def check(self) -> None:
        """Needs nothing."""

    def digest(self) -> str:
        panel = desk.panel_hash(_SPLIT, _SIZE, _SEED)
        return digest_of("tool_usage", more=hashlib.sha256(panel.encode()).hexdigest())


def _item(task: desk.Task) -> Item:
    return Item(
        task.task_id,
        task.kind,
        tuple({"role": one["role"], "content": one["content"]} for one in desk.Episode(task).messages()),
        tuple(desk.solve(task)),
        ('{"tool_name": "response", "tool_args": {"text": "unknown"}}',),
        partial(_play, task=task),
    )


async def _play(messages: Messages, complete: Complete, *, task: desk.Task) -> Judgement:
    """Plays the task to its end. Only full success counts: half of the steps is no use to a user."""
    episode = desk.Episode(task)
    error = ""
    while not episode.done:
        step = episode.step(await ask(messages, complete))
        error = step.error or error
        if step.observation is not None:
            messages.append({"role": "user", "content": step.observation})
    outcome = episode.outcome()
    note = f"{outcome.status}, {outcome.completion:.0%} of the way" + (f"; {error}" if error else "")
    return Judgement(float(outcome.success), note)
