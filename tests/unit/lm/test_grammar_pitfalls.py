"""Known defects of other constrained samplers, named by their issue: this one must not have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest

from onward.lm.any_model.policy import AnyPolicy
from onward.lm.any_model.sampler import AnySampler
from onward.lm.chat import Chat
from onward.lm.constrained import CompiledGrammar, Grammar, GrammarCompiler, LlguidanceConstraint
from onward.lm.masks import AllowedTokens
from onward.lm.policy import Policy
from onward.lm.request import Sample, SampleRequest
from onward.lm.sampler import Sampler
from onward.lm.tiny import build_tiny


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus = ['{"name": "cat and dog", "tags": ["ab", "ba"]}', "system user assistant"]
    return build_tiny(tmp_path_factory.mktemp("m") / "m", corpus, vocab=290, hidden=32, layers=1)


@pytest.fixture(scope="module")
def policy(folder: Path) -> Policy:
    return Policy.load(folder)


def compiled(policy: Policy, schema: dict[str, Any]) -> CompiledGrammar:
    compiler = GrammarCompiler(policy.tokenizer, policy.shape.vocab, Chat(policy.tokenizer).stop_ids)
    return compiler(Grammar("json_schema", json.dumps(schema)))


def drawn(
    sampler: Sampler | AnySampler, grammar: CompiledGrammar, stop_ids: tuple[int, ...], seeds: range
) -> list[Sample]:
    for seed in seeds:
        sampler.submit(SampleRequest(str(seed), [5, 6, 7], grammar.max_tokens or 60, 1.5, seed=seed,
                                     stop_ids=stop_ids, grammar=grammar, for_training=True))  # fmt: skip
    done: list[Sample] = []
    while sampler.busy:
        done += sampler.step()
    return sorted(done, key=lambda one: int(one.request_id))


def survives(grammar: CompiledGrammar, tokens: int) -> bool:
    """Walks through an answer by its likeliest kind of token, a letter; False if the engine gave up."""
    one = grammar.begin()
    words = np.zeros((grammar.vocab + 31) // 32, dtype=np.int32)
    rnd = np.random.default_rng(0)
    for _ in range(tokens):
        one.mask(words)
        if one.is_broken:
            return False
        allowed = AllowedTokens.of_words(words, grammar.vocab).ids
        one.advance(int(rnd.choice(allowed)))
    return True


def test_a_mask_inside_a_string_needs_no_more_work_under_a_long_limit(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Xgrammar 852: ``maxLength`` made a mask 300 times as slow, in steps at 128 and by its size.

    The work is counted by the engine itself: the steps of its lexer that one mask may need.
    """
    limits = llguidance.LLParserLimits

    def with_fuel(fuel: int) -> None:
        monkeypatch.setattr(
            llguidance, "LLParserLimits", lambda **given: limits(**given, step_lexer_fuel=fuel)
        )

    for most, tokens in ((12, 4), (127, 30), (129, 30), (2000, 30)):
        schema = {"type": "array", "items": {"type": "string", "minLength": most // 2, "maxLength": most}}
        with_fuel(1500)
        assert survives(compiled(policy, schema), tokens), most
        with_fuel(50)
        assert not survives(compiled(policy, schema), tokens), most  # the count is of this work


@pytest.mark.parametrize("bounds", [{"maxLength": 4}, {"minLength": 3, "maxLength": 4}])
def test_a_pattern_beside_a_length_leaves_both_in_force(policy: Policy, bounds: dict[str, int]) -> None:
    """Vllm 45592: ``pattern`` on the items of an array made their ``maxLength`` ignored."""
    items = {"type": "string", "pattern": "^[ab]+$", **bounds}
    schema = {"type": "array", "minItems": 1, "maxItems": 2, "items": items}
    grammar, stop_ids = compiled(policy, schema), tuple(Chat(policy.tokenizer).stop_ids)
    answers = [
        json.loads(str(policy.tokenizer.decode(one.token_ids[:-1])))
        for one in drawn(Sampler(policy, 32), grammar, stop_ids, range(60))
    ]
    for answer in answers:
        jsonschema.validate(answer, schema)
    lengths = {len(text) for answer in answers for text in answer}
    assert lengths == set(range(bounds.get("minLength", 1), 5))  # each one is reached, the longest included


@pytest.mark.parametrize("kind", [Policy, AnyPolicy])
def test_nothing_follows_the_end_of_an_answer_whose_neighbours_go_on(
    folder: Path, kind: type[Policy] | type[AnyPolicy]
) -> None:
    """Transformers 30441: ``generate`` replaced what a processor allowed after the end by padding."""
    policy = kind.load(folder)
    stop_ids = tuple(Chat(policy.tokenizer).stop_ids)
    compiler = GrammarCompiler(policy.tokenizer, policy.shape.vocab, stop_ids)
    schema = {"enum": ["a", "ab ab ab ab ab", "abba", "dog dog and cat cat cat"]}
    grammar = compiler(Grammar("json_schema", json.dumps(schema)))

    def answers(seeds: range) -> list[Sample]:
        sampler = Sampler(policy, 8) if isinstance(policy, Policy) else AnySampler(policy, 8)
        return drawn(sampler, grammar, stop_ids, seeds)

    together = answers(range(12))
    assert len({len(one.token_ids) for one in together}) > 2  # some rows end long before others
    for number, one in enumerate(together):
        *text, last = one.token_ids
        assert last in stop_ids and not set(text) & set(stop_ids)
        assert json.loads(str(policy.tokenizer.decode(text))) in schema["enum"]
        assert len(one.logprobs) == len(one.allowed) == len(one.token_ids)
        (alone,) = answers(range(number, number + 1))
        assert alone.token_ids == one.token_ids


def test_where_the_text_is_certain_the_token_is_the_whole_mask_of_the_engine(policy: Policy) -> None:
    """Certain tokens are taken from the engine without a mask: the policy must be the same."""
    item = {
        "type": "object",
        "properties": {
            "name": {"enum": ["cat", "cat and dog", "dög  5"]},
            "tags": {"const": "two  spaces\n12"},
        },
        "required": ["name", "tags"],
        "additionalProperties": False,
    }
    grammar = compiled(policy, {"type": "array", "items": item, "minItems": 1, "maxItems": 2})
    certain = 0
    for one in drawn(Sampler(policy, 8), grammar, tuple(Chat(policy.tokenizer).stop_ids), range(8)):
        engine, ours = grammar.begin(), grammar.begin()
        assert isinstance(ours, LlguidanceConstraint)
        words = np.zeros((grammar.vocab + 31) // 32, dtype=np.int32)
        for token, allowed in zip(one.token_ids, one.allowed, strict=True):
            engine.mask(words)
            assert allowed == AllowedTokens.of_words(words, grammar.vocab)
            if (known := ours.certain()) is not None:
                assert allowed == AllowedTokens.only(known, grammar.vocab)
                certain += 1
            engine.advance(token)
            ours.advance(token)
        ours.reset()
        assert ours.certain() == one.token_ids[0]
    assert certain > 100
