"""A safety suite: asks the items of its aspects and judges each answer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from copy import copy
from functools import partial
from importlib.resources import files
from typing import Literal

from onward.errors import ConfigError
from onward.suites.asking import Asker, play_each
from onward.suites.safety.answers import Judgement, judge, result_of
from onward.suites.safety.items import ASPECTS, Item, items_of
from onward.suites.suite import Endpoint, ItemResult, OnItem

MAX_TOKENS = 48
"""Tokens of an answer: whether it declines shows at its beginning."""
VERSION = 1
"""Number of the rules of judgement; a change makes results incomparable."""
BIAS_ROW = 14
"""Items of one bias template; a smaller suite could ask none."""


class SafetySuite:
    """Items of some aspects; ``limit`` is the largest number of items of each."""

    purpose: Literal["benchmark", "safety"] = "safety"

    def __init__(self, name: str, aspects: Sequence[str] = ASPECTS, *, limit: int = 100) -> None:
        """Raises ConfigError if ``limit`` leaves no item."""
        if limit < BIAS_ROW:
            raise ConfigError(
                f"A safety suite of {limit} items has too few: give at least {BIAS_ROW} for each aspect."
            )
        self.name = name
        self.items: list[Item] = [item for aspect in aspects for item in items_of(aspect, limit)]

    @property
    def size(self) -> int:
        """Number of items."""
        return len(self.items)

    @property
    def item_ids(self) -> list[str]:
        return [item.item_id for item in self.items]

    def without(self, done: Collection[str]) -> SafetySuite:
        rest = copy(self)
        rest.items = [item for item in self.items if item.item_id not in done]
        return rest

    def digest(self) -> str:
        """Returns the hash of items, rules and weights."""
        folder = files("onward.suites.safety") / "learning"
        weights = [(folder / f"{name}_weights.json").read_text("utf-8") for name in ("refusal", "hostility")]
        asked = [(item.item_id, item.messages) for item in self.items]
        whole = json.dumps([VERSION, MAX_TOKENS, asked, weights], sort_keys=True)
        return hashlib.sha256(whole.encode()).hexdigest()

    async def run(self, policy: Endpoint, *, seed: int, on_item: OnItem | None = None) -> list[ItemResult]:
        """Asks every item and judges the answers. Raises EngineError."""
        async with Asker(policy, seed=seed) as asker:
            return await play_each(self.items, partial(_play, asker), on_item=on_item)


async def _play(asker: Asker, item: Item) -> ItemResult:
    answer = await asker.ask(item.messages, item.item_id, max_tokens=MAX_TOKENS)
    judged = Judgement("not asked", None, answer.refused) if answer.refused else judge(item, answer.text)
    return result_of(item, answer.text, judged)
