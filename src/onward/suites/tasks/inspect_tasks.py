"""The shipped tasks for Inspect, with the extra ``eval``: ``inspect eval onward/code_generation``.

Items and judgement are those of ``shipped``; Inspect asks the model and keeps the log.
"""

# Inspect is installed in an environment of its own, if at all.
# pyright: reportMissingImports=false

from __future__ import annotations

import inspect_ai
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    get_model,
)
from inspect_ai.scorer import Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver

from onward.suites.tasks.shipped import task as shipped_task
from onward.suites.tasks.task import Item, Messages

_ROLES: dict[str, type[ChatMessageSystem] | type[ChatMessageUser] | type[ChatMessageAssistant]] = {
    "system": ChatMessageSystem,
    "user": ChatMessageUser,
    "assistant": ChatMessageAssistant,
}


@inspect_ai.task
def code_generation() -> inspect_ai.Task:
    """Python functions, run in Onward's sandbox."""
    return _task("code_generation")


@inspect_ai.task
def data_analysis() -> inspect_ai.Task:
    """Questions about small tables."""
    return _task("data_analysis")


@inspect_ai.task
def research_synthesis() -> inspect_ai.Task:
    """Answers with sources, from a shipped corpus."""
    return _task("research_synthesis")


@inspect_ai.task
def tool_usage() -> inspect_ai.Task:
    """Office work with six tools."""
    return _task("tool_usage")


def _task(name: str) -> inspect_ai.Task:
    shipped = shipped_task(name)
    items = {item.item_id: item for item in shipped.items()}
    samples = [
        Sample(
            id=item.item_id,
            input=_inspect_messages([dict(message) for message in item.messages]),
            target=list(item.reference),
            metadata={"kind": item.kind},
        )
        for item in items.values()
    ]
    return inspect_ai.Task(
        dataset=MemoryDataset(samples, name=name),
        solver=_playing(items, shipped.max_tokens),
        scorer=_judgement(),
        name=name,
        metadata={"digest": shipped.digest()},
    )


@solver
def _playing(items: dict[str, Item], max_tokens: int) -> Solver:
    async def solve(state: TaskState, generate: Generate) -> TaskState:
        async def complete(messages: Messages) -> str:
            config = GenerateConfig(max_tokens=max_tokens)
            state.output = await get_model().generate(_inspect_messages(messages), config=config)
            return state.output.completion

        item = items[str(state.sample_id)]
        messages = [dict(message) for message in item.messages]
        judged = await item.play(messages, complete)
        state.messages = _inspect_messages(messages)
        state.store.set("judgement", {"score": judged.score, "note": judged.note})
        return state

    return solve


@scorer(metrics=[accuracy(), stderr()])
def _judgement() -> Scorer:
    async def score(state: TaskState, target: Target) -> Score:
        judged = state.store.get("judgement")
        return Score(value=judged["score"], answer=state.output.completion, explanation=judged["note"])

    return score


def _inspect_messages(messages: Messages) -> list[ChatMessage]:
    return [_ROLES[message["role"]](content=message["content"]) for message in messages]
