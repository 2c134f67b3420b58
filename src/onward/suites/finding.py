"""Finds an evaluation suite by its name, as ``validation.suites`` and ``onward validate --suite`` give it.

A name is a word (``desk``, ``safety``) or ``FORM:REST`` (``env:maze``). Each word and form has one line in
``FACTORIES``; any other ``module:function`` is a suite of the user's own. Factories are loaded on demand, so
that a name costs no import of what another one needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from onward.errors import ConfigError, MissingExtraError, NotFoundError
from onward.suites.suite import Suite
from onward.suites.trained import TrainedOn
from onward.warehouse import Warehouse

ITEMS = 100
"""Items of a suite that has a choice, unless set otherwise."""


@dataclass(frozen=True)
class Sources:
    """Sources from which a suite may draw its items. Every part is optional."""

    data_dir: Path | None = None
    """Data folder of the loop; frozen sets of items are stored below ``suites/``."""
    warehouse: Warehouse | None = None
    """Warehouse with the recorded tasks."""
    items: int = ITEMS
    """Most items of a suite that can choose how many it has."""
    rubric: str | None = None
    """``module:function`` that judges recorded tasks; None: the outcome rule."""
    trained: TrainedOn | None = None
    """Work that the models of the comparison were trained on; None: not looked up."""
    comparison: str | None = None
    """Name of the comparison, such as the digests of both models: a suite that is chosen by a rule has the
    same items whenever it is asked for under this name. None: they are chosen anew."""
    fresh: bool = False
    """True if items are chosen anew for ``comparison`` too."""


Factory = Callable[[str, Sources], Awaitable[Suite]]
"""``await factory(rest, sources)``: makes a suite from the part of its name after the first colon. A word has
the whole name as its rest, so that one factory can serve several words."""

ALIASES = {"code_gen": "code_generation", "research": "research_synthesis"}
"""Published name → name in ``FACTORIES``."""

FACTORIES: dict[str, str] = {
    "desk": "onward.suites.desk:make",
    "recorded": "onward.suites.recorded.suite:make",
    "env": "onward.suites.environment:make",
    "file": "onward.suites.items:make",
    "inspect": "onward.suites.inspect.suite:make",
    "code_generation": "onward.suites.tasks.shipped:make",
    "data_analysis": "onward.suites.tasks.shipped:make",
    "research_synthesis": "onward.suites.tasks.shipped:make",
    "tool_usage": "onward.suites.tasks.shipped:make",
    "safety": "onward.suites.safety.factories:make",
    "refusal": "onward.suites.safety.factories:make",
    "over_refusal": "onward.suites.safety.factories:make",
    "toxicity": "onward.suites.safety.factories:make",
    "bias": "onward.suites.safety.factories:make",
    "jailbreak": "onward.suites.safety.factories:make",
}
"""Word or form → ``module:factory``."""

WITH_REST = frozenset({"recorded", "env", "file", "inspect"})
"""Forms: they need something after a colon. All others are words and take nothing."""


async def find(name: str, sources: Sources) -> Suite:
    """Returns the suite of that name. Raises ConfigError for a name of no known form, NotFoundError for one
    that names nothing, and MissingExtraError if its optional part is not installed."""
    name = ALIASES.get(name, name)
    head, colon, rest = name.partition(":")
    place = FACTORIES.get(head)
    if place is None and colon and rest and not rest.startswith("//"):
        return await _load("onward.suites.function:make", name)(name, sources)
    if place is None or (head in WITH_REST) != bool(rest):
        forms = [f"{word}:…" if word in WITH_REST else word for word in FACTORIES]
        raise ConfigError(
            f"There is no suite {name[:80]!r}: expected {', '.join(forms)}, or package.module:function."
        )
    return await _load(place, name)(rest or name, sources)


def _load(place: str, name: str) -> Factory:
    module, _, factory = place.partition(":")
    try:
        return getattr(importlib.import_module(module), factory)
    except MissingExtraError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise NotFoundError(
            f"The suite {name!r} is not part of this installation: choose another one."
        ) from None
