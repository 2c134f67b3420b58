"""Cost of constrained sampling: the same number of tokens, with a grammar's mask and without one.

The grammar asks for a list of objects that is longer than the answer may be, so every answer has its full
length on both sides. ``ratio`` is the throughput with the grammar over that without it: 0.85 or more is the
aim. ``compile_seconds`` is what the first request with a new schema waits for.

Results (SmolLM2, one thread, one run of each side, load 4 to 12 on two cores; results/constrained.json):
0.89, 0.89 and 0.93 by processor time for 1, 8 and 32 answers. By the clock 0.73, 0.42 and 0.91: other
programs took the cores in turn, so these say little. A new schema waits 0.03 s.

    python benchmarks/constrained.py [--quick] [--json FILE] [--model NAME] [--threads N] [--repeats N]
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import onward.lm  # noqa: F401  (before torch: it makes waiting threads passive)

import torch  # isort: skip

from lm_measure import arguments, compare, model_folder, report
from onward.lm.constrained import CompiledGrammar, Grammar, GrammarCompiler
from onward.lm.policy import Policy
from onward.lm.sampler import Sampler, SampleRequest

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
GRAMMAR = Grammar("json_schema", json.dumps({"type": "array", "items": ITEM, "minItems": 1000}))


def sample(policy: Policy, rows: int, new: int, grammar: CompiledGrammar | None) -> None:
    """Draws ``rows`` answers of ``new`` tokens to prompts of their own."""
    rnd = random.Random(0)
    sampler = Sampler(policy, max_batch=rows)
    for row in range(rows):
        prompt = [rnd.randrange(3, policy.shape.vocab) for _ in range(32)]
        sampler.submit(SampleRequest(str(row), prompt, new, seed=row, grammar=grammar))
    drawn = 0
    while sampler.busy:
        drawn += sum(len(one.token_ids) for one in sampler.step())
    assert drawn == rows * new


def main() -> None:
    given = arguments("The cost of a grammar's mask.").parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as scratch:
        folder, name = model_folder(given, Path(scratch))
        policy = Policy.load(folder)
        compiler = GrammarCompiler(policy.tokenizer, policy.shape.vocab, [policy.tokenizer.eos_token_id])
        started = time.perf_counter()
        compiled = compiler(GRAMMAR)
        compile_seconds = round(time.perf_counter() - started, 4)
        results: list[dict[str, Any]] = []
        for rows, new in ((4, 16), (16, 16)) if given.quick else ((1, 64), (8, 64), (32, 64)):
            runs = [
                lambda rows=rows, new=new, grammar=grammar: sample(policy, rows, new, grammar)
                for grammar in (compiled, None)
            ]
            case = {"case": f"{rows} answers of {new} tokens"}
            results.append(case | compare(runs[0], runs[1], "unconstrained", rows * new, given.repeats))
    lowest = min(one["ratio"] for one in results)
    report("constrained", name, given, lowest, {"cases": results, "compile_seconds": compile_seconds})


if __name__ == "__main__":
    main()
