"""Differences between the servers that speak AgentGym's protocol: one entry a family, one reader for all
answers.

Facts were read from AgentGym at commit 3ef9235 and recorded wire transcripts.

Invariants: ``reward`` is one step's and ``score`` the sum, in every dialect. This module converts the one
that a server sends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onward.envs.environment import parse_action
from onward.envs.failures import EnvironmentFailure
from onward.envs.rollouts import Reply
from onward.errors import ConfigError

_LOST = re.compile(r"\bid\b.*\bnot valid\b|\bdeleted\b|\bclosed\b", re.I)
_NOT_TEXTCRAFT = re.compile(r"[^A-Za-z0-9, ]+")
_FORM = "Think first if you like, then answer with a line 'Action: ' and your action."


def _plain(answer: str) -> str:
    return _NOT_TEXTCRAFT.sub("", parse_action(answer))


@dataclass(frozen=True)
class Dialect:
    """One kind of server. AgentGym's own report no instructions and no horizon, so Onward defines them."""

    name: str
    instructions: str = ""
    horizon: int = 1
    prefix: str = ""
    """Prefix of each path."""
    reset_key: str = "data_idx"
    """Field of ``/reset`` with the number of the task."""
    has_close: bool = True
    full_score: float = 1.0
    """Score of success; scores are divided by it."""
    first_reward_is_success: bool = False
    """True for BabyAI: it leaves an episode open that succeeded late, and goes on adding to its score."""
    parse: Callable[[str], str] = parse_action
    """Answer → action, done here since the server does not. Raises ValueError with a text for the agent."""
    tasks: int | None = None
    """Number of tasks; a larger index begins again at the first. None: not known, or without end."""
    starts_at_create: bool = False
    """True if ``/create`` takes the task, so no ``/reset`` is needed."""


ONWARD = Dialect("onward", parse=lambda answer: answer, starts_at_create=True)
"""Onward's own dialect: the rest comes from ``/meta``, and the server parses."""

DIALECTS: dict[str, Dialect] = {
    "onward": ONWARD,
    "textcraft": Dialect(
        "textcraft",
        instructions="Craft the goal. Commands: 'get N ITEM' for what cannot be crafted, 'inventory', and "
        f"the listed crafting commands, each exactly as it is listed, always with the numbers. {_FORM}",
        horizon=30,
        parse=_plain,
        tasks=544,
    ),
    "babyai": Dialect(
        "babyai",
        instructions=f"Reach the goal in a world of rooms. Every observation lists the actions. {_FORM}",
        horizon=20,
        first_reward_is_success=True,
    ),
    "sciworld": Dialect(
        "sciworld",
        instructions=f"Carry out the science task in a text world. {_FORM}",
        horizon=30,
        full_score=100.0,
    ),
    "lmrl_maze": Dialect(
        "lmrl_maze",
        instructions=f"Walk to the goal. Actions: move up, move down, move left, move right. {_FORM}",
        horizon=50,
        prefix="/maze",
        reset_key="game",
        has_close=False,
    ),
    "lmrl_wordle": Dialect(
        "lmrl_wordle",
        instructions=f"Guess the word of five letters, written with spaces between the letters. {_FORM}",
        horizon=6,
        prefix="/wordle",
        reset_key="seed",
        has_close=False,
    ),
}
"""Name → dialect."""

_GREETINGS = {
    "textcraft": "textcraft",
    "babyai": "babyai",
    "sciworld": "sciworld",
    "scienceworld": "sciworld",
}


def dialect(name: str) -> Dialect:
    """Returns a dialect. Raises ConfigError for an unknown name."""
    if name not in DIALECTS:
        raise ConfigError(f"There is no dialect {name[:40]!r}: choose one of {', '.join(DIALECTS)}.")
    return DIALECTS[name]


def recognise(greeting: object) -> Dialect:
    """Identifies a server's dialect by its answer to ``GET /``. Raises ConfigError for an unknown one."""
    said = greeting.lower() if isinstance(greeting, str) else ""
    for word, name in _GREETINGS.items():
        if word in said:
            return DIALECTS[name]
    raise ConfigError(
        f"The environment server says {str(greeting)[:60]!r}, which names no known environment: "
        f"name the dialect, one of {', '.join(DIALECTS)}."
    )


def read_id(document: object) -> int | str:
    """Returns the id in the answer to ``/create``, to be sent back unchanged. Raises EnvironmentFailure."""
    number = _refuse_error(document).get("id") if isinstance(document, dict) else document
    if isinstance(number, bool) or not isinstance(number, int | str):
        raise _bad("/create", f"an id was expected, {_shown(document)} came")
    return number


def read_start(document: object) -> str:
    """Returns the first observation, from ``/reset``: a field of an object, or a bare string."""
    return read_observation(document, "/reset")


def read_observation(document: object, path: str = "/observation") -> str:
    """Returns an observation, bare or in an object. Raises EnvironmentFailure."""
    said = _refuse_error(document).get("observation") if isinstance(document, dict) else document
    if not isinstance(said, str):
        raise _bad(path, f"an observation was expected, {_shown(document)} came")
    return said


def read_step(spoken: Dialect, document: object, score_before: float) -> Reply:
    """Reads the answer to ``/step``. ``score_before`` counts where a server sends no score. Raises
    EnvironmentFailure."""
    if not isinstance(document, dict):
        raise _bad("/step", f"an object was expected, {_shown(document)} came")
    fields = _refuse_error(document)
    observation = read_observation(fields, "/step")
    done = fields.get("done")
    if not isinstance(done, bool):
        raise _bad("/step", f"done must be true or false, {_shown(done)} came")
    reward = _number(fields, "reward") / spoken.full_score
    has_score = fields.get("score") is not None
    score = _number(fields, "score") / spoken.full_score if has_score else score_before + reward
    success = fields.get("success")
    if spoken.first_reward_is_success and reward > 0:
        done, success = True, True
    if not isinstance(success, bool):
        success = score >= 1.0 if done else None
    return Reply(observation, reward, score, done, success if done else None)


def _refuse_error(document: dict[str, Any]) -> dict[str, Any]:
    """Raises EnvironmentFailure for AgentGym's errors, which have status 200 and ``{"error": text}``."""
    error = document.get("error")
    if error is None:
        return document
    lost = isinstance(error, str) and _LOST.search(error)
    raise EnvironmentFailure(
        "lost_instance" if lost else "env_error", f"The environment server reported: {_shown(error)}."
    )


def _number(fields: dict[str, Any], name: str) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _bad("/step", f"{name} must be a number, {_shown(value)} came")
    return float(value)


def _bad(path: str, what: str) -> EnvironmentFailure:
    return EnvironmentFailure("bad_answer", f"The answer to {path} is not of the protocol's form: {what}.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
