"""The tiny rubric writer: a network of two layers and a closed vocabulary, in an ordinary model folder.

Each word of the briefs, each check, each argument and each stretch of JSON between them is one token. All
other text is written in bytes, so any text can be read. No piece is built of smaller ones that occur in
answers: under the grammar of rubrics nearly all tokens of JSON are forced.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
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
    """Most pieces besides single bytes. The least frequent words of the texts are left out, never a ``word``."""
    max_positions: int = 1536


def build(folder: Path, texts: Iterable[str], words: Sequence[str], size: Size | None = None, seed: int = 0) -> Path:
    """Writes the untrained network to ``folder`` and returns it; the same arguments give the same files.

    ``texts`` are briefs and replies; ``words`` are pieces that must be there, as they stand in JSON.
    """
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


def tokenizer_of(texts: Iterable[str], words: Sequence[str], most: int) -> Tokenizer:
    """Returns a tokenizer with bytes, ``words``, and the most frequent pieces of ``texts``, up to ``most``."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    whole = "|".join(re.escape(text) for text in (SYSTEM, NOW, CHECKS))
    split = pre_tokenizers.Split(Regex("|".join((whole, *_PIECES))), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def pieces(text: str) -> list[str]:
        return [piece for piece, _ in split.pre_tokenize_str(text)]

    needed = dict.fromkeys(piece for word in (SYSTEM, NOW, CHECKS, "system\n", "user\n", "assistant\n", *words)
                           for piece in pieces(word))  # fmt: skip
    seen = Counter(piece for text in texts for piece in pieces(text))
    for piece, _ in sorted(seen.items(), key=lambda found: (-found[1], found[0])):
        if len(needed) >= most:
            break
        needed.setdefault(piece)
    vocabulary: dict[str, int] = {name: number for number, name in enumerate(SPECIAL)}
    for text in (*sorted(pre_tokenizers.ByteLevel.alphabet()), *(as_bytes.pre_tokenize_str(p)[0][0] for p in needed)):
        vocabulary.setdefault(text, len(vocabulary))
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    made.decoder = decoders.ByteLevel()
    return made
