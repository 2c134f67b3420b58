"""Stop strings: an answer ends with the token that completes one.

The tokens stay as they were drawn. Only the text that is shown is cut before the string.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_EXTRA = 4
"""Tokens before the longest match that are decoded too: the rest of a character, or a dropped first space."""


class StopText:
    """Watches the tokens of one answer for stop strings."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: Sequence[str]) -> None:
        self._tokenizer, self._stops = tokenizer, tuple(stops)
        self._window = max(len(stop.encode("utf-8", "surrogatepass")) for stop in stops) + _EXTRA

    def ends(self, token_ids: Sequence[int]) -> bool:
        """Returns whether the last of ``token_ids`` completed a stop string. Each token has a byte or more,
        so a string of ``n`` bytes lies within the last ``n`` tokens."""
        text = self._tokenizer.decode(list(token_ids[-self._window :]), skip_special_tokens=True)
        return any(stop in text for stop in self._stops)


def cut(text: str, stops: Sequence[str]) -> str:
    """Returns ``text`` up to the first stop string."""
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return text[: min(found)] if found else text


def settled(text: str, stops: Sequence[str]) -> str:
    """Returns the part of an unfinished text that no stop string can reach any more."""
    before = cut(text, stops)
    if len(before) < len(text):
        return before
    held = 0
    for stop in stops:
        for length in range(min(len(stop) - 1, len(text)), held, -1):
            if stop.startswith(text[-length:]):
                held = length
                break
    return text[: len(text) - held]
