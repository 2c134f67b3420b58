"""The base of the tiny model, with a tokenizer made for the texts of the desk.

Each value (a name, a day, a number) is one token, the same one in every position. A network of one million
parameters therefore learns in seconds to copy a value from the instructions or a tool's result. The JSON
around it and whole phrases are single tokens too.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from onward.envs import desk
from onward.envs.desk import tools

VOCABULARY = 1024
_WEIGHT = 50  # repetitions that make a text of the closed vocabulary one token


def build(folder: Path, seed: int = 0, family: Literal["llama", "qwen2"] = "llama") -> Path:
    """Writes the untrained tiny model to ``folder``; the same seed and family give the same files."""
    from onward.lm.tiny import build_tiny

    return build_tiny(
        folder, corpus(), seed, vocab=VOCABULARY, kv_heads=4, split=split_pattern(), family=family
    )


def corpus() -> list[str]:
    """Returns training conversations and the closed vocabulary; no text of the held-out splits."""
    texts = [message["content"] for talk in desk.demonstrations(1200, careless=0.1) for message in talk[1:]]
    roles = ["system\n", "user\n", "assistant\n"] * 1200
    numbers = [str(number) for number in {*tools.SMALL, *tools.NUMBERS}]
    return texts + roles + [*numbers, *_values()] * _WEIGHT + [tools.SYSTEM_PROMPT] * 5000


def split_pattern() -> str:
    """Returns a pattern of pieces: system prompt, JSON scaffolding, a value, a number, a phrase, a mark."""
    value = rf"(?<![A-Za-z])(?:{'|'.join(_values())})(?![A-Za-z])"
    scaffolding = r'\{"tool_name": "[a-z_]+", "tool_args": \{"|", "|": "|"\}\}'
    phrase = rf" ?(?!{value})[A-Za-z_](?:(?!{value})[A-Za-z_ ])*"
    system = re.escape(tools.SYSTEM_PROMPT)
    return "|".join(
        [system, scaffolding, value, "[0-9]+", "[-+*/]", r"[a-z]+\n", phrase, r"\s", r"[^\sA-Za-z0-9_]"]
    )


def _values() -> list[str]:
    words = {*tools.PEOPLE, *tools.ATTRIBUTES, *tools.ITEMS, *tools.DAYS, *tools.EVENTS, *tools.NOTES}
    return sorted(words | {"plus", "times"}, key=lambda word: (-len(word), word))
