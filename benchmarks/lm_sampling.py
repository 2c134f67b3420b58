"""Sampling speed: our sampler beside ``transformers.generate``, same weights, prompts and lengths, same run.

The top-level ``ratio`` is that of the target case (prompt 256, 64 new tokens, one group of 8).

Results of profiling (SmolLM2-135M, float32, two cores). A decode step of eight rows is 70 % matrix products
that read all weights from memory, so their layout decides (oneDNN's packed one reads twice as fast as
``F.linear``). Reading a shared prompt's keys once for the group saves a third of attention. Clearing a cache
made for 32 rows took a third of a second of a four-second run, so it now has the size of the running rows.
In processor time of one thread a step of the target case is 60 % products (the head is a fifth of them), 11 %
attention, and for the rest operations on eight rows of 576 numbers. Each of those finds its code and data
displaced by the weights that were read before it. ``F.rms_norm`` is no faster than ours there, and oneDNN's
product with an addition gains 10 % of one product in four. Reading the weights once a step is the floor:
about 2 s of the target case, so 3 times transformers' speed needs fewer and larger operations than torch has.
The prompt of a group is computed once here and eight times there. A batch of different prompts is bound by
its prompts, where both sides do the same products.

    python benchmarks/lm_sampling.py [--quick] [--json FILE] [--model NAME] [--threads N] [--repeats N]
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onward.lm  # noqa: F401  (before torch: it makes waiting threads passive)

import torch  # isort: skip

from lm_measure import arguments, compare, model_folder, report
from onward.lm.policy import Policy
from onward.lm.sampler import Sampler, SampleRequest


@dataclass(frozen=True)
class Case:
    """``prompts`` different prompts of ``length`` tokens, ``group`` answers of ``new`` tokens to each."""

    name: str
    prompts: int
    length: int
    group: int
    new: int
    repeats: int | None = None

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.prompts} × {self.length} prompt tokens, group {self.group}, {self.new} new"
        )


TARGET = Case("target", 1, 256, 8, 64)
CASES = (TARGET, Case("long answers", 1, 32, 8, 256, 1), Case("batch", 32, 256, 1, 64, 1))
QUICK = (TARGET, Case("long answers", 1, 32, 8, 256), Case("batch", 32, 256, 1, 64))


def ours(policy: Policy, case: Case, prompts: list[list[int]]) -> None:
    sampler = Sampler(policy, max_batch=32)  # a new one each time, so that no prefix is cached
    for i in range(case.prompts * case.group):
        sampler.submit(SampleRequest(str(i), prompts[i // case.group], case.new, seed=i))
    tokens = 0
    while sampler.busy:
        tokens += sum(len(sample.token_ids) for sample in sampler.step())
    assert tokens == case.prompts * case.group * case.new


def theirs(model: Any, case: Case, prompts: list[list[int]], device: str = "cpu") -> Callable[[], None]:
    from transformers import GenerationConfig

    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        min_new_tokens=case.new,
        max_new_tokens=case.new,
        num_return_sequences=case.group,
        pad_token_id=0,
        eos_token_id=model.config.eos_token_id,
    )
    ids = torch.tensor(prompts, device=device)

    def run() -> None:
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        assert out.shape == (case.prompts * case.group, case.length + case.new)

    return run


def measure(policy: Policy, model: Any, case: Case, repeats: int) -> dict[str, Any]:
    rnd = random.Random(0)
    prompts = [
        [rnd.randrange(3, policy.shape.vocab) for _ in range(case.length)] for _ in range(case.prompts)
    ]
    tokens = case.prompts * case.group * case.new
    runs = (lambda: ours(policy, case, prompts), theirs(model, case, prompts))
    return {"case": str(case)} | compare(*runs, "transformers", tokens, case.repeats or repeats)


def main() -> None:
    given = arguments("Our sampler beside transformers.generate.").parse_args()
    torch.set_num_threads(given.threads)
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as scratch:
        folder, name = model_folder(given, Path(scratch))
        policy = Policy.load(folder)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        measure(policy, model, Case("warm up", 1, 16, 8, 4), 1)
        results = [measure(policy, model, c, given.repeats) for c in (QUICK if given.quick else CASES)]
    report("lm_sampling", name, given, results[0]["ratio"], {"cases": results})


if __name__ == "__main__":
    main()
