"""The manager that turns a stakeholder's wishes into a rubric, by a local model or by the small policy."""

from __future__ import annotations

from pathlib import Path
from types import GenericAlias
from typing import Any, Literal

from pydantic import BaseModel, Field, create_model

from onward.errors import ConfigError
from onward.rubrics.backends import Backend
from onward.rubrics.backends.local import VLLMInterface
from onward.rubrics.evaluation import Evaluator, Preference
from onward.rubrics.gym.actions import AskClarificationQuestions, GeneratePreferenceRubric
from onward.rubrics.gym.clarification import MAX_QUESTIONS, CommunicationService, Question
from onward.rubrics.gym.phases import (
    AnyRubric,
    InitialRubricGenerationPhase,
    RubricAction,
    RubricManager,
    RubricObservation,
)
from onward.rubrics.gym.softmax_policy import Decision, SoftmaxPolicy
from onward.rubrics.gym.stakeholder import Stakeholder
from onward.rubrics.gym.truth_files import criterion_of
from onward.rubrics.gym.workflow import Workflow
from onward.rubrics.language import LEAST_CRITERIA, MOST_CRITERIA, WEIGHTS

SYSTEM = "You write the rubric by which the files of a project are judged. Answer in JSON."


class RubricDecompositionManagerAgent:
    """Asks the stakeholder and writes a rubric. One object serves one episode.

    ``use_local`` takes the model in ``model_path``; otherwise the policy ``writer`` decides, a new one by
    default. ``decisions`` are those of the policy, with their log-probabilities.
    """

    def __init__(
        self,
        *,
        use_local: bool = False,
        model_path: str | Path | None = None,
        writer: SoftmaxPolicy | None = None,
        local_llm: Backend | None = None,
        temperature: float = 1.0,
        seed: int = 42,
    ) -> None:
        if use_local and model_path is None and local_llm is None:
            raise ConfigError(
                "use_local needs a model: give model_path, a folder, or with vLLM the name of a model."
            )
        self.use_local = use_local
        self.local_llm: Backend | None = None
        if use_local:
            self.local_llm = local_llm or VLLMInterface(str(model_path))
        self.writer = writer or SoftmaxPolicy(seed)
        self.decisions: list[Decision] = []
        self._temperature, self._seed = temperature, seed
        self._to_ask: list[str] | None = None

    async def take_action(self, observation: RubricObservation) -> RubricAction:
        """Returns the next action: questions while there are topics and turns, then the rubric."""
        if self._to_ask is None:
            self._to_ask = await self._topics(observation)
        if self._to_ask and observation.turns_left > 0:
            now, self._to_ask = self._to_ask[:MAX_QUESTIONS], self._to_ask[MAX_QUESTIONS:]
            questions = tuple(Question(topic=one, text=f"How much does {one} matter to you?") for one in now)
            return AskClarificationQuestions(questions=questions)
        return GeneratePreferenceRubric(rubric=await self._rubric(observation))

    async def _topics(self, observation: RubricObservation) -> list[str]:
        if self.local_llm is None:
            topics, decisions = self.writer.ask(observation)
            self.decisions += decisions
            return list(topics)
        answer: Any = await self.local_llm.generate_structured(
            SYSTEM, _about(observation) + "\nWhich topics do you ask about?", _topics_type(observation),
            self._temperature, self._seed,
        )  # fmt: skip
        return list(dict.fromkeys(answer.topics))

    async def _rubric(self, observation: RubricObservation) -> Evaluator:
        if self.local_llm is None:
            rubric, decisions = self.writer.write(observation)
            self.decisions += decisions
            return rubric
        listed = "\n".join(f"{i}. {one.sentence}" for i, one in enumerate(observation.requirements, 1))
        answers = "\n".join(f"{turn.topic}: {turn.answer}" for turn in observation.turns)
        answer: Any = await self.local_llm.generate_structured(
            SYSTEM,
            f"{_about(observation)}\n{answers}\nTake {LEAST_CRITERIA} to {MOST_CRITERIA} criteria by number, "
            f"each with a weight from {WEIGHTS[0]} to {WEIGHTS[-1]}:\n{listed}",
            _rubric_type(len(observation.requirements)), self._temperature, self._seed,
        )  # fmt: skip
        weights: dict[int, int] = {}
        for one in answer.criteria:
            weights[one.criterion] = max(one.weight, weights.get(one.criterion, 0))
        return Evaluator(
            name=f"written:{observation.workflow}",
            rubrics=tuple(
                criterion_of(observation.requirements[number - 1], weight)
                for number, weight in sorted(weights.items())
            ),
        )


def _about(observation: RubricObservation) -> str:
    profile = observation.stakeholder
    return f"Project: {observation.goal}\n{profile.name}, {profile.role}, {profile.summary}."


def _topics_type(observation: RubricObservation) -> type[BaseModel]:
    """Returns the type of a list of topics to ask about."""
    topic: Any = Literal[tuple(observation.topics)]
    fields: dict[str, Any] = {"topics": (GenericAlias(list, (topic,)), Field(max_length=MAX_QUESTIONS))}
    return create_model("Topics", **fields)


def _rubric_type(count: int) -> type[BaseModel]:
    """Returns the type of a rubric over ``count`` criteria: numbers with weights from 1 to 5."""
    number: Any = Literal[tuple(range(1, count + 1))]
    weight: Any = Literal[WEIGHTS]
    choice = create_model("Choice", criterion=(number, ...), weight=(weight, ...))
    size = Field(min_length=LEAST_CRITERIA, max_length=MOST_CRITERIA)
    fields: dict[str, Any] = {"criteria": (GenericAlias(list, (choice,)), size)}
    return create_model("WrittenRubric", **fields)


async def decompose_preference_to_evaluator(
    preference: Preference | str,
    workflow: Workflow,
    stakeholder: Stakeholder | None = None,
    manager: RubricManager | None = None,
    max_turns: int = 3,
) -> AnyRubric:
    """Returns a rubric for a preference of the stakeholder: the first phase, run once.

    The rubric of a preference that has an evaluator already is that evaluator.
    """
    if isinstance(preference, Preference) and preference.evaluator is not None:
        return preference.evaluator
    phase = InitialRubricGenerationPhase(
        manager=manager or RubricDecompositionManagerAgent(),
        stakeholder=stakeholder or Stakeholder(workflow.owner),
        communication_service=CommunicationService(),
        max_turns=max_turns,
    )
    return await phase.run(workflow)
