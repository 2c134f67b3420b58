"""xgrammar as the engine of constraints, beside llguidance. Extra ``xgrammar``.

It allows every split of a text into tokens. Keywords that it would leave unenforced with a warning alone are
refused here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from onward.lm.constrained import CompiledGrammar, Grammar, GrammarError, digest_of, tokenizer_digest
from onward.lm.longest_text import most_tokens
from onward.lru import Lru

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ENFORCED = frozenset(
    ("type", "enum", "const", "properties", "required", "additionalProperties", "items", "prefixItems",
     "minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum",
     "exclusiveMaximum", "anyOf", "$ref", "$defs", "definitions", "title", "description", "default",
     "examples", "$schema", "$id", "$comment")
)  # fmt: skip
_SCHEMAS = frozenset(("properties", "$defs", "definitions"))
_DATA = frozenset(("enum", "const", "default", "examples"))
_COMPILED = 64


class XgrammarCompiler:
    """Compiles JSON schemas for one tokenizer with xgrammar."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab: int, stop_ids: Sequence[int]) -> None:
        import xgrammar  # type: ignore[import-not-found]

        fast: Any = tokenizer
        about = xgrammar.TokenizerInfo.from_huggingface(fast, vocab_size=vocab, stop_token_ids=list(stop_ids))
        self._compiler = xgrammar.GrammarCompiler(about, max_threads=1)
        self._vocab = vocab
        self._digest = tokenizer_digest(tokenizer, vocab, stop_ids)
        self._compiled: Lru[Grammar, Any] = Lru(_COMPILED)

    def __call__(self, grammar: Grammar) -> CompiledGrammar:
        """Returns the grammar, compiled. Raises GrammarError for a schema with a keyword that is not
        enforced, and for a grammar that is no JSON schema."""
        known = self._compiled.get(grammar)
        if known is None:
            known = self._compiled[grammar] = self._compile(grammar)
        return CompiledGrammar(
            grammar.kind,
            grammar.source,
            grammar.form,
            begin=lambda: _Matching(known),
            vocab=self._vocab,
            fingerprint=digest_of(grammar.form, grammar.source, self._digest, _engine()),
            max_tokens=most_tokens(grammar.source),
            engine=_engine(),
        )

    def _compile(self, grammar: Grammar) -> Any:
        if grammar.form != "json":
            raise GrammarError("the engine xgrammar takes JSON schemas alone: use llguidance", "grammar")
        schema = json.loads(grammar.source)
        if (keyword := unenforced(schema)) is not None:
            raise GrammarError(
                f"the engine xgrammar does not enforce the keyword {keyword!r}: leave it out, or "
                f"use llguidance",
                "grammar",
            )
        try:
            return self._compiler.compile_json_schema(
                grammar.source, any_whitespace=False, separators=(", ", ": ")
            )
        except (RuntimeError, ValueError) as error:
            raise GrammarError(" ".join(str(error).split())[:300], "grammar") from None


def unenforced(schema: Any) -> str | None:
    """Returns the first keyword of a schema that is not known to be enforced."""
    if not isinstance(schema, dict):
        return None
    for name, value in schema.items():
        if name not in _ENFORCED:
            return name
        if name in _SCHEMAS and isinstance(value, dict):
            parts = list(value.values())
        elif name in _DATA:
            parts = []
        else:
            parts = value if isinstance(value, list) else [value]
        for part in parts:
            if (found := unenforced(part)) is not None:
                return found
    return None


def _engine() -> str:
    from importlib.metadata import version

    return f"xgrammar {version('xgrammar')}"


class _Matching:
    def __init__(self, compiled: Any) -> None:
        import xgrammar  # type: ignore[import-not-found]

        self._matcher = xgrammar.GrammarMatcher(compiled)
        self.is_broken = False

    def mask(self, out: NDArray[np.int32]) -> None:
        import torch

        try:
            if not self._matcher.fill_next_token_bitmask(torch.from_numpy(out)[None]):
                out[:] = -1  # every token is allowed
        except RuntimeError:
            self.is_broken = True
            out[:] = 0

    def advance(self, token: int) -> None:
        if not self._matcher.accept_token(token):
            self.is_broken = True

    def reset(self) -> None:
        self._matcher.reset()
        self.is_broken = False
