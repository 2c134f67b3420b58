"""Grammars, penalties, biases and stop strings in the sampler, each against a slow reference."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from onward.capture.conversations.answers import read_answer
from onward.errors import OnwardError
from onward.lm import constrained
from onward.lm.answer_form import AnswerForm, CallStyle
from onward.lm.answers import Answer
from onward.lm.chat import Chat
from onward.lm.constrained import CompiledGrammar, Grammar, GrammarCompiler, GrammarError, closed
from onward.lm.next_token import Computed, draw_next
from onward.lm.policy import Policy
from onward.lm.request import Sample, SampleRequest
from onward.lm.sampler import Sampler
from onward.lm.shaping import Shaping
from onward.lm.stop_text import cut, settled
from onward.lm.tiny import build_tiny
from onward.lm.token_bytes import TokenBytes
from onward.lm.tokens import TokenRow

TEXTS = ['"cat"', '"cat and dog"', '"dög"', '"d"']
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": -5, "maximum": 120},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/Tag"}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"Tag": {"enum": ["a", 1, None]}},
}


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    corpus = ["Add 2 and 3.", '{"tool_name": "response", "tool_args": {"text": "cat and dog"}}']
    return Policy.load(build_tiny(tmp_path_factory.mktemp("t") / "m", corpus, vocab=290, hidden=32, layers=1))


@pytest.fixture(scope="module")
def chat(policy: Policy) -> Chat:
    return Chat(policy.tokenizer)


@pytest.fixture(scope="module")
def compiler(policy: Policy, chat: Chat) -> GrammarCompiler:
    return GrammarCompiler(policy.tokenizer, policy.shape.vocab, chat.stop_ids)


@pytest.fixture(scope="module")
def person(compiler: GrammarCompiler) -> CompiledGrammar:
    return compiler(Grammar("json_schema", json.dumps(PERSON)))


class Trie:
    """The oracle: a constraint to a finite set of texts, by comparing bytes."""

    is_broken = False

    def __init__(self, texts: list[str], names: list[bytes], stop_ids: tuple[int, ...]) -> None:
        self._texts = [text.encode() for text in texts]
        self._names, self._stop_ids, self._so_far = names, stop_ids, b""

    def _after(self) -> set[bytes]:
        return {text[len(self._so_far) :] for text in self._texts if text.startswith(self._so_far)}

    def next_bytes_are_certain(self) -> bool:
        return len({rest[:1] for rest in self._after()}) == 1

    def allowed(self) -> set[int]:
        after = self._after()
        fit = {t for t, name in enumerate(self._names) if name and any(r.startswith(name) for r in after)}
        return fit | (set(self._stop_ids) if b"" in after else set())

    def mask(self, out: np.ndarray) -> None:
        out[:] = 0
        for token in self.allowed():
            out.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)

    def advance(self, token: int) -> None:
        self._so_far += self._names[token]

    def reset(self) -> None:
        self._so_far = b""


def names_of(policy: Policy) -> list[bytes]:
    of = TokenBytes(policy.tokenizer).of
    return [of(token) for token in range(policy.shape.vocab)]


def bits_of(mask: np.ndarray) -> set[int]:
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def drawn(sampler: Sampler, chat: Chat, count: int, **more: Any) -> list[Sample]:
    ids = chat.render([{"role": "user", "content": "Who?"}])
    asked: dict[str, Any] = {"temperature": 1.5, "stop_ids": chat.stop_ids, "max_new_tokens": 600}
    for seed in range(count):
        sampler.submit(SampleRequest(str(seed), ids, seed=seed, **(asked | more)))
    done: list[Sample] = []
    while sampler.busy:
        done += sampler.step()
    return sorted(done, key=lambda sample: int(sample.request_id))


def test_the_bytes_of_tokens_spell_the_text(policy: Policy) -> None:
    text = "Add 2 ünd 3 🙂 <|im_end|>"
    ids = policy.tokenizer.encode(text, add_special_tokens=False)
    spelled = b"".join(TokenBytes(policy.tokenizer).of(token) for token in ids)
    assert spelled.decode() == policy.tokenizer.decode(ids, skip_special_tokens=True)


def test_llguidances_masks_equal_those_of_the_trie_where_the_text_is_open(
    policy: Policy, chat: Chat, compiler: GrammarCompiler
) -> None:
    """Where the next bytes are certain, llguidance allows only the tokenizer's own token for them."""
    grammar = compiler(Grammar("json_schema", json.dumps({"enum": [json.loads(text) for text in TEXTS]})))
    names, steps, opened = names_of(policy), 0, 0
    for sample in drawn(Sampler(policy, 32), chat, 12, grammar=grammar):
        ours, oracle = grammar.begin(), Trie(TEXTS, names, chat.stop_ids)
        for token in sample.token_ids:
            mask = np.zeros((policy.shape.vocab + 31) // 32, dtype=np.int32)
            ours.mask(mask)
            if oracle.next_bytes_are_certain():
                assert bits_of(mask) and bits_of(mask) <= oracle.allowed()
            else:
                assert bits_of(mask) == oracle.allowed()
                opened += 1
            ours.advance(token)
            oracle.advance(token)
            steps += 1
    assert steps > 60 and opened > 20


def test_a_masked_draw_is_renormalised_over_what_the_trie_allows(policy: Policy, chat: Chat) -> None:
    names = names_of(policy)
    grammar = CompiledGrammar("json_schema", "{}", begin=lambda: Trie(TEXTS, names, chat.stop_ids))
    prompt = chat.render([{"role": "user", "content": "Who?"}])
    for sample in drawn(Sampler(policy, 8), chat, 4, grammar=grammar):
        assert chat.text(sample.token_ids) in TEXTS
        oracle = Trie(TEXTS, names, chat.stop_ids)
        for place, token in enumerate(sample.token_ids):
            allowed = sorted(oracle.allowed())
            before = [*prompt, *sample.token_ids[:place]]
            rows = [TokenRow([*before, one], [False] * len(before) + [True], [0.0] * (len(before) + 1), 1.5)
                    for one in allowed]  # fmt: skip
            free = torch.stack([values[-1] for values in policy.logprobs(rows)])
            expected = float(free[allowed.index(token)] - free.logsumexp(0))
            assert sample.logprobs[place] == pytest.approx(expected, abs=1e-4)
            oracle.advance(token)


def test_every_answer_is_valid_at_a_high_temperature_over_many_seeds(
    policy: Policy, chat: Chat, person: CompiledGrammar
) -> None:
    samples = drawn(Sampler(policy, 64), chat, 64, grammar=person)
    assert {sample.finish_reason for sample in samples} == {"stop"}
    for sample in samples:
        jsonschema.validate(json.loads(chat.text(sample.token_ids)), PERSON)
        assert sample.token_ids[-1] == chat.end_of_turn


def test_an_answer_at_its_limit_inside_the_grammar_ends_with_length(
    policy: Policy, chat: Chat, person: CompiledGrammar
) -> None:
    (sample,) = drawn(Sampler(policy, 4), chat, 1, grammar=person, max_new_tokens=5)
    assert sample.finish_reason == "length" and len(sample.token_ids) == 5


def _tool(name: str, parameters: dict[str, Any] = PERSON, *, strict: bool = False) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, "strict": strict}}


@pytest.mark.parametrize("style", ["words", "blocks", "arguments", "parameters"])
@pytest.mark.parametrize("parallel", [True, False])
def test_forced_calls_are_read_as_calls_in_every_style(
    policy: Policy, chat: Chat, compiler: GrammarCompiler, style: CallStyle, parallel: bool
) -> None:
    form = AnswerForm([_tool("f"), _tool("g")], must_call=True, parallel=parallel)
    grammar = compiler(form.grammar(style, compiler))
    samples = drawn(Sampler(policy, 32), chat, 10, grammar=grammar, max_new_tokens=1900)
    for sample in samples:
        said = read_answer(chat.text(sample.token_ids), {"f", "g"}, "x")
        assert sample.finish_reason == "length" or said.calls
        assert parallel or len(said.calls) == 1
        for call in said.calls:
            jsonschema.validate(call.arguments, PERSON)


@pytest.mark.parametrize("style", ["words", "blocks"])
def test_a_strict_tool_that_need_not_be_called_is_called_right_or_not_at_all(
    policy: Policy, chat: Chat, compiler: GrammarCompiler, style: CallStyle
) -> None:
    grammar = compiler(AnswerForm([_tool("f", strict=True)]).grammar(style, compiler))

    def accepts(text: str) -> bool:
        constraint = grammar.begin()
        for token in [*chat.encode(text), chat.end_of_turn]:
            mask = np.zeros((policy.shape.vocab + 31) // 32, dtype=np.int32)
            constraint.mask(mask)
            if token not in bits_of(mask):
                return False
            constraint.advance(token)
        return True

    good, bad = '{"name": "x", "age": 3}', '{"name": "x", "age": "3"}'
    wrap = {
        "words": '{{"tool_name": "f", "tool_args": {}}}',
        "blocks": '<tool_call>\n{{"name": "f", "arguments": {}}}\n</tool_call>',
    }[style]
    assert accepts(wrap.format(good)) and not accepts(wrap.format(bad))
    assert accepts("It is 3.") and not accepts("Sure: " + f"<tool_call>{bad}</tool_call>")


def test_references_of_a_schema_hold_where_it_is_a_part_of_another(policy: Policy, chat: Chat) -> None:
    """For a server that knows JSON schemas alone."""
    grammar = AnswerForm([_tool("f"), _tool("g")], must_call=True, parallel=False).grammar(
        "blocks", lambda _: "", json_only=True
    )
    schema = json.loads(grammar.source)
    call = {"name": "g", "arguments": {"name": "x", "age": 3, "tags": ["a"]}}
    jsonschema.validate(call, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**call, "arguments": {**call["arguments"], "tags": ["b"]}}, schema)
    with pytest.raises(GrammarError, match="force the call"):
        AnswerForm([_tool("f", strict=True)]).grammar("blocks", lambda _: "", json_only=True)


def test_penalties_and_biases_change_the_logits_by_openais_formula(policy: Policy, chat: Chat) -> None:
    shaped: dict[str, Any] = {
        "presence_penalty": 0.7,
        "frequency_penalty": 0.4,
        "logit_bias": {45: 3.0, 60: -2.0},
    }
    prompt = chat.render([{"role": "user", "content": "Who?"}])
    vocab = policy.shape.vocab
    for sample in drawn(Sampler(policy, 4), chat, 2, max_new_tokens=8, alternatives=4, **shaped):
        for place, token in enumerate(sample.token_ids):
            before = [*prompt, *sample.token_ids[:place]]
            rows = [TokenRow([*before, one], [False] * len(before) + [True], [0.0] * (len(before) + 1))
                    for one in range(vocab)]  # fmt: skip
            logits = torch.stack([values[-1] for values in policy.logprobs(rows)])
            for one in set(sample.token_ids[:place]):
                logits[one] -= 0.7 + 0.4 * sample.token_ids[:place].count(one)
            logits[45] += 3.0
            logits[60] -= 2.0
            expected = (logits / 1.5).log_softmax(0)
            assert sample.logprobs[place] == pytest.approx(float(expected[token]), abs=1e-4)
            best = expected.topk(4)
            assert [one for one, _ in sample.alternatives[place]] == best.indices.tolist()
            assert [value for _, value in sample.alternatives[place]] == pytest.approx(
                best.values.tolist(), abs=1e-4
            )


@pytest.mark.parametrize(
    ("change", "added"),
    [({"logit_bias": {0: 0.05}}, 0.05), ({"presence_penalty": 0.05}, -0.05)],
    ids=["bias", "penalty"],
)
def test_a_small_change_of_a_logit_is_not_rounded_away_in_half_precision(
    change: dict[str, Any], added: float
) -> None:
    """After 20 bfloat16 has 20.125. Of two equal logits the first gets 1 / (1 + e^-added)."""
    request = SampleRequest("a", [5], 3, **change)
    shaping = Shaping(request, 2)
    answer = Answer(request, np.zeros(3, dtype=np.float32), shaping=shaping)
    if added < 0:
        shaping.advance(0)
    draw_next([answer], Computed(torch.full((1, 2), 20.0, dtype=torch.bfloat16)))
    assert answer.token_ids == [0]
    assert answer.logprobs == pytest.approx([-np.log1p(np.exp(-added))], abs=1e-5)


def test_plain_rows_of_a_batch_draw_what_they_draw_alone_beside_shaped_ones(
    policy: Policy, chat: Chat, person: CompiledGrammar
) -> None:
    ids = chat.render([{"role": "user", "content": "Who?"}])
    plain = SampleRequest("plain", ids, 20, stop_ids=chat.stop_ids, seed=3)
    alone, mixed = Sampler(policy, 8), Sampler(policy, 8)
    mixed.submit(SampleRequest("other", ids, 30, seed=1, grammar=person, stop_ids=chat.stop_ids,
                               stop_texts=["zzz"], presence_penalty=1.0))  # fmt: skip
    found = []
    for sampler in (alone, mixed):
        sampler.submit(plain)
        done: list[Sample] = []
        while sampler.busy:
            done += sampler.step()
        found.append(next(sample for sample in done if sample.request_id == "plain"))
    assert found[0].token_ids == found[1].token_ids
    assert found[0].logprobs == pytest.approx(found[1].logprobs, abs=1e-5)


def test_changed_base_weights_begin_a_constrained_answer_again(
    policy: Policy, chat: Chat, person: CompiledGrammar
) -> None:
    ids = chat.render([{"role": "user", "content": "Who?"}])
    sampler = Sampler(policy, 4)
    sampler.submit(SampleRequest("a", ids, 600, stop_ids=chat.stop_ids, seed=1, grammar=person))
    done = [*sampler.step(), *sampler.step(), *sampler.step()]
    with torch.no_grad():
        policy.weights.embedding.mul_(1.0001)
    while sampler.busy:
        done += sampler.step()
    jsonschema.validate(json.loads(chat.text(done[0].token_ids)), PERSON)


def test_a_grammar_that_is_not_compiled_is_refused(policy: Policy) -> None:
    with pytest.raises(OnwardError, match="'a' has a grammar that is not compiled: give the result of a"):
        Sampler(policy).submit(SampleRequest("a", [5], 3, grammar=Grammar("json_object", "{}")))


def test_a_grammar_that_was_compiled_serves_many_answers_and_is_compiled_once(
    policy: Policy, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many other grammars were compiled before its request is sampled."""
    monkeypatch.setattr(constrained, "_COMPILED", 1)
    compiler = GrammarCompiler(policy.tokenizer, policy.shape.vocab, chat.stop_ids)
    first = compiler(Grammar("json_schema", '{"const": "cat"}'))
    second = compiler(Grammar("json_schema", '{"const": "dog"}'))
    monkeypatch.setattr(compiler, "_compile", lambda _: pytest.fail("compiled again"))
    sampler = Sampler(policy, 8)
    texts = [chat.text(one.token_ids) for grammar in (first, second, first)
             for one in drawn(sampler, chat, 3, grammar=grammar)]  # fmt: skip
    assert texts == ['"cat"'] * 3 + ['"dog"'] * 3 + ['"cat"'] * 3


def test_training_refuses_penalties_and_biases_but_no_grammar(policy: Policy) -> None:
    SampleRequest("a", [5], 3, for_training=True, grammar=Grammar("json_object", "{}")).check(100)
    for shaped in ({"presence_penalty": 0.1}, {"frequency_penalty": -0.1}, {"logit_bias": {5: 1.0}}):
        request = SampleRequest("a", [5], 3, for_training=True, **shaped)  # type: ignore[arg-type]
        with pytest.raises(OnwardError, match="for training with penalties or a logit bias: leave them out"):
            request.check(100, policy.shape.vocab)


def test_an_answer_ends_with_the_token_that_completes_a_stop_string(policy: Policy, chat: Chat) -> None:
    (free,) = drawn(Sampler(policy, 4), chat, 1, max_new_tokens=40, stop_ids=())
    text = chat.text(free.token_ids)
    for at in range(0, 12, 3):
        stop = text[at : at + 3]
        (sample,) = drawn(Sampler(policy, 4), chat, 1, max_new_tokens=40, stop_ids=(), stop_texts=["☃", stop])
        n = len(sample.token_ids)
        assert sample.token_ids == free.token_ids[:n] and sample.finish_reason == "stop"
        assert stop in chat.text(sample.token_ids) and stop not in chat.text(sample.token_ids[:-1])


@pytest.mark.parametrize(
    ("text", "stops", "whole", "sure"),
    [
        ("one two", ["two"], "one ", "one "),
        ("one tw", ["two"], "one tw", "one "),
        ("one t\n\nw", ["\n\n", "two"], "one t", "one t"),
        ("aab", ["aabc", "b"], "aa", "aa"),
        ("xaa", ["aab"], "xaa", "x"),
        ("x", ["longer than it"], "x", "x"),
        ("", ["a"], "", ""),
    ],
)
def test_text_is_cut_before_the_first_stop_and_no_part_of_one_is_sent_early(
    text: str, stops: list[str], whole: str, sure: str
) -> None:
    assert cut(text, stops) == whole and settled(text, stops) == sure


def test_a_schema_that_cannot_be_compiled_names_its_keyword(
    compiler: GrammarCompiler,
) -> None:
    with pytest.raises(GrammarError, match="uniqueItems"):
        compiler(Grammar("json_schema", json.dumps({"type": "array", "uniqueItems": True})))


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"properties": {"a": {}}, "required": ["b"]},
        {"properties": {"a": {}}, "required": [["a"]]},
        {"properties": 5, "items": [], "anyOf": {}, "$defs": 1},
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "patternProperties": {"^b": {}}},
        {"properties": {"a": {}}, "minProperties": 2},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
    ],
)
def test_an_object_that_has_to_stay_open_stays_so(schema: dict[str, Any]) -> None:
    assert closed(schema) == schema


def test_a_model_adds_no_property_that_the_schema_does_not_name() -> None:
    inner = {"properties": {"properties": {"type": "string"}}}
    made = closed({"properties": {"a": {"items": inner}}, "$defs": {"B": inner}, "required": ["a"]})
    shut = {**inner, "additionalProperties": False}
    assert made == {
        "properties": {"a": {"items": shut}}, "$defs": {"B": shut}, "required": ["a"],
        "additionalProperties": False,
    }  # fmt: skip


def test_the_grammars_that_are_used_stay_compiled(
    policy: Policy, chat: Chat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constrained, "_COMPILED", 2)
    compiler = GrammarCompiler(policy.tokenizer, policy.shape.vocab, chat.stop_ids)
    compiled, compile_ = [], compiler._compile
    monkeypatch.setattr(compiler, "_compile", lambda one: compiled.append(one) or compile_(one))
    first, second, third = (Grammar("json_schema", f'{{"const": {n}}}') for n in range(3))
    for grammar in (first, second, first, third, first):
        compiler(grammar)
    assert compiled == [first, second, third]
