"""Sampling speed: our sampler beside ``transformers.generate``, same weights, prompts and lengths, same run.

The one thing to know: both sides are warmed up, then measured in turn, and the best of each is compared,
so that a busy machine hurts both alike. Prints one JSON object; ``ratio`` is ours over theirs.

    python benchmarks/lm_sampling.py [--quick] [--json FILE] [--model FOLDER] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onward.lm  # noqa: F401  (before torch: it makes waiting threads passive)

import torch  # isort: skip

from onward.lm.policy import Policy
from onward.lm.sampler import Sampler, SampleRequest
from onward.lm.tiny import build_tiny


@dataclass(frozen=True)
class Case:
    """``prompts`` different prompts of ``length`` tokens, ``group`` answers of ``new`` tokens to each."""

    name: str
    prompts: int
    length: int
    group: int
    new: int


CASES = (Case("group", 1, 256, 8, 64), Case("wide", 32, 96, 1, 32), Case("long", 4, 512, 2, 32))
QUICK = (Case("group", 1, 64, 8, 16),)


def ours(policy: Policy, case: Case, prompts: list[list[int]]) -> Callable[[], int]:
    def run() -> int:
        sampler = Sampler(policy, max_batch=32)  # a new one each time: no prefix is known beforehand
        for i in range(case.prompts * case.group):
            sampler.submit(SampleRequest(str(i), prompts[i // case.group], case.new, seed=i))
        tokens = 0
        while sampler.busy:
            tokens += sum(len(sample.token_ids) for sample in sampler.step())
        return tokens

    return run


def theirs(folder: Path, case: Case, prompts: list[list[int]]) -> Callable[[], int]:
    from transformers import AutoModelForCausalLM, GenerationConfig

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
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
    ids = torch.tensor(prompts)

    def run() -> int:
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=settings)
        return int((out.shape[1] - ids.shape[1]) * out.shape[0])

    return run


def rate(run: Callable[[], int]) -> float:
    start = time.perf_counter()
    return run() / (time.perf_counter() - start)


def compare(folder: Path, policy: Policy, case: Case, repeats: int) -> dict[str, float | str]:
    rnd = random.Random(0)
    prompts = [
        [rnd.randrange(3, policy.shape.vocab) for _ in range(case.length)] for _ in range(case.prompts)
    ]
    sides = {"ours": ours(policy, case, prompts), "transformers": theirs(folder, case, prompts)}
    best = dict.fromkeys(sides, 0.0)
    for run in sides.values():
        run()
    for _ in range(repeats):
        for name, run in sides.items():
            best[name] = max(best[name], rate(run))
    return {
        "case": f"{case.name}: {case.prompts} prompts of {case.length} tokens, "
        f"group {case.group}, {case.new} new",
        "ours_tokens_per_second": round(best["ours"], 1),
        "transformers_tokens_per_second": round(best["transformers"], 1),
        "ratio": round(best["ours"] / best["transformers"], 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="one small case on a tiny network")
    parser.add_argument("--json", type=Path, help="write the result to this file as well")
    parser.add_argument("--model", type=Path, help="folder in transformers format; default SmolLM2 if pulled")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    pulled = Path.home() / ".cache" / "onward" / "models" / "smollm2"
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.model
        if folder is None:
            use_tiny = given.quick or not pulled.is_dir()
            folder = build_tiny(Path(scratch), ["a few words"] * 4) if use_tiny else pulled
        policy = Policy.load(folder)
        results = [compare(folder, policy, case, given.repeats) for case in (QUICK if given.quick else CASES)]
        parameters = sum(t.numel() for t in policy.weights.tensors())
    result = {
        "benchmark": "lm_sampling",
        "torch": torch.__version__,
        "threads": given.threads,
        "parameters": parameters,
        "ratio": results[0]["ratio"],
        "cases": results,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if given.json:
        given.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
