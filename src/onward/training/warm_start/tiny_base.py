"""The base of a tiny model that ``onward train`` makes, with a tokenizer from the data of the run.

Each word of the answers is one token, the same one in every position. A network of one million parameters
therefore learns in minutes to copy it from an observation. Whole phrases between such words are single tokens
too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onward.errors import ConfigError
from onward.training.data import conversations

VOCABULARY = 1024
MOST_WORDS = 400
"""Words of answers that get a token of their own; all others are split as usual."""
_WEIGHT = 50  # repetitions that make a word one token
_WORD = re.compile(r"[A-Za-z]+")


def build(folder: Path, lines: Sequence[Mapping[str, Any]], seed: int = 0) -> Path:
    """Writes an untrained network to ``folder``; the same lines and seed give the same files. Raises
    ConfigError if no line has text."""
    messages = [message for line in lines if "messages" in line for message in conversations.texts_of(line)]
    if messages:
        written = [line["correction"]["answer"] for line in lines if "correction" in line]
        messages += [{"role": "assistant", "content": answer} for answer in written]
    if not messages:
        raise ConfigError(
            "The model 'tiny' is made from the texts of the data, and this data holds tokens of another "
            "model: give the folder of that model."
        )
    from onward.lm.tiny import build_tiny

    words = answer_words(messages)
    texts = [str(message["content"]) for message in messages]
    roles = [f"{role}\n" for role in ("system", "user", "assistant")] * len(texts)
    return build_tiny(
        folder, [*texts, *roles, *words * _WEIGHT], seed, vocab=VOCABULARY, split=split_pattern(words)
    )


def answer_words(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the most frequent words of the assistant's messages, longest first."""
    said = Counter(
        word
        for message in messages
        if message["role"] == "assistant"
        for word in _WORD.findall(str(message["content"]))
    )
    chosen = [word for word, _ in said.most_common(MOST_WORDS)]
    return sorted(chosen, key=lambda word: (-len(word), word))


def split_pattern(words: Sequence[str]) -> str | None:
    """Returns a pattern of pieces: an answer's word, a digit, a phrase, marks. None without words."""
    if not words:
        return None
    word = rf"(?<![A-Za-z])(?:{'|'.join(words)})(?![A-Za-z])"
    phrase = rf" ?(?!{word})[A-Za-z_](?:(?!{word})[A-Za-z_ ])*"
    return "|".join([word, "[0-9]", r"[a-z]+\n", phrase, r"[^\sA-Za-z0-9]+ ?", r"\s"])
