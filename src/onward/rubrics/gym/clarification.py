"""Clarification: questions of the manager to the stakeholder, counted one by one, in a log with a limit."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from onward.rubrics.gym.parts import Part, WorkflowError

MAX_QUESTIONS = 3
"""Questions of one turn: a longer list is refused, so that no turn is stuffed."""


class Question(Part):
    """One question: a topic that the stakeholder knows, and the words for a person."""

    topic: str
    text: str = ""


class ConversationTurn(Part):
    """One question with its answer. ``index`` counts the turns; the questions of a turn share it."""

    index: int
    topic: str
    question: str
    answer: str
    cost: float = Field(ge=0)


class Answering(Protocol):
    """A stakeholder that answers a question by its topic."""

    def answer(self, question: Question) -> str: ...


class Conversation:
    """Log of the questions and answers of one episode.

    Invariants: no more than ``max_turns`` turns; it is of one episode alone.
    """

    def __init__(self, max_turns: int, price: float) -> None:
        self.max_turns, self.price = max_turns, price
        self.turns: list[ConversationTurn] = []
        self.used = 0

    @property
    def turns_left(self) -> int:
        """Turns in which the manager may still ask."""
        return self.max_turns - self.used

    @property
    def cost(self) -> float:
        """Price of every question so far."""
        return sum(turn.cost for turn in self.turns)

    def ask(self, questions: tuple[Question, ...], stakeholder: Answering) -> tuple[ConversationTurn, ...]:
        """Asks the questions of one turn and logs the answers. Raises WorkflowError if no turn is left."""
        if not 1 <= len(questions) <= MAX_QUESTIONS:
            raise WorkflowError(
                f"A turn has {len(questions)} questions: ask at least 1 and at most {MAX_QUESTIONS}."
            )
        if self.turns_left <= 0:
            raise WorkflowError(
                f"The manager asks in turn {self.used + 1}, and {self.max_turns} turns are allowed: "
                "it has to write its rubric now; a larger max_turns allows more."
            )
        self.used += 1
        new = tuple(
            ConversationTurn(
                index=self.used,
                topic=one.topic,
                question=one.text or one.topic,
                answer=stakeholder.answer(one),
                cost=self.price,
            )
            for one in questions
        )
        self.turns.extend(new)
        return new


class CommunicationService:
    """Opens a conversation for each episode. ``price`` is the cost of each question, repeated ones too."""

    def __init__(self, price: float = 0.04) -> None:
        if price < 0:
            raise WorkflowError(f"The price of a question is {price}: give 0 or more.")
        self.price = price
        self.conversations: list[Conversation] = []
        """Conversations so far, the last at the end."""

    def open(self, max_turns: int) -> Conversation:
        """Returns a new conversation. Raises WorkflowError for a negative limit."""
        if max_turns < 0:
            raise WorkflowError(f"max_turns is {max_turns}: give 0 or more.")
        self.conversations.append(Conversation(max_turns, self.price))
        return self.conversations[-1]
