"""Engines of constraints: the language of their masks is that of a validator, for every tokenizer."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from onward.errors import OnwardError
from onward.lm.constrained import CompiledGrammar, Grammar, GrammarCompiler, GrammarError
from onward.lm.finite_language import of_sequences, of_texts
from onward.lm.longest_text import most_tokens
from onward.lm.policy import Policy
from onward.lm.request import Sample, SampleRequest
from onward.lm.sampler import Sampler
from onward.lm.tiny import build_tiny
from onward.lm.token_bytes import TokenBytes
from onward.lm.xgrammar_engine import XgrammarCompiler, unenforced

PADDED = 7
"""Ids beyond the tokenizer by which the network's vocabulary is larger."""


def item(check: str, weights: list[int]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"check": {"const": check}, "weight": {"enum": weights}},
        "required": ["check", "weight"],
        "additionalProperties": False,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "words": {"enum": ["cat", "cat and dog", "dög", "d"]},
    "criteria": {
        "type": "array",
        "minItems": 1,
        "maxItems": 2,
        "items": {"anyOf": [item("sum", [1, 2]), item("section", [3])]},
    },
    "whole": {"type": "integer", "minimum": 3, "maximum": 112},
    "choice": {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"anyOf": [{"const": "x"}, {"type": "null"}]}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
_ITEMS = [{"check": check, "weight": weight} for check in ("sum", "section", "su") for weight in range(5)]
UNIVERSE: dict[str, list[Any]] = {
    "words": ["cat", "cat and dog", "dög", "d", "", "ca", "dog"],
    "criteria": [list(some) for n in range(4) for some in itertools.product(_ITEMS[:14], repeat=min(n, 2))],
    "whole": list(range(-40, 140)),
    "choice": [
        {**({"a": a} if a is not ... else {}), **({"b": b} if b is not ... else {})}
        for a in (True, False, None, ...)
        for b in ("x", "y", None, ...)
    ],
}


def language(name: str) -> set[str]:
    """All texts of a schema, by trying each value of a larger universe."""
    valid = jsonschema.Draft202012Validator(SCHEMAS[name]).is_valid
    return {json.dumps(value, ensure_ascii=False) for value in UNIVERSE[name] if valid(value)}


@pytest.fixture(scope="module", params=["bytes", "bpe"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    corpus = ['[{"check": "sum", "weight": 3}, {"check": "section", "weight": 1}] cat and dog'] * 4
    folder = tmp_path_factory.mktemp("t") / "m"
    build_tiny(folder, corpus, vocab=259 if request.param == "bytes" else 310, hidden=8, layers=1, heads=1,
               kv_heads=1, intermediate=8)  # fmt: skip
    return AutoTokenizer.from_pretrained(folder)


def spelled(tokenizer: PreTrainedTokenizerBase) -> list[bytes]:
    of = TokenBytes(tokenizer).of
    return [of(token) for token in range(len(tokenizer) + PADDED)]


def ends(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return [tokenizer.convert_tokens_to_ids("<|im_end|>")]  # type: ignore[list-item]


def oracle(tokenizer: PreTrainedTokenizerBase, name: str) -> CompiledGrammar:
    return of_texts(sorted(language(name)), spelled(tokenizer), ends(tokenizer), len(tokenizer) + PADDED)


def compiled(tokenizer: PreTrainedTokenizerBase, name: str, *, canonical: bool) -> CompiledGrammar:
    compiler = GrammarCompiler(tokenizer, len(tokenizer) + PADDED, ends(tokenizer), canonical=canonical)
    return compiler(Grammar("json_schema", json.dumps(SCHEMAS[name])))


def allowed_after(grammar: CompiledGrammar, tokens: Sequence[int]) -> set[int]:
    constraint = grammar.begin()
    for token in tokens:
        constraint.advance(token)
    mask = np.zeros((grammar.vocab + 31) // 32, dtype=np.int32)
    constraint.mask(mask)
    assert not constraint.is_broken
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def canonical_paths(grammar: CompiledGrammar, end: int) -> Iterator[list[int]]:
    """All token sequences of a grammar without many splits of one text."""
    waiting: list[list[int]] = [[]]
    while waiting:
        path = waiting.pop()
        for token in allowed_after(grammar, path):
            if token == end:
                yield [*path, token]
            else:
                waiting.append([*path, token])


def states(grammar: CompiledGrammar, names: Sequence[bytes], end: int) -> dict[bytes, set[int]]:
    """The mask after each text that begins an answer; a text is reached by its first split that is found."""
    found: dict[bytes, set[int]] = {}
    waiting: list[tuple[bytes, list[int]]] = [(b"", [])]
    while waiting:
        text, path = waiting.pop()
        if text in found:
            continue
        found[text] = allowed_after(grammar, path)
        waiting += [(text + names[t], [*path, t]) for t in found[text] if t != end]
    return found


Engine = Callable[[PreTrainedTokenizerBase, str], CompiledGrammar]


def by_xgrammar(tokenizer: PreTrainedTokenizerBase, name: str) -> CompiledGrammar:
    pytest.importorskip("xgrammar")
    compiler = XgrammarCompiler(tokenizer, len(tokenizer) + PADDED, ends(tokenizer))
    return compiler(Grammar("json_schema", json.dumps(SCHEMAS[name])))


ENGINES: dict[str, Engine] = {
    "llguidance": lambda tokenizer, name: compiled(tokenizer, name, canonical=False),
    "xgrammar": by_xgrammar,
    "texts": oracle,
}


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_language_of_the_masks_is_that_of_a_validator(
    tokenizer: PreTrainedTokenizerBase, name: str, engine: str
) -> None:
    """The end is allowed after exactly the valid texts, and every beginning of one is reached."""
    grammar, names, (end,) = ENGINES[engine](tokenizer, name), spelled(tokenizer), ends(tokenizer)
    found = states(grammar, names, end)
    assert {text.decode() for text, mask in found.items() if end in mask} == language(name)


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("engine", ["llguidance", "xgrammar"])
def test_the_engine_and_the_oracle_agree_on_every_mask(
    tokenizer: PreTrainedTokenizerBase, name: str, engine: str
) -> None:
    names, (end,) = spelled(tokenizer), ends(tokenizer)
    ours = states(ENGINES[engine](tokenizer, name), names, end)
    assert ours == states(oracle(tokenizer, name), names, end) and len(ours) > 3


@pytest.mark.parametrize("name", SCHEMAS)
def test_canonical_masks_have_each_text_and_no_answer_is_longer_than_stated(
    tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    grammar, (end,) = compiled(tokenizer, name, canonical=True), ends(tokenizer)
    paths = list(canonical_paths(grammar, end))
    texts = {str(tokenizer.decode(path[:-1])) for path in paths}
    assert texts == language(name)
    assert grammar.max_tokens is not None and max(map(len, paths)) <= grammar.max_tokens


@pytest.mark.parametrize("canonical", [True, False])
@pytest.mark.parametrize("name", SCHEMAS)
def test_the_tokenizers_own_split_of_every_valid_text_is_inside_the_masks(
    tokenizer: PreTrainedTokenizerBase, name: str, canonical: bool
) -> None:
    """Training rows are encoded text by text: an engine that allows less would bias the policy unseen."""
    grammars = [compiled(tokenizer, name, canonical=canonical), oracle(tokenizer, name)]
    for text in language(name):
        ids = [*tokenizer.encode(text, add_special_tokens=False), *ends(tokenizer)]
        for grammar in grammars:
            masks = grammar.replay(ids)
            assert all(token in mask for token, mask in zip(ids, masks, strict=True))


@pytest.mark.parametrize("name", SCHEMAS)
def test_ids_that_pad_the_networks_vocabulary_are_never_allowed(
    tokenizer: PreTrainedTokenizerBase, name: str
) -> None:
    """vLLM 16210: the tail beyond the tokenizer was left unmasked."""
    names, (end,) = spelled(tokenizer), ends(tokenizer)
    for grammar in (compiled(tokenizer, name, canonical=False), oracle(tokenizer, name)):
        assert grammar.vocab == len(tokenizer) + PADDED
        seen = set().union(*states(grammar, names, end).values())
        assert max(seen) < len(tokenizer) and all(names[t] or t == end for t in seen)


def test_a_grammar_begins_anew_for_each_answer_also_in_threads(tokenizer: PreTrainedTokenizerBase) -> None:
    """Outlines 789, 1109: a processor worked once, and rows of a batch shared its state."""
    grammar = compiled(tokenizer, "words", canonical=True)
    first = allowed_after(grammar, [])
    results: list[set[str]] = []

    def walk() -> None:
        (end,) = ends(tokenizer)
        results.append({str(tokenizer.decode(path[:-1])) for path in canonical_paths(grammar, end)})

    threads = [threading.Thread(target=walk) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [language("words")] * 3 and allowed_after(grammar, []) == first
    once = grammar.begin()
    once.advance(next(iter(first)))
    once.reset()
    mask = np.zeros((grammar.vocab + 31) // 32, dtype=np.int32)
    once.mask(mask)
    assert {int(t) for t in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))} == first


@pytest.mark.parametrize(
    ("schema", "most"),
    [
        ({"const": "cat"}, 6),
        ({"enum": ["a", 10000]}, 6),
        ({"type": "array", "items": {"type": "boolean"}, "maxItems": 3}, 2 + 15 + 4 + 1),
        ({"type": "array", "items": {"type": "boolean"}}, None),
        ({"type": "string"}, None),
        ({"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": False}, 8 + 1),
        ({"type": "object", "properties": {"a": {"const": 1}}}, None),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": ["null", "boolean"]}}}, 6),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "array", "items": {"$ref": "#/$defs/x"}}}}, None),
        ({"anyOf": [{"const": "cat"}, {"type": "integer"}]}, None),
    ],
)
def test_the_longest_answer_of_a_schema(schema: dict[str, Any], most: int | None) -> None:
    assert most_tokens(json.dumps(schema)) == most


def test_an_answer_of_a_bounded_schema_never_runs_to_the_limit(tmp_path: Path) -> None:
    """Omlx 2990, vLLM 38696: white space without a bound ran a quarter of the calls to their limit."""
    policy = Policy.load(
        build_tiny(tmp_path / "m", ["ab"], vocab=259, hidden=16, layers=1, heads=1, kv_heads=1)
    )
    end = ends(policy.tokenizer)
    grammar = GrammarCompiler(policy.tokenizer, policy.shape.vocab, end)(
        Grammar("json_schema", json.dumps(SCHEMAS["criteria"]))
    )
    samples = sampled(policy, grammar, end, 40)
    assert {one.finish_reason for one in samples} == {"stop"}
    lengths = [len(json.loads(str(policy.tokenizer.decode(one.token_ids[:-1])))) for one in samples]
    assert min(lengths) == 1 and max(lengths) == 2  # mellea 1510: valid but always empty


def sampled(
    policy: Policy, grammar: CompiledGrammar, end: list[int], count: int, **more: Any
) -> list[Sample]:
    sampler = Sampler(policy, 16)
    asked: dict[str, Any] = {"temperature": 1.5, "for_training": True} | more
    most = grammar.max_tokens or 60
    for seed in range(count):
        sampler.submit(SampleRequest(str(seed), [5], most, stop_ids=end, seed=seed, grammar=grammar, **asked))
    done: list[Sample] = []
    while sampler.busy:
        done += sampler.step()
    return sorted(done, key=lambda one: int(one.request_id))


class Failing:
    """An engine that stops working after two tokens, in one of several ways."""

    def __init__(self, inner: Any, how: str) -> None:
        self._inner, self._how, self._taken = inner, how, 0
        self.is_broken = False

    def mask(self, out: np.ndarray) -> None:
        self._inner.mask(out)
        if self._taken == 2 and self._how == "empty":
            out[:] = 0
        if self._taken == 2 and self._how == "broken":
            self.is_broken = True
            out[:] = -1

    def advance(self, token: int) -> None:
        self._taken += 1
        self._inner.advance(token)

    def reset(self) -> None:
        self._inner.reset()


@pytest.mark.parametrize("how", ["empty", "broken"])
@pytest.mark.parametrize("for_training", [True, False])
def test_an_engine_that_fails_ends_its_answer_and_never_lets_every_token_pass(
    tmp_path: Path, how: str, for_training: bool
) -> None:
    """Lm-format-enforcer 119: on an internal error the parser ended itself and the answer went on."""
    policy = Policy.load(
        build_tiny(tmp_path / "m", ["ab"], vocab=259, hidden=16, layers=1, heads=1, kv_heads=1)
    )
    end = ends(policy.tokenizer)
    inner = of_texts(["abcd", "acbd"], [TokenBytes(policy.tokenizer).of(t) for t in range(259)], end, 259)
    grammar = CompiledGrammar("texts", "[]", "texts", begin=lambda: Failing(inner.begin(), how), vocab=259)
    for one in sampled(policy, grammar, end, 3, for_training=for_training):
        assert len(one.token_ids) == 2
        assert one.finish_reason == ("error" if for_training else "length")
        assert ("failed after 2 tokens" in one.error) == for_training


def test_a_finite_language_of_token_sequences_walks_each_of_them() -> None:
    grammar = of_sequences([[1, 2, 0], [1, 3, 3, 0], [4, 0]], 5)
    assert grammar.max_tokens == 4 and grammar.vocab == 5
    assert sorted(canonical_paths(grammar, 0)) == [[1, 2, 0], [1, 3, 3, 0], [4, 0]]
    with pytest.raises(GrammarError, match="token 4 is not in the language"):
        constraint = grammar.begin()
        constraint.advance(1)
        constraint.advance(4)
    refused: list[tuple[list[list[int]], str]] = [
        ([[1], [1, 2]], "begins another"), ([[], [1]], "begins another"), ([[9]], "outside 0 to 4"),
        ([], "no answer"), ([[]], "no answer"),
    ]  # fmt: skip
    for bad, problem in refused:
        with pytest.raises(GrammarError, match=problem):
            of_sequences(bad, 5)


def test_a_token_outside_the_grammar_is_named_when_a_text_is_replayed(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    grammar = compiled(tokenizer, "words", canonical=True)
    ids = [*tokenizer.encode('"dig"', add_special_tokens=False), *ends(tokenizer)]
    with pytest.raises(GrammarError, match=r"Token \d+ at place 2 of"):
        grammar.replay(ids)


def test_a_grammar_for_another_vocabulary_is_refused(tmp_path: Path) -> None:
    policy = Policy.load(
        build_tiny(tmp_path / "m", ["ab"], vocab=259, hidden=16, layers=1, heads=1, kv_heads=1)
    )
    with pytest.raises(OnwardError, match="a grammar for 5 tokens and the model has 259"):
        Sampler(policy).submit(SampleRequest("a", [5], 3, grammar=of_sequences([[1, 0]], 5)))


def test_fingerprints_differ_by_source_tokenizer_and_engine(tokenizer: PreTrainedTokenizerBase) -> None:
    made = [
        compiled(tokenizer, name, canonical=canonical)
        for name in ("words", "whole")
        for canonical in (True, False)
    ]
    made.append(oracle(tokenizer, "words"))
    assert len({one.fingerprint for one in made}) == 5
    assert compiled(tokenizer, "words", canonical=True).fingerprint == made[0].fingerprint


@pytest.mark.parametrize(
    "keyword", ["uniqueItems", "not", "if", "contains", "multipleOf", "oneOf", "made_up"]
)
def test_xgrammar_is_given_no_keyword_that_it_would_leave_unenforced(
    tokenizer: PreTrainedTokenizerBase, keyword: str
) -> None:
    """It warns and goes on; an answer would then break the schema unseen."""
    inner = {"type": "object", "properties": {"a": {keyword: True}}}
    schema = {"type": "array", "items": inner, "maxItems": 2}
    assert unenforced(schema) == keyword
    assert unenforced({"type": "object", "properties": {keyword: {"enum": [{keyword: 1}]}}}) is None
    pytest.importorskip("xgrammar")
    compiler = XgrammarCompiler(tokenizer, len(tokenizer), ends(tokenizer))
    with pytest.raises(GrammarError, match=f"does not enforce the keyword '{keyword}'"):
        compiler(Grammar("json_schema", json.dumps(schema)))
    with pytest.raises(GrammarError, match="JSON schemas alone"):
        compiler(Grammar("tool_calls", "start: /a/", "lark"))
