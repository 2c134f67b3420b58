"""Episodes of a writer that is no trained policy: a language model behind a backend, or a reference point.

Both play as ``policy.episodes.Player`` does, so that one evaluation judges them all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from types import GenericAlias
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from onward.errors import ConfigError
from onward.lm.tokens import TokenRow
from onward.rubrics.backends import Backend, ModelAnswerError
from onward.rubrics.language import Criterion, InvalidRubric, Rubric, parse, serialise
from onward.rubrics.language.criteria import LEAST_CRITERIA, MOST_CRITERIA, WEIGHTS
from onward.rubrics.language.writing import arguments_of
from onward.rubrics.policy import prompts
from onward.rubrics.policy.episodes import QUESTIONS, Ask, Attempt, StakeholderOf, answers_of
from onward.rubrics.tasks import TOPICS, RubricTask
from onward.rubrics.tasks.baselines import BASELINES
from onward.spelling import closest_name

AT_ONCE = 8
"""Episodes that a backend plays at the same time."""


class BackendPlayer:
    """Plays episodes with a language model: its questions and its rubric are typed answers."""

    def __init__(self, backend: Backend, *, questions: int = QUESTIONS) -> None:
        self.backend, self.questions = backend, questions

    def play(
        self,
        tasks: Sequence[RubricTask],
        *,
        seed: int = 0,
        temperature: float = 0.0,
        stakeholder: StakeholderOf = answers_of,
    ) -> list[Attempt]:
        """Runs one episode for each entry of ``tasks`` and returns them in that order. Without a stakeholder
        no question is put. A refusal, a truncated answer and one of another type are invalid rubrics. Raises
        EngineError if the model is away."""

        async def all_of_them() -> list[Attempt]:
            slots, backend = asyncio.Semaphore(AT_ONCE), self.backend

            async def one(number: int, task: RubricTask) -> Attempt:
                async with slots:
                    return await self._episode(task, stakeholder(task), seed + number, temperature)

            async with AsyncExitStack() as stack:
                if isinstance(backend, AbstractAsyncContextManager):
                    await stack.enter_async_context(backend)
                return await asyncio.gather(*(one(number, task) for number, task in enumerate(tasks)))

        return asyncio.run(all_of_them())

    async def _episode(self, task: RubricTask, ask: Ask | None, seed: int, temperature: float) -> Attempt:
        text, asked, problem = prompts.opening(task)[-1]["content"], [], ""
        rubric: Rubric | None = None
        written = ""
        try:
            while ask is not None and len(asked) < self.questions:
                wanted: Any = await self.backend.generate_structured(
                    prompts.SYSTEM, f"{text}\nWhich topic do you ask about?", _Question, temperature, seed
                )
                if wanted.ask == prompts.ENOUGH:
                    break
                asked.append(wanted.ask)
                text += f"\nYou asked about {wanted.ask}. The stakeholder: {ask(wanted.ask)}"
            answer = await self.backend.generate_structured(
                prompts.SYSTEM, f"{text}\n{prompts.NOW}", rubric_type(task), temperature, seed
            )
            written = json.dumps(answer.model_dump())
            rubric = parse(written, task.active)
        except (ModelAnswerError, InvalidRubric) as error:
            problem = str(error)
        return Attempt(task, _no_tokens(), tuple(asked), written, rubric, problem)


class BaselinePlayer:
    """Plays episodes of a reference point, which needs no model."""

    def __init__(self, name: str) -> None:
        if name not in BASELINES:
            near = closest_name(name, BASELINES)
            hint = f"did you mean {near}?" if near else f"give one of {', '.join(BASELINES)}."
            raise ConfigError(f"There is no reference point {name!r}: {hint}")
        self.baseline = BASELINES[name]

    def play(
        self,
        tasks: Sequence[RubricTask],
        *,
        seed: int = 0,
        temperature: float = 0.0,
        stakeholder: StakeholderOf = answers_of,
    ) -> list[Attempt]:
        """Returns the reference point's rubric of each task; the other arguments change nothing."""
        return [self._attempt(task) for task in tasks]

    def _attempt(self, task: RubricTask) -> Attempt:
        weights = self.baseline.write(task)
        asked = task.hidden[: self.baseline.questions(task)]
        try:
            rubric = Rubric(
                Criterion(check, int(weight))
                for check, weight in zip(task.active, weights, strict=True)
                if weight > 0
            )
        except InvalidRubric as error:
            return Attempt(task, _no_tokens(), asked, "", None, str(error))
        return Attempt(task, _no_tokens(), asked, serialise(rubric), rubric)


def _no_tokens() -> TokenRow:
    return TokenRow([], [], [], 1.0)


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


_Topic: Any = Literal[(*TOPICS, prompts.ENOUGH)]
_Question = create_model("Question", __base__=_Part, ask=(_Topic, ...))


def rubric_type(task: RubricTask) -> type[BaseModel]:
    """Returns the type of the rubrics over the active checks of a task, for a structured answer."""
    weight: Any = Literal[WEIGHTS]
    kinds = [
        create_model(
            f"Criterion{number}",
            __base__=_Part,
            check=(_literal([name]), ...),
            arg=(_literal(arguments), ...),
            weight=(weight, ...),
        )
        for number, (name, arguments) in enumerate(arguments_of(task.active).items(), 1)
    ]
    criterion: Any = kinds[0]
    for kind in kinds[1:]:
        criterion = criterion | kind
    limits = Field(min_length=LEAST_CRITERIA, max_length=MOST_CRITERIA)
    criteria: Any = GenericAlias(list, (criterion,))
    return create_model("Rubric", __base__=_Part, criteria=(criteria, limits))


def _literal(values: Sequence[str]) -> Any:
    return Literal[tuple(values)]
