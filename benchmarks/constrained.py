"""Cost of constrained sampling and learning: the same tokens, under a grammar's masks and without them.

Both grammars ask for a list of objects that is longer than the answer may be, so every answer has its full
length on both sides. ``strings`` leaves most tokens open in each string. In ``enums`` one token is allowed
at most places, and few at the others. ``ratio`` is the throughput under the grammar over that without it:
0.85 or more is the aim. ``learning`` takes one step of the learner on the answers, with their masks and as
free rows of the same tokens. ``compile_seconds`` is what the first request with a new schema waits for.

Results by processor time on the tiny network, whose pass takes hardly longer than a mask (one thread, the
best of eight runs by turns, load 10 on two cores; results/constrained.json): 0.98 to 1.13 for ``enums``, 0.91
to 0.96 for ``strings``, learning 0.98 and 1.24. With SmolLM2 (``--quick``, the best of two, load 15;
results/constrained_smollm2.json): 1.17 and 1.18 for ``enums``, 1.00 and 1.03 for ``strings``, learning 0.96
and 1.10. The wall-clock ratios of that run are noise of the load: 0.80 to 3.47.

    python benchmarks/constrained.py [--quick] [--json FILE] [--model NAME] [--threads N] [--repeats N]
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import onward.lm  # noqa: F401  (before torch: it makes waiting threads passive)

import torch  # isort: skip

from lm_measure import arguments, compare, model_folder, report
from onward.lm.constrained import CompiledGrammar, Grammar, GrammarCompiler
from onward.lm.learner import Learner, LearnerConfig
from onward.lm.policy import Policy
from onward.lm.sampler import Sampler, SampleRequest
from onward.lm.tokens import TokenRow

ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "kind": {"enum": ["cat", "dog", "bird"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}},
    },
    "required": ["name", "age", "kind", "tags"],
    "additionalProperties": False,
}
CHECKS = ("sum_matches", "has_section", "no_duplicates", "sorted_by", "within_budget", "cites_source")
CRITERIA = [
    {
        "type": "object",
        "properties": {
            "check": {"const": check},
            "arg": {"enum": ["summary", "risks", "total", "dates"]},
            "weight": {"enum": [1, 2, 3, 4, 5]},
        },
        "required": ["check", "arg", "weight"],
        "additionalProperties": False,
    }
    for check in CHECKS
]


def endless(items: dict[str, Any]) -> Grammar:
    return Grammar("json_schema", json.dumps({"type": "array", "items": items, "minItems": 1000}))


GRAMMARS = {"strings": endless(ITEM), "enums": endless({"anyOf": CRITERIA})}


def sample(policy: Policy, rows: int, new: int, grammar: CompiledGrammar | None) -> list[TokenRow]:
    """Draws ``rows`` answers of ``new`` tokens to prompts of their own, and returns them to train on."""
    rnd = random.Random(0)
    sampler = Sampler(policy, max_batch=rows)
    prompts = {str(row): [rnd.randrange(3, policy.shape.vocab) for _ in range(32)] for row in range(rows)}
    for row, prompt in prompts.items():
        request = SampleRequest(row, prompt, new, seed=int(row), grammar=grammar, for_training=True)
        sampler.submit(request)
    made = []
    while sampler.busy:
        for one in sampler.step():
            assert len(one.token_ids) == new
            made.append(TokenRow([], [], []))
            made[-1].extend(prompts[one.request_id], one.token_ids, one.logprobs, one.allowed)
    return made


def learn(policy: Policy, rows: list[TokenRow]) -> None:
    """Takes one step on ``rows``."""
    policy.new_adapter("trained", 16)
    learner = Learner(policy, "trained", LearnerConfig(epochs=1, minibatch_rows=len(rows)))
    for _ in learner.update(rows, [(-1.0) ** number for number in range(len(rows))]):
        pass
    policy.remove_adapter("trained")


def main() -> None:
    given = arguments("The cost of a grammar's masks.").parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as scratch:
        folder, name = model_folder(given, Path(scratch))
        policy = Policy.load(folder)
        end: Any = policy.tokenizer.eos_token_id
        compiler = GrammarCompiler(policy.tokenizer, policy.shape.vocab, [int(end)])
        sizes = ((4, 16), (16, 16)) if given.quick else ((1, 64), (8, 64), (32, 64))
        results: list[dict[str, Any]] = []
        compile_seconds = {}
        for kind, grammar in GRAMMARS.items():
            started = time.perf_counter()
            compiled = compiler(grammar)
            compile_seconds[kind] = round(time.perf_counter() - started, 4)
            for rows, new in sizes:
                runs = [lambda r=rows, n=new, g=one: sample(policy, r, n, g) for one in (compiled, None)]
                case = {"case": f"{kind}: {rows} answers of {new} tokens"}
                results.append(case | compare(runs[0], runs[1], "unconstrained", rows * new, given.repeats))
            rows, new = sizes[1]
            masked = sample(policy, rows, new, compiled)
            free = [replace(row, allowed={}) for row in masked]
            runs = [lambda some=some: learn(policy, some) for some in (masked, free)]
            case = {"case": f"{kind}: learning from {rows} answers of {new} tokens"}
            results.append(case | compare(runs[0], runs[1], "unconstrained", rows * new, given.repeats))
    lowest = min(one["ratio"] for one in results)
    report("constrained", name, given, lowest, {"cases": results, "compile_seconds": compile_seconds})


if __name__ == "__main__":
    main()
