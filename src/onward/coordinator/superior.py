"""Messages of the superior agent: ``call_subordinate(profile="rl-trainer", message="Trigger training …")``.

A message is a request on ``agent.rl.trainer.request`` with the arguments of that call as its body. Whatever
asks for training makes one manual job. What the sentence says about the data goes into the request. Anything
else is answered with a sentence, never guessed. Pure.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, get_args

from onward.contracts.training import Algorithm
from onward.errors import ContractError

PROFILE = "rl-trainer"
LONGEST = 2000
MOST_SAMPLES = 10_000_000
MOST_DAYS = 3650
_ASKS = re.compile(
    r"\b(trigger|start|run|initiate|begin|launch|request)\b.{0,60}\b(re)?train(ing)?\b|^\s*(re)?train\b", re.I
)
_REFUSES = re.compile(
    r"\b(not|dont|never|without|stop|cancel|abort|pause)\b|n['\u2019\u02bc]t\b"
    r"|^\W*(when|why|what|which|how|who|where|did|does|has|had|is|was|were|are)\b",
    re.I,
)
"""Words that forbid a training, and those that begin a question about one."""
_SAMPLES = re.compile(r"\b(\d[\d,_]*(?:\.\d+)?)\s*([km])?\s+(?:samples|trajectories)\b", re.I)
_DAYS = re.compile(r"\blast\s+(\d+)\s+days?\b", re.I)
_ALGORITHM = re.compile(rf"\b({'|'.join(get_args(Algorithm))})\b", re.I)
_FACTORS = {"": 1, "k": 1000, "m": 1_000_000}


@dataclass(frozen=True)
class Ask:
    """Wishes of a message for a job; None is left to the settings."""

    words: str
    sample_size: int | None = None
    days: int | None = None
    algorithm: str | None = None


def read(body: bytes) -> Ask:
    """Reads a message. Raises ContractError for one that is not for this agent or asks for no training."""
    try:
        given: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise ContractError(
            "not_json", 'The message is not JSON: send {"profile": "rl-trainer", "message": "…"}.'
        ) from None
    words = given.get("message") if isinstance(given, dict) else None
    if not isinstance(words, str) or not 0 < len(words) <= LONGEST:
        raise ContractError(
            "no_message", f"There is no 'message' of 1 to {LONGEST} characters: say what to do in it."
        )
    if given.get("profile", PROFILE) != PROFILE:
        raise ContractError("wrong_profile", f"Only profile {PROFILE!r} is answered here.")
    return ask_of(words)


def ask_of(words: str) -> Ask:
    """Reads a sentence such as "Trigger training job with 10K samples from last 30 days". Raises
    ContractError."""
    if _ASKS.search(words) is None or _REFUSES.search(words) is not None:
        raise ContractError(
            "not_understood",
            "Only training can be asked for: say, for example, 'Trigger training job with 10K samples from "
            "last 30 days'.",
        )
    size, days, algorithm = _SAMPLES.search(words), _DAYS.search(words), _ALGORITHM.search(words)
    return Ask(
        words,
        sample_size=None if size is None else _within(_samples(size), MOST_SAMPLES, "samples"),
        days=None if days is None else _within(int(days[1][:12]), MOST_DAYS, "days"),
        algorithm=None if algorithm is None else algorithm[1].lower(),
    )


def _samples(found: re.Match[str]) -> int:
    number = found[1].replace(",", "").replace("_", "")
    return round(float(number[:20]) * _FACTORS[(found[2] or "").lower()])


def _within(number: int, most: int, what: str) -> int:
    if not 1 <= number <= most:
        raise ContractError("out_of_range", f"{number:,} {what} is out of range: give 1 to {most:,}.")
    return number
