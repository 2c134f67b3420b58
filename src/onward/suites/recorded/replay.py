"""Replays recorded tasks against a policy: asks what was asked then, and answers its calls from the record.

Invariants: no tool is called. A call that the record has not is answered with an error result in words, and
counted. A policy gets as many further answers as the record has calls, and a few more, then the task ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, Literal

from onward.envs.registry import load
from onward.suites.asking import Asker, play_each
from onward.suites.recorded import judging
from onward.suites.recorded.tasks import RecordedTask, said_calls
from onward.suites.suite import Endpoint, ItemResult, OnItem

MORE_ANSWERS = 3
"""Answers that a policy may need beyond those of the record."""
PASS_SCORE = 0.5
"""Score of a rubric from which a task counts as solved."""
UNKNOWN_CALL = "Error: there is no result for this call. Use another call, or answer with what is known."

Rubric = Callable[[dict[str, Any], list[dict[str, Any]]], Any]
"""``rubric(task, transcript)`` returns a score from 0 to 1, alone or with a reason."""


def load_rubric(place: str | None) -> Rubric | None:
    """Returns the rubric of ``validation.rubric``, None if it is not set. Raises ConfigError."""
    return None if place is None else load(place, "rubric", ("package.module:function",))


class ReplaySuite:
    """Tasks with their record. ``rubric`` judges in place of the outcome rule."""

    purpose: Literal["benchmark", "safety"] = "benchmark"

    def __init__(
        self,
        name: str,
        tasks: Sequence[RecordedTask],
        rubric: Rubric | None = None,
        *,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """``facts``: how the tasks were chosen, for the report of a validation."""
        self.name, self.tasks, self._rubric = name, list(tasks), rubric
        self.facts = dict(facts or {})

    @property
    def size(self) -> int:
        return len(self.tasks)

    @property
    def item_ids(self) -> list[str]:
        return [item.item_id for item in self.tasks]

    def without(self, done: Collection[str]) -> ReplaySuite:
        rest = copy(self)
        rest.tasks = [item for item in self.tasks if item.item_id not in done]
        return rest

    def digest(self) -> str:
        """Returns the hash of the tasks and of the judgement's source."""
        rows = json.dumps([task.document() for task in self.tasks], sort_keys=True, ensure_ascii=False)
        return hashlib.sha256(f"{_source(self._rubric)}\n{rows}".encode()).hexdigest()

    async def run(self, policy: Endpoint, *, seed: int, on_item: OnItem | None = None) -> list[ItemResult]:
        """Replays every task. Raises EngineError."""
        async with Asker(policy, seed=seed) as asker:
            return await play_each(self.tasks, partial(self._replay, asker), on_item=on_item)

    async def _replay(self, asker: Asker, task: RecordedTask) -> ItemResult:
        playing = _Playing(task)
        while (answer := await asker.ask(playing.messages, task.item_id, task.tools)) and not answer.refused:
            if playing.take(answer.text, answer.calls):
                break
            playing.messages.append(answer.message())
            playing.answer_calls()
        if answer.refused:
            note = f"the policy refused the request: {answer.refused}"
            return ItemResult(task.item_id, task.kind, 0.0, False, playing.messages, note)
        playing.messages.append(answer.message())
        return await self._judged(playing)

    async def _judged(self, playing: _Playing) -> ItemResult:
        task, missing = playing.task, playing.missing
        words = f"; {missing} calls without a recorded result" if missing else ""
        if self._rubric is None:
            solved, why = judging.judge(task, playing.final, playing.last, playing.every)
            score: float | None = float(solved)
        else:
            score, why = await _scored(self._rubric, task, playing.messages)
            solved = score is not None and score >= PASS_SCORE
        note = why + words
        return ItemResult(
            task.item_id, task.kind, score, solved, playing.messages, note, fault="judge"
        )  # without a score only by a rubric that failed


class _Playing:
    """One task in progress."""

    def __init__(self, task: RecordedTask) -> None:
        self.task = task
        self.messages = [dict(message) for message in task.messages]
        self.final, self.last, self.every = "", [], []
        self.missing = 0
        self._results = judging.recorded_results(task.calls)
        self._names = frozenset(call.name for call in task.calls)
        self._ends = {judging.key(call.name, call.arguments) for call in task.final_calls}
        self._left = task.answers + MORE_ANSWERS

    def take(self, text: str, calls: Sequence[Any]) -> bool:
        """Takes an answer; returns whether it is the last: it calls nothing, or as the record ended."""
        self._left -= 1
        self.final, self.last = text, said_calls(text, calls, self._names)
        self.every += self.last
        ends = any(judging.key(name, arguments) in self._ends for _, name, arguments in self.last)
        return not self.last or ends or self._left <= 0

    def answer_calls(self) -> None:
        """Adds the recorded results of the calls: as tool messages where the record offered tools, else as a
        message of the user, as agents do that write their calls as text."""
        for number, name, arguments in self.last:
            found = self._results.get(judging.key(name, arguments))
            if found is None:
                self.missing += 1
            result = UNKNOWN_CALL if found is None else found.pop(0) if len(found) > 1 else found[0]
            if self.task.tools:
                self.messages.append({"role": "tool", "tool_call_id": number, "content": result})
            else:
                self.messages.append({"role": "user", "content": result})


async def _scored(
    rubric: Rubric, task: RecordedTask, messages: list[dict[str, Any]]
) -> tuple[float | None, str]:
    """Returns score and reason. A rubric that fails leaves the item unscored: not the policy's fault."""
    try:
        if inspect.iscoroutinefunction(rubric):
            found = await rubric(task.document(), messages)
        else:
            found = await asyncio.to_thread(rubric, task.document(), messages)
        score, why = found if isinstance(found, tuple) else (found, "by the rubric")
        if not 0.0 <= float(score) <= 1.0:
            return None, f"the rubric gave {score!r}, which is not from 0 to 1"
        return float(score), str(why)
    except Exception as error:  # the user's code; the item is counted as unscored and named
        return None, f"the rubric failed ({type(error).__name__})"


def _source(rubric: Rubric | None) -> str:
    """Returns what identifies the judgement: the rubric's source file, or the version of the rule."""
    if rubric is None:
        return f"rule {judging.VERSION}"
    file = inspect.getsourcefile(inspect.unwrap(rubric))
    return Path(file).read_text(encoding="utf-8") if file else repr(rubric)
