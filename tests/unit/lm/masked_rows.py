"""Answers under a small schema of enums, as rows to train on: for the tests of learning under masks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from onward.lm.any_model.policy import AnyPolicy
from onward.lm.any_model.sampler import AnySampler
from onward.lm.chat import Chat
from onward.lm.constrained import CompiledGrammar, Grammar, GrammarCompiler
from onward.lm.policy import Policy
from onward.lm.request import Sample, SampleRequest
from onward.lm.sampler import Sampler
from onward.lm.tiny import build_tiny
from onward.lm.tokens import TokenRow

SCHEMA: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 3,
    "items": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"check": {"const": name}, "weight": {"enum": [1, 2, 3, 4, 5]}},
                "required": ["check", "weight"],
                "additionalProperties": False,
            }
            for name in ("sum", "section", "summary")
        ]
    },
}


def build_criteria(folder: Path) -> Path:
    """Makes a network whose tokenizer knows the words of the schema."""
    corpus = ['[{"check": "sum", "weight": 3}, {"check": "section", "weight": 1}]', "system user assistant"]
    return build_tiny(folder, corpus, vocab=290, hidden=32, layers=2)


def compiled(policy: Policy | AnyPolicy) -> tuple[Chat, CompiledGrammar]:
    chat = Chat(policy.tokenizer)
    compiler = GrammarCompiler(policy.tokenizer, policy.shape.vocab, chat.stop_ids)
    return chat, compiler(Grammar("json_schema", json.dumps(SCHEMA)))


def drawn(
    sampler: Sampler | AnySampler, chat: Chat, grammar: CompiledGrammar, count: int, temperature: float = 1.0
) -> tuple[list[int], list[Sample]]:
    prompt = chat.render([{"role": "user", "content": "Who?"}])
    for seed in range(count):
        sampler.submit(
            SampleRequest(str(seed), prompt, grammar.max_tokens or 0, temperature, stop_ids=chat.stop_ids,
                          seed=seed, grammar=grammar, for_training=True)
        )  # fmt: skip
    done: list[Sample] = []
    while sampler.busy:
        done += sampler.step()
    return prompt, sorted(done, key=lambda sample: int(sample.request_id))


def rows_of(prompt: list[int], samples: list[Sample], temperature: float = 1.0) -> list[TokenRow]:
    rows = []
    for sample in samples:
        row = TokenRow([], [], [], temperature)
        row.extend(prompt, sample.token_ids, sample.logprobs, sample.allowed)
        rows.append(row)
    return rows


def gradient_of(learner: Any, steps: Iterator[Any], after: int = 0) -> tuple[dict[str, Tensor], Any]:
    """The gradient of the step that follows ``after`` others and is not taken; and its metrics."""
    for _ in range(after):
        next(steps)
    found: dict[str, Tensor] = {}

    def keep() -> None:
        for key, parameter in learner.tensors.items():
            found[key] = parameter.grad.clone()

    learner.stepper.optimizer.step = keep
    return found, next(steps)
