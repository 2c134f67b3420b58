"""Policies that need no model: an environment's reference solution, recorded answers, and a random one.

The first and the last measure the highest success rate possible in an environment and the rate of chance, in
the same driver that plays models.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

from onward.envs.environment import Environment, LocalSource, Player
from onward.envs.rollouts import Action, Conversation, Episode, Source, rollouts
from onward.envs.tasks import TaskRef


class ScriptedPolicy:
    """Plays each episode with a player of its own; ``make`` gets the conversation that begins the episode."""

    def __init__(self, make: Callable[[Conversation], Player]) -> None:
        self._make = make
        self._players: dict[str, Player] = {}

    async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
        return [Action(self._act(conversation)) for conversation in conversations]

    def _act(self, conversation: Conversation) -> str:
        if conversation.turn == 0:
            self._players[conversation.key] = self._make(conversation)
        return self._players[conversation.key](conversation.messages[-1]["content"])


class RecordedPolicy:
    """Gives the answers of earlier attempts again: index of a task → one answer a turn."""

    def __init__(self, answers: Mapping[int, Sequence[str]]) -> None:
        self._answers = answers

    async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
        return [self._act(conversation) for conversation in conversations]

    def _act(self, conversation: Conversation) -> Action:
        answers = self._answers.get(conversation.task.index, ())
        if conversation.turn < len(answers):
            return Action(answers[conversation.turn])
        return Action("", stopped="no_more_answers")


def reference_policy(environment: Environment) -> ScriptedPolicy:
    """Returns a policy that solves every task of ``environment``."""
    return ScriptedPolicy(lambda conversation: environment.reference(environment.task(conversation.task)))


def random_policy(environment: Environment, seed: int = 0) -> ScriptedPolicy:
    """Returns a policy that takes any sensible action; the same seed gives the same actions."""

    def player(conversation: Conversation) -> Player:
        rng = random.Random(f"{conversation.key}/{seed}")
        return environment.random(environment.task(conversation.task), rng)

    return ScriptedPolicy(player)


def success_rate(episodes: Sequence[Episode]) -> float | None:
    """Returns the share of successes among the scored episodes; None when none is scored."""
    scored = [episode.success for episode in episodes if episode.is_scored]
    return sum(bool(success) for success in scored) / len(scored) if scored else None


async def measure(
    environment: Environment,
    policy: ScriptedPolicy,
    tasks: Sequence[TaskRef] | None = None,
    source: Source | None = None,
) -> list[Episode]:
    """Runs ``policy`` on ``tasks`` (default: the held-out panel) of ``source`` (default: in this process)."""
    panel = environment.panel(environment.held_out) if tasks is None else tasks
    return await rollouts(source or LocalSource(environment), policy, panel)
