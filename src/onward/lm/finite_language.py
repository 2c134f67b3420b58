"""Grammars of a finite language, given as texts or as token sequences, in plain Python.

The oracle of the engines' tests, and a grammar where no engine is installed or no tokenizer exists: a network
with a closed vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from onward.lm.constrained import CompiledGrammar, GrammarError, digest_of
from onward.lm.masks import AllowedTokens

_END = -1
"""Key of a text's end among the bytes that may follow."""
Node = dict[int, Any]


def of_sequences(answers: Sequence[Sequence[int]], vocab: int) -> CompiledGrammar:
    """Returns the language of these token sequences, each with the token that ends the turn. Raises
    GrammarError if one of them is empty, begins another, or has a token outside the vocabulary."""
    root: Node = {}
    ends: dict[tuple[int, ...], Node] = {}
    for answer in map(tuple, answers):
        node = root
        for token in answer:
            if not 0 <= token < vocab:
                raise GrammarError(f"an answer has token {token}, outside 0 to {vocab - 1}", "grammar")
            node = node.setdefault(token, {})
        ends[answer] = node
    for answer, node in ends.items():
        if node:
            raise GrammarError(
                f"the answer {list(answer[:8])} begins another: end each with the end of the turn", "grammar"
            )
    return _grammar(root, lambda node: node, vocab, answers, max(map(len, answers), default=0))


def of_texts(
    texts: Sequence[str], spelled: Sequence[bytes], stop_ids: Sequence[int], vocab: int
) -> CompiledGrammar:
    """Returns the language of these texts, each in every split into tokens, and then a stop token.
    ``spelled`` are the bytes of each token (``token_bytes.TokenBytes``), none for a control token."""
    root: Node = {}
    for text in texts:
        node = root
        for byte in text.encode():
            node = node.setdefault(byte, {})
        node[_END] = {}
    pieces: Node = {}
    for token, name in enumerate(spelled):
        node = pieces
        for byte in name:
            node = node.setdefault(byte, {})
        if name:
            node.setdefault(_END, []).append(token)
    known: dict[int, dict[int, Node]] = {}

    def edges(node: Node) -> dict[int, Node]:
        """Returns the tokens that may follow, each with the place in the texts after it."""
        if id(node) not in known:
            found: dict[int, Node] = {}
            _walk(node, pieces, found)
            if _END in node:
                found.update((token, node[_END]) for token in stop_ids)
            known[id(node)] = found
        return known[id(node)]

    longest = max((len(text.encode()) for text in texts), default=0)
    return _grammar(root, edges, vocab, list(texts), longest + 1)


def _walk(node: Node, pieces: Node, found: dict[int, Node]) -> None:
    for token in pieces.get(_END, ()):
        found[token] = node
    for byte, after in node.items():
        if byte != _END and byte in pieces:
            _walk(after, pieces[byte], found)


def _grammar(
    root: Node, edges: Callable[[Node], dict[int, Node]], vocab: int, source: Sequence[Any], most: int
) -> CompiledGrammar:
    if not root:
        raise GrammarError("the language has no answer: give at least one", "grammar")
    text = json.dumps([one if isinstance(one, str) else list(one) for one in source])
    return CompiledGrammar(
        "texts",
        text,
        "texts",
        begin=lambda: _Walk(root, edges, vocab),
        vocab=vocab,
        fingerprint=digest_of("finite", text, vocab, sorted(edges(root))),
        max_tokens=most,
    )


class _Walk:
    """A constraint at a place in the language."""

    is_broken = False

    def __init__(self, root: Node, edges: Callable[[Node], dict[int, Node]], vocab: int) -> None:
        self._root = self._node = root
        self._edges, self._vocab = edges, vocab

    def mask(self, out: NDArray[np.int32]) -> None:
        out[:] = 0
        if after := self._edges(self._node):
            out[:] = AllowedTokens.of_ids(sorted(after), self._vocab).words.view(np.int32)

    def advance(self, token: int) -> None:
        after = self._edges(self._node)
        if token not in after:
            raise GrammarError(f"token {token} is not in the language at its place", "grammar")
        self._node = cast(Node, after[token])

    def reset(self) -> None:
        self._node = self._root
