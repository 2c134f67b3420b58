"""The tiny rubric writer: a network of two layers and a closed vocabulary, in an ordinary model folder.

Each word that briefs of several families have, each check, each argument and each stretch of JSON between
them is one token. Other words are spelled in syllables: so those of one training family look as strange as
those of a new family. Under the grammar of rubrics nearly all tokens of JSON are forced.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onward.lm.options import refuse_out_of_range
from onward.lm.tiny import SPECIAL, save_network
from onward.rubrics.policy.prompts import CHECKS, NOTE, NOW, SYSTEM

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PIECES = (
    r"[a-z]+\n|: ",  # a role, and what parts a check of the list from its argument
    r'\{"criteria": \[\{"check": |\}, \{"check": |, "arg": |, "weight": |\}\]\}|\{"ask": ',
    r'(?:\{|, )"[a-z]+": (?=")',  # a dimension in the notes
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

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    """Twice their number divides ``hidden``."""
    intermediate: int = 128
    pieces: int = 1200
    """Most pieces besides single bytes. The least frequent words of briefs are left out first."""
    syllables: int = 160
    """Pieces of words that are no piece themselves."""
    max_positions: int = 1536

    def __post_init__(self) -> None:
        refuse_out_of_range(
            self,
            hidden=self.hidden >= 1,
            layers=self.layers >= 1,
            heads=self.heads >= 1 and self.hidden % (2 * self.heads) == 0,  # rotary: two halves of each head
            intermediate=self.intermediate >= 1,
            pieces=self.pieces >= 0,
            syllables=self.syllables >= 0,
            max_positions=self.max_positions >= 1,
        )


Texts = Mapping[str, Iterable[str]]
"""Family → its briefs and the answers of its stakeholders."""
PHRASES = 900
"""Most phrases that are tokens."""
LEAST_USES = 5
"""Uses below which a pair is not joined."""
_FIRST_LETTER = 0x20000
_WORD = re.compile(r" ?[A-Za-z_]+(?:-[A-Za-z_]+)*[,.;:?!]*")
FAMILIES = 3
"""Families that must have a word before it is a token."""


def build(folder: Path, texts: Texts, words: Sequence[str], size: Size | None = None, seed: int = 0) -> Path:
    """Writes the untrained network to ``folder`` and returns it; the same arguments give the same files.
    ``words`` are texts whose pieces must be there, such as those of JSON."""
    size = size or Size()
    return save_network(
        folder,
        tokenizer_of(texts, words, size.pieces, size.syllables),
        seed,
        hidden=size.hidden,
        layers=size.layers,
        heads=size.heads,
        kv_heads=size.heads,
        intermediate=size.intermediate,
        max_positions=size.max_positions,
        initializer_range=size.hidden**-0.5,  # with 0.02 a narrow one attends to nothing
    )


def phrases_of(texts: Mapping[str, Sequence[Sequence[str]]]) -> list[str]:
    """Returns runs of words that several families share, longest first. ``texts``: family → texts as pieces.

    The most frequent pair of neighbours is joined, again and again: byte pair encoding with words in place of
    bytes. A run ends with its sentence, and before a word that only few families have.
    """
    from tokenizers import Tokenizer, models, trainers

    least = min(FAMILIES, len(texts))
    users: Counter[str] = Counter()
    for some in texts.values():
        users.update({piece for text in some for piece in text if _WORD.fullmatch(piece)})
    shared = sorted(word for word, n in users.items() if n >= least)
    letters = {word: chr(_FIRST_LETTER + place) for place, word in enumerate(shared)}
    runs = {family: [run for text in some for run in _runs(text, letters)] for family, some in texts.items()}
    joined = Tokenizer(models.BPE())
    joined.train_from_iterator(
        [run for some in runs.values() for run in some],
        trainers.BpeTrainer(vocab_size=len(letters) + PHRASES, min_frequency=LEAST_USES, show_progress=False),
    )
    families: Counter[str] = Counter()
    for some in runs.values():
        families.update({token for run in some for token in joined.encode(run).tokens})
    words = {letter: word for word, letter in letters.items()}
    found = [
        "".join(map(words.__getitem__, token))
        for token, n in families.items()
        if n >= least and len(token) > 1
    ]
    return sorted(found, key=lambda phrase: (-len(phrase), phrase))


def _runs(text: Sequence[str], letters: Mapping[str, str]) -> Iterator[str]:
    """Yields the runs of words of a text, a letter for each word."""
    run = ""
    for piece in text:
        run += letters.get(piece, "")
        if run and (piece not in letters or piece[-1] in ".?!"):
            yield run
            run = ""
    if run:
        yield run


def tokenizer_of(texts: Texts, words: Sequence[str], most: int, syllables: int) -> Tokenizer:
    """Returns a tokenizer with bytes, the pieces of ``words``, the ``most`` frequent ones of ``texts``, and
    syllables of their other words."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    fixed = (SYSTEM, NOTE, NOW, CHECKS)
    words_alone = pre_tokenizers.Split(Regex("|".join((*map(re.escape, fixed), *_PIECES))), "isolated")
    phrases = phrases_of(
        {
            family: [[piece for piece, _ in words_alone.pre_tokenize_str(text)] for text in some]
            for family, some in texts.items()
        }
    )
    whole = "|".join(map(re.escape, (*fixed, *phrases)))
    split = pre_tokenizers.Split(Regex("|".join((whole, *_PIECES))), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

    def pieces(text: str) -> list[str]:
        return [piece for piece, _ in split.pre_tokenize_str(text)]

    always = (SYSTEM, NOTE, NOW, CHECKS, "system\n", "user\n", "assistant\n", *words)
    needed = dict.fromkeys(piece for word in always for piece in pieces(word))
    seen: Counter[str] = Counter()
    families: Counter[str] = Counter()
    for some in texts.values():
        found = Counter(piece for text in some for piece in pieces(text))
        seen += found
        families.update(found.keys())
    for piece, _ in sorted(seen.items(), key=lambda one: (-one[1], one[0])):
        if len(needed) < most and families[piece] >= min(FAMILIES, len(texts)):
            needed.setdefault(piece)
    spelled = Tokenizer(models.BPE())
    spelled.pre_tokenizer = as_bytes
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    spelled.train_from_iterator(
        [piece for piece in seen.elements() if piece not in needed and piece.strip().isalpha()],
        trainers.BpeTrainer(
            vocab_size=len(alphabet) + syllables, initial_alphabet=alphabet, show_progress=False
        ),
    )
    described = json.loads(spelled.to_str())["model"]
    vocabulary: dict[str, int] = {name: number for number, name in enumerate(SPECIAL)}
    for text in (
        *alphabet,
        *(as_bytes.pre_tokenize_str(piece)[0][0] for piece in needed),
        *described["vocab"],
    ):
        vocabulary.setdefault(text, len(vocabulary))
    merges = [(left, right) for left, right in described["merges"]]
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    made.decoder = decoders.ByteLevel()
    return made
