"""The stakeholder: a table that answers one of six topics with one of three phrases, never with a rubric.

An answer has at most log2 3 bits. A repeated question, one off topic, or one that the brief answers already
brings nothing, and costs the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onward.errors import ConfigError, RefusedError
from onward.rubrics.tasks import phrases
from onward.rubrics.tasks.checks import DIMENSIONS
from onward.rubrics.tasks.task import RubricTask
from onward.spelling import closest_name

OTHER = "other"
"""The topic of every question that is about none of the six dimensions."""
TOPICS = (*DIMENSIONS, OTHER)
MOST_TURNS = 3
MOST_QUESTIONS = 3
"""Questions of one turn; each costs by itself."""
QUESTION_COST = 1


@dataclass(frozen=True)
class Reply:
    """An answer. ``level`` is what it says about the topic; None if it has no information."""

    topic: str
    text: str
    level: int | None
    cost: int = QUESTION_COST


@dataclass(frozen=True)
class Turn:
    """One question of the log and its answer; questions of one turn share the index."""

    index: int
    topic: str
    question: str
    answer: str
    cost: int


class TaskStakeholder:
    """Answers the questions of one episode. It shares nothing with other episodes."""

    def __init__(self, task: RubricTask, *, turns: int = MOST_TURNS) -> None:
        if not 1 <= turns <= MOST_TURNS:
            raise ConfigError(f"{turns} turns were asked for: give 1 to {MOST_TURNS}.")
        self._task, self._turns, self._used = task, turns, 0
        self._log: list[Turn] = []

    @property
    def log(self) -> tuple[Turn, ...]:
        """Every question so far, in order."""
        return tuple(self._log)

    @property
    def cost(self) -> int:
        """The number of questions that are charged."""
        return sum(turn.cost for turn in self._log)

    @property
    def turns_left(self) -> int:
        return self._turns - self._used

    def ask(self, topic: str) -> Reply:
        """Returns the answer to one question, which is a turn of its own.

        Raises ConfigError for a topic that does not exist, RefusedError when no turn is left.
        """
        return self.ask_together([topic])[0]

    def ask_together(self, topics: Sequence[str]) -> tuple[Reply, ...]:
        """Returns the answers to the one to three questions of one turn; each is charged."""
        if not 1 <= len(topics) <= MOST_QUESTIONS:
            raise ConfigError(f"A turn has {len(topics)} questions: ask 1 to {MOST_QUESTIONS} together.")
        for topic in topics:
            if topic not in TOPICS:
                near = closest_name(topic, TOPICS)
                hint = f"did you mean {near!r}?" if near else f"give one of {', '.join(TOPICS)}."
                raise ConfigError(f"There is no topic {topic!r}: {hint}")
        if not self.turns_left:
            raise RefusedError(
                f"The stakeholder has answered {self._turns} turns of questions, which is the limit: "
                "write the rubric now."
            )
        self._used += 1
        return tuple(self._answered(topic) for topic in topics)

    def _answered(self, topic: str) -> Reply:
        reply = self._reply(topic)
        self._log.append(Turn(self._used, topic, question(topic), reply.text, reply.cost))
        return reply

    def _reply(self, topic: str) -> Reply:
        task = self._task
        if any(turn.topic == topic for turn in self._log):
            wordings = phrases.REPEATED
        elif topic == OTHER:
            wordings = phrases.OFF_TOPIC
        elif topic not in task.hidden:
            wordings = phrases.STATED
        else:
            level = task.levels[topic]
            return Reply(topic, phrases.answer(task.family, task.seed, topic, level), level)
        return Reply(topic, phrases.refusal(wordings, task.family, task.seed, topic), None)


def question(topic: str) -> str:
    """Returns a question about ``topic`` in words."""
    if topic == OTHER:
        return "Is there anything else that I should know?"
    return f"How much do you care about {phrases.ASPECTS[topic][0]}?"
