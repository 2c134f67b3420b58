"""The tiny rubric writer: a network of two layers and a closed vocabulary, in an ordinary model folder.

Each word that briefs of several families have, each check, each argument and each stretch of JSON between them
is one token. Other words are spelled in bytes: so those of one training family look as strange as those of a
new family. Under the grammar of rubrics nearly all tokens of JSON are forced.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onward.lm.tiny import SPECIAL, save_network
from onward.rubrics.policy.prompts import CHECKS, NOW, SYSTEM

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PIECES = (
    r"[a-z]+\n",  # a role
    r'\{"criteria": \[\{"check": |\}, \{"check": |, "arg": |, "weight": |\}\]\}|\{"ask": ',
    r'"[^"\n]*"\}?',
    r" ?[A-Za-z_]+[,.;:?!]*",
    r" ?[0-9]+[,.;:%]*",
    r"\s",
    r"[^\sA-Za-z0-9_]",
)
"""Regular expressions of the pieces, tried in this order."""


@dataclass(frozen=True)
class Size:
    """Sizes of the tiny network."""

    hidden: int = 96
    layers: int = 2
    heads: int = 4
    intermediate: int = 256
    pieces: int = 440
    """Most pieces besides single bytes. The least frequent words of briefs are left out first."""
    max_positions: int = 1536


Texts = Mapping[str, Iterable[str]]
"""Family → its briefs and the answers of its stakeholders."""
FAMILIES = 3
"""Families that must have a word before it is a token."""


def build(folder: Path, texts: Texts, words: Sequence[str], size: Size | None = None, seed: int = 0) -> Path:
    """Writes the untrained network to ``folder`` and returns it; the same arguments give the same files.
    ``words`` are texts whose pieces must be there, such as those of JSON."""
    size = size or Size()
    return save_network(
        folder,
        tokenizer_of(texts, words, size.pieces),
        seed,
        hidden=size.hidden,
        layers=size.layers,
        heads=size.heads,
        kv_heads=size.heads,
        intermediate=size.intermediate,
        max_positions=size.max_positions,
    )


def tokenizer_of(texts: Texts, words: Sequence[str], most: int) -> Tokenizer:
    """Returns a tokenizer with bytes, the pieces of ``words``, and the most frequent ones of ``texts``."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    whole = "|".join(re.escape(text) for text in (SYSTEM, NOW, CHECKS))
    split = pre_tokenizers.Split(Regex("|".join((whole, *_PIECES))), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def pieces(text: str) -> list[str]:
        return [piece for piece, _ in split.pre_tokenize_str(text)]

    needed = dict.fromkeys(piece for word in (SYSTEM, NOW, CHECKS, "system\n", "user\n", "assistant\n", *words)
                           for piece in pieces(word))  # fmt: skip
    seen: Counter[str] = Counter()
    families: Counter[str] = Counter()
    for some in texts.values():
        found = Counter(piece for text in some for piece in pieces(text))
        seen += found
        families.update(found.keys())
    for piece, _ in sorted(seen.items(), key=lambda one: (-one[1], one[0])):
        if len(needed) < most and families[piece] >= min(FAMILIES, len(texts)):
            needed.setdefault(piece)
    vocabulary: dict[str, int] = {name: number for number, name in enumerate(SPECIAL)}
    for text in (*sorted(pre_tokenizers.ByteLevel.alphabet()), *(as_bytes.pre_tokenize_str(p)[0][0] for p in needed)):
        vocabulary.setdefault(text, len(vocabulary))
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    made.decoder = decoders.ByteLevel()
    return made
