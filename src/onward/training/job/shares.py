"""Tokens of a run that are computed once for several rows: shared prompts, in data and in an environment.

Text is not encoded here, since that needs the model: four characters count as one token, and the same text
as the same tokens. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from onward.envs.environment import LocalSource
from onward.envs.sources import TaskSource
from onward.errors import OnwardError
from onward.lm.sharing import Sharing
from onward.lm.tokens import TokenRow, rows_from_calls
from onward.training.data import conversations
from onward.training.spec import environment_plan as plans
from onward.training.spec.request import JobSpec

_CHARACTERS = 4
"""Characters per token."""
_AROUND = 5
"""Tokens that a template puts around a message."""


@dataclass(frozen=True)
class Prompts:
    """The first prompts of an update in an environment."""

    tokens: float
    """Mean per attempt."""
    computed: float
    """Tokens of all of them together, each shared part counted once."""


def computed_of(lines: Sequence[Mapping[str, Any]]) -> float:
    """Returns the tokens of a dataset that are computed, each shared part once. Lines that make no tokens
    count nothing: the run leaves them out."""
    found: list[TokenRow] = []
    for line in lines:
        with suppress(OnwardError):
            found += list(_rows_of(line))
    return float(Sharing.from_rows(found).tokens)


def prompts_of(spec: JobSpec, source: TaskSource) -> Prompts | None:
    """Returns the prompts of the first update's tasks; None for a server, whose tasks cost a call each."""
    plan = spec.environment
    if plan is None or not isinstance(source, LocalSource):
        return None
    tasks = plans.tasks_of(0, plans.panels(plan, source)[0], plan.episodes // plan.group_size, spec.seed)
    texts = [source.environment.start(task).observation for task in tasks]
    system = [("system", source.instructions)] if source.instructions else []
    prompts = [_encoded([*system, ("user", text)]) for text in texts]
    rows = [
        TokenRow([*prompt, -1], [False] * len(prompt) + [True], [0.0] * (len(prompt) + 1))
        for prompt in prompts
        for _ in range(plan.group_size)
    ]
    answers = len(rows)  # one token of each is the answer's
    whole = sum(len(row) for row in rows)
    return Prompts(whole / len(rows) - 1, float(Sharing.from_rows(rows).tokens - answers))


def _rows_of(line: Mapping[str, Any]) -> Iterator[TokenRow]:
    if "calls" in line:
        yield from rows_from_calls(conversations.calls_of(line))
        return
    said = [(message["role"], message["content"]) for message in conversations.texts_of(line)]
    first = next((at for at, (role, _) in enumerate(said) if role == "assistant"), len(said))
    prompt, rest = _encoded(said[:first]), _encoded(said[first:])
    mask = [False] * len(prompt) + [True] * len(rest)
    yield TokenRow([*prompt, *rest], mask, [0.0] * len(mask))


def _encoded(said: Sequence[tuple[str, str]]) -> list[int]:
    """Returns one number per token that the text would have; equal beginnings have equal numbers."""
    ids: list[int] = []
    for role, text in said:
        ids += [hash((role, at)) for at in range(_AROUND)]
        ids += [hash(text[at : at + _CHARACTERS]) for at in range(0, len(text), _CHARACTERS)]
    return ids
