"""Constraints on an answer: a grammar, and a mask of the tokens that it allows next.

A request carries a ``CompiledGrammar``, and a sampler begins a ``Constraint`` of it for each answer.
``GrammarCompiler`` compiles with llguidance, which parses the text byte by byte, so a token may begin and end
anywhere in it. ``xgrammar_engine`` and ``finite_language`` have other engines of the same form.

Invariants: the end of the turn is allowed only where the grammar accepts. A mask leaves at
least one token. A constraint that fails is broken and ends its answer; it never allows every token.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from onward.errors import OnwardError
from onward.lm.longest_text import most_tokens
from onward.lm.masks import AllowedTokens
from onward.lm.schema_limits import beyond_limits

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher
    from transformers import PreTrainedTokenizerBase

WRITING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON is written as Python's ``json.dumps`` writes it. Free white space would let a model write nothing
else."""
_COMPILED = 64  # grammars that are remembered; an agent repeats the same few


class GrammarError(OnwardError):
    """A schema that cannot be enforced. The message names the keyword."""

    def __init__(self, message: str, part: str = "response_format") -> None:
        """``part``: the part of the request that has the schema."""
        super().__init__(message)
        self.part = part


@dataclass(frozen=True)
class Grammar:
    """A language of answers: ``source`` is a JSON schema, a grammar in llguidance's dialect of Lark, or
    a JSON list of all its texts."""

    kind: Literal["json_object", "json_schema", "tool_calls", "texts"]
    source: str
    form: Literal["json", "lark", "texts"] = "json"

    @property
    def record(self) -> dict[str, str]:
        """The part of a generation record that says which mask was applied."""
        return {"kind": self.kind, "hash": hashlib.sha256(self.source.encode()).hexdigest()[:16]}


class Constraint(Protocol):
    """The tokens that one answer may still contain."""

    @property
    def is_broken(self) -> bool:
        """True if the constraint cannot go on, for example beyond a limit of work."""
        ...

    def mask(self, out: np.ndarray) -> None:
        """Fills ``out``, int32 of (vocab + 31) // 32: bit ``t % 32`` of word ``t // 32`` is 1 for an allowed
        token ``t``."""
        ...

    def advance(self, token: int) -> None:
        """Takes the token that was drawn."""
        ...

    def reset(self) -> None:
        """Returns to the beginning of the answer."""
        ...


@dataclass(frozen=True, kw_only=True)
class CompiledGrammar(Grammar):
    """A grammar that was compiled for one tokenizer."""

    begin: Callable[[], Constraint] = field(repr=False, compare=False)
    """Returns a constraint at the beginning of an answer. Any thread may call it."""
    vocab: int = 0
    """Tokens that a mask is about, those that pad the network's vocabulary included."""
    fingerprint: str = ""
    """Digest of source, tokenizer, and engine with its version: equal ones give equal masks."""
    max_tokens: int | None = None
    """Most tokens of an answer, its end included; None: no limit is known."""
    engine: str = ""
    """The engine with its version, for people to read."""

    @property
    def record(self) -> dict[str, str]:
        """As of any grammar, with all that is needed to compute the masks again."""
        return super().record | {
            "form": self.form,
            "source": self.source,
            "engine": self.engine,
            "fingerprint": self.fingerprint,
        }

    def replay(self, token_ids: Sequence[int], constraint: Constraint | None = None) -> list[AllowedTokens]:
        """Returns the mask of each token of an answer. ``constraint``: one of this grammar that is used
        again, since it remembers its work. Raises GrammarError for a token that is not allowed at its place,
        with its number."""
        found: list[AllowedTokens] = []
        if constraint is None:
            constraint = self.begin()
        else:
            constraint.reset()
        for place, token in enumerate(token_ids):
            (allowed,) = next_masks([constraint], self.vocab, 1)
            if token not in allowed:
                raise GrammarError(
                    f"Token {token} at place {place} of {len(token_ids)} is not in the language of the "
                    f"grammar: give text as the grammar writes it, encoded by the model's own tokenizer, "
                    f"with its end",
                    "grammar",
                )
            found.append(allowed)
            if place + 1 < len(token_ids):
                constraint.advance(token)
        return found


def next_masks(constraints: Sequence[Constraint], vocab: int, threads: int) -> list[AllowedTokens]:
    """Returns the mask of each constraint, empty for one that is broken. None is computed where the next
    token is certain."""
    found: list[AllowedTokens] = []
    unknown: list[int] = []
    for number, one in enumerate(constraints):
        token = one.certain() if isinstance(one, LlguidanceConstraint) else None
        if token is None:
            unknown.append(number)
        found.append(AllowedTokens.only(0 if token is None else token, vocab))
    if unknown:
        words = np.zeros((len(unknown), (vocab + 31) // 32), dtype=np.int32)
        _fill([constraints[number] for number in unknown], words, threads)
        for number, line in zip(unknown, words, strict=True):
            found[number] = AllowedTokens.of_words(line, vocab)
    return found


def _fill(constraints: Sequence[Constraint], out: NDArray[np.int32], threads: int) -> None:
    """Writes the mask of each constraint into its row of ``out``: those of llguidance in parallel, and zeros
    for one that is broken."""
    ours = {row: one.matcher for row, one in enumerate(constraints) if isinstance(one, LlguidanceConstraint)}
    start, size = out.ctypes.data, out.shape[1] * out.itemsize
    if len(ours) > 1 and threads > 1:
        work = [(matcher, row) for row, matcher in ours.items()]
        _executor(threads).unsafe_compute_mask_ptr(work, start, size, len(out))
    else:
        for row, matcher in ours.items():
            matcher.unsafe_compute_mask_ptr(start + row * size, size)
    for row, one in enumerate(constraints):
        if row not in ours:
            one.mask(out[row])
        if one.is_broken:
            out[row] = 0


@cache
def _executor(threads: int) -> LLExecutor:
    from llguidance import LLExecutor

    return LLExecutor(threads)


class GrammarCompiler:
    """Compiles grammars for one tokenizer with llguidance. Any thread may call it."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        vocab: int,
        stop_ids: Sequence[int],
        *,
        canonical: bool = True,
    ) -> None:
        """``canonical``: where the next bytes are certain, the tokenizer's own tokens for them are the only
        ones allowed. Otherwise every split of a text into tokens is allowed."""
        import llguidance.hf

        fast: Any = tokenizer  # the slow form has no such base class
        self._vocab, self._canonical = vocab, canonical
        self._tokenizer = llguidance.hf.from_tokenizer(fast, n_vocab=vocab, eos_token=list(stop_ids))
        self._engine = f"llguidance {llguidance.__version__} canonical={canonical}"
        self._digest = tokenizer_digest(tokenizer, vocab, stop_ids)
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()  # last: used last
        self._lock = threading.Lock()

    def __call__(self, grammar: Grammar) -> CompiledGrammar:
        """Returns the grammar, compiled. Raises GrammarError."""
        with self._lock:
            known = self._compiled.get(grammar)
        if known is None:
            known = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = known
            self._compiled.move_to_end(grammar)
            while len(self._compiled) > _COMPILED:
                self._compiled.popitem(last=False)
        return CompiledGrammar(
            grammar.kind,
            grammar.source,
            grammar.form,
            begin=lambda: LlguidanceConstraint(known.deep_copy()),
            vocab=self._vocab,
            fingerprint=digest_of(grammar.form, grammar.source, self._digest, self._engine),
            max_tokens=most_tokens(grammar.source) if grammar.form == "json" else None,
            engine=self._engine,
        )

    def _compile(self, grammar: Grammar) -> LLMatcher:
        try:
            return self._matcher(grammar)
        except ValueError as error:  # half of a surrogate pair, or a number beyond a double
            raise GrammarError(_first_line(str(error))) from None

    def _matcher(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        writing: Any = dict(WRITING)
        if grammar.form == "lark":
            text = LLMatcher.grammar_from_lark(grammar.source)
        elif self._canonical:
            text = LLMatcher.grammar_from_json_schema(grammar.source, overrides=writing)
        else:
            schema = json.dumps({**json.loads(grammar.source), "x-guidance": writing})
            text = LLMatcher.grammar_from_lark(f'%llguidance {{"no_forcing": true}}\nstart: %json {schema}')
        limits = LLParserLimits(verbose_errors=False)
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=limits)
        if matcher.is_error():
            raise GrammarError(_first_line(matcher.get_error()))
        return matcher


class LlguidanceConstraint:
    """A constraint by an llguidance matcher, which never raises: it is broken instead."""

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self._run: list[int] = []
        """Certain tokens to come, the next one last."""

    def certain(self) -> int | None:
        """Returns the token that must follow where the next bytes are certain, else None. The tokens of a
        run of such bytes are computed once, in a fraction of the time of as many masks."""
        if not self._run:
            self._run = self.matcher.compute_ff_tokens()[::-1]
        return self._run[-1] if self._run else None

    @property
    def is_broken(self) -> bool:
        return self.matcher.is_error()

    def mask(self, out: np.ndarray) -> None:
        self.matcher.unsafe_compute_mask_ptr(out.ctypes.data, out.nbytes)
        if self.matcher.is_error():
            out[:] = 0  # in this state it would allow the end of the turn

    def advance(self, token: int) -> None:
        if self._run and self._run.pop() != token:
            self._run = []
        self.matcher.consume_token(token)

    def reset(self) -> None:
        self._run = []
        self.matcher.reset()


def tokenizer_digest(tokenizer: PreTrainedTokenizerBase, vocab: int, stop_ids: Sequence[int]) -> str:
    """Returns a digest of all of a tokenizer that masks depend on."""
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    described = sorted(tokenizer.get_vocab().items()) if backend is None else backend.to_str()
    return hashlib.sha256(repr((described, vocab, list(stop_ids))).encode()).hexdigest()


def digest_of(*parts: object) -> str:
    """Returns the digest of all that the masks of a grammar depend on, ``CompiledGrammar.fingerprint``."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def schema_source(schema: dict[str, Any], where: str, part: str) -> str:
    """Returns a schema as the source of a grammar. Raises GrammarError for a keyword that would change how
    it is enforced, or for one beyond a limit."""
    if problem := beyond_limits(schema):
        raise GrammarError(f"{where} {problem}: make it simpler", part)
    if _has_key(schema, "x-guidance"):
        problem = (
            f"{where} has the keyword 'x-guidance', which changes how a schema is enforced: leave it out"
        )
        raise GrammarError(problem, part)
    return json.dumps(closed(schema), ensure_ascii=False)


_OPEN = frozenset(
    ("additionalProperties", "unevaluatedProperties", "patternProperties", "minProperties", "$ref", "anyOf",
     "oneOf")
)  # fmt: skip
"""Keywords beside ``properties`` under which an object must stay open."""
_SCHEMAS = frozenset(("properties", "$defs", "definitions"))
_LISTS = frozenset(("anyOf", "oneOf", "prefixItems"))


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a schema without properties that its author did not name: all that it allows is valid under
    ``schema`` too. Open, an object may go on forever, and may repeat a key."""
    return schema if _has_key(schema, "allOf") else _closed(schema)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    for name, value in schema.items():
        if name in _SCHEMAS and isinstance(value, dict):
            made[name] = {key: _closed(item) for key, item in value.items()}
        elif name in _LISTS and isinstance(value, list):
            made[name] = [_closed(item) for item in value]
        elif name == "items":
            made[name] = _closed(value)
    named, required = schema.get("properties"), schema.get("required") or []
    if (
        isinstance(named, dict)
        and named
        and isinstance(required, list)
        and all(isinstance(name, str) and name in named for name in required)
        and not _OPEN & schema.keys()
    ):
        made["additionalProperties"] = False
    return made


def _has_key(value: Any, key: str) -> bool:
    if isinstance(value, dict):
        return key in value or any(_has_key(item, key) for item in value.values())
    return isinstance(value, list) and any(_has_key(item, key) for item in value)


def _first_line(text: str) -> str:
    return " ".join(text.split())[:300].rstrip(".")
