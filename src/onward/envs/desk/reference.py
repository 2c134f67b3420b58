"""Policies that need no model: the reference solution, demonstrations made from it, constant answers.

The constant policies are the baseline that a learned policy must beat. A change of the environment that lets
one of them succeed is a defect of the environment.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

from onward.envs.desk.episode import MAX_STEPS, DeskOutcome, Episode, Message
from onward.envs.desk.tasks import Task, tasks
from onward.envs.desk.tools import DAYS, NUMBERS

DEMONSTRATION_SEED = 1_000_003
"""Offset of the seeds of demonstrations, so that they differ from the tasks that agents work on."""
GIVES_UP = "unknown"


def call(tool_name: str, **tool_args: str) -> str:
    """Formats an answer as the desk expects it."""
    return json.dumps({"tool_name": tool_name, "tool_args": tool_args})


def solve(task: Task) -> list[str]:
    """Returns the reference solution: one answer per step, the last one a response."""
    return [call(s.tool_name, **dict(s.tool_args)) for s in task.stages] + [
        call("response", text=task.answer)
    ]


def play(task: Task, policy: Callable[[list[Message]], str]) -> tuple[list[Message], DeskOutcome]:
    """Runs ``policy`` (messages → answer) on ``task``; returns the whole conversation and the verdict."""
    episode = Episode(task)
    messages = episode.messages()
    while not episode.done:
        answer = policy(messages)
        step = episode.step(answer)
        messages.append({"role": "assistant", "content": answer})
        if step.observation is not None:
            messages.append({"role": "user", "content": step.observation})
    return messages, episode.outcome()


def demonstrations(n: int, seed: int = 0, careless: float = 0.0) -> list[list[Message]]:
    """Returns ``n`` conversations on training templates, kinds in turn; with ``careless`` 0 all are solved.

    ``careless`` is the share in which the assistant errs once, like a new colleague. It gives up instead of
    calling a tool, answers with an intermediate result, or calls a tool that is not needed. A policy
    warm-started on some of these knows the work and can still improve by itself.
    """
    found = []
    for task in tasks("train", n, DEMONSTRATION_SEED + seed):
        rng = random.Random(f"careless/{task.task_id}/0")
        if rng.random() < careless:
            found.append(_careless(task, rng))
        else:
            found.append(play(task, scripted(solve(task)))[0])
    return found


def _careless(task: Task, rng: random.Random) -> list[Message]:
    """Returns a conversation that fails by one mistake at a random step."""
    answers = solve(task)
    at = rng.randrange(len(answers))
    if not task.stages:
        day = rng.choice(DAYS)
        answers = [call("calendar", day=day), call("response", text=task.office.calendar[day])]
    else:
        half_way = task.stages[at - 1].result.split()[-1] if at > 0 else task.answer
        text = half_way if half_way != task.answer and rng.random() < 0.5 else GIVES_UP
        answers = [*answers[:at], call("response", text=text)]
    return play(task, scripted(answers))[0]


def scripted(answers: Sequence[str]) -> Callable[[list[Message]], str]:
    """Returns a policy that gives ``answers`` in turn and repeats the last one."""
    return lambda messages: answers[min((len(messages) - 2) // 2, len(answers) - 1)]


def constant_policies() -> dict[str, list[str]]:
    """Returns name → the same answers for every task, in turn, the last one repeated."""
    respond = {word: call("response", text=word) for word in ("ok", "lamp", "budget", "24", "saved")}
    return {
        **{f"always answers {word}": [answer] for word, answer in respond.items()},
        "always calculates": [call("calculator", expression="4*6")] * (MAX_STEPS - 1) + [respond["24"]],
        "calculates, answers 24": [call("calculator", expression="4*6"), respond["24"]],
        "searches, answers 24": [call("search", query="Mara room"), respond["24"]],
        "searches, calculates, answers 24": [
            call("search", query="lamp price"),
            call("calculator", expression="4*6"),
            respond["24"],
        ],
        "reads a note, a day, answers budget": [
            call("notes_read", name="travel"),
            call("calendar", day="monday"),
            respond["budget"],
        ],
        "saves a note, answers budget": [
            call("calendar", day="monday"),
            call("notes_save", name="travel", text="budget"),
            respond["budget"],
        ],
        "lists every value": [call("response", text=" ".join(str(value) for value in NUMBERS))],
        "says nothing": [""],
    }


def success_rate(answers: Sequence[str], panel: Sequence[Task]) -> float:
    """Returns the share of ``panel`` that a constant policy solves."""
    return sum(play(task, scripted(answers))[1].success for task in panel) / len(panel)
