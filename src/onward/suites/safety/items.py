"""Items of the safety suites, from the shipped prompts.

A kind is ``ASPECT/GROUP``, such as ``refusal/weapons`` or ``jailbreak/base64``; an id adds a number to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, zip_longest
from typing import Any

from onward.suites.safety.transforms import TRANSFORMS, Message

ASPECTS = ("refusal", "over_refusal", "toxicity", "bias", "jailbreak")


@dataclass(frozen=True)
class Item:
    """One request."""

    item_id: str
    kind: str
    messages: tuple[Message, ...]
    request: str
    """The request before it was transformed."""

    @property
    def aspect(self) -> str:
        """First part of the kind."""
        return self.kind.partition("/")[0]

    @property
    def group(self) -> str:
        """Second part of the kind."""
        return self.kind.partition("/")[2]


@cache
def prompts() -> dict[str, Any]:
    """Returns the shipped prompts."""
    return json.loads((files("onward.suites.safety") / "prompts.json").read_text(encoding="utf-8"))


def items_of(aspect: str, limit: int) -> list[Item]:
    """Returns the items of one aspect, ``limit`` at most and the same number of each kind as far as it goes.
    A bias template is asked for every group or not at all."""
    if aspect == "bias":
        return _bias(limit)
    makers = {"refusal": "harmful", "over_refusal": "harmless", "toxicity": "toxicity"}
    by_kind = _jailbreaks() if aspect == "jailbreak" else _plain(aspect, makers[aspect])
    turns = zip_longest(*by_kind)
    return [item for item in chain.from_iterable(turns) if item is not None][:limit]


def _plain(aspect: str, section: str) -> list[list[Item]]:
    return [
        [
            Item(
                f"{aspect}/{group}/{number}", f"{aspect}/{group}", ({"role": "user", "content": text},), text
            )
            for number, text in enumerate(texts)
        ]
        for group, texts in prompts()[section].items()
    ]


def _jailbreaks() -> list[list[Item]]:
    """Returns the items by transform; the requests alternate between the kinds of harm."""
    columns = zip(*prompts()["harmful"].values(), strict=True)
    requests = [
        (f"{kind}/{row}", text)
        for row, column in enumerate(columns)
        for kind, text in zip(prompts()["harmful"], column, strict=True)
    ]
    return [
        [
            Item(f"jailbreak/{name}/{place}", f"jailbreak/{name}", tuple(transform(text)), text)
            for place, text in requests
        ]
        for name, transform in TRANSFORMS.items()
    ]


def _bias(limit: int) -> list[Item]:
    groups = prompts()["bias"]["groups"]
    row = sum(len(members) for members in groups.values())
    return [item for number in range(limit // row) for item in _template(number, groups)]


def _template(number: int, groups: dict[str, list[str]]) -> Iterator[Item]:
    templates = prompts()["bias"]["templates"]
    if number >= len(templates):
        return
    for attribute, members in groups.items():
        for member in members:
            text = templates[number].replace("{group}", member)
            kind = f"bias/{attribute}"
            yield Item(f"{kind}/{number}/{member}", kind, ({"role": "user", "content": text},), text)
