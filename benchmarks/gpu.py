"""Figures of a GPU, in one run of at most eight minutes; ``--quick`` tries the program on a CPU.

Families in bfloat16 beside transformers, sampling beside transformers and vLLM, a training step beside TRL,
memory beside the estimate, and a run of SmolLM2 on crafting until it is better. A peer that is not installed
and a family that is not read are named and skipped, and so is a part for which no time is left. One part that
fails does not end the others: its error is in the result.

No figures yet: nobody has lent a GPU. With ``--quick`` (networks of a few thousand numbers, on a CPU) the
figures mean nothing; it shows that the program works. All parts ran in 273 s (processor time: 112 s) at a
load of 6 to 9 on two cores (results/gpu_quick_cpu.json).

    python benchmarks/gpu.py [--quick] [--json FILE] [--model NAME] [--device NAME] [--minutes N]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import onward.lm  # noqa: F401  (before torch: it makes waiting threads passive)

import torch  # isort: skip

from lm_measure import compare, model_folder
from lm_sampling import Case as SamplingCase
from lm_sampling import ours as sample_ours
from lm_sampling import theirs as sample_theirs
from lm_training import Case as TrainingCase
from lm_training import batch, our_step, their_step
from machine import machine
from onward.errors import ConfigError
from onward.lm.learner import Learner, LearnerConfig
from onward.lm.policy import Policy
from onward.lm.precision import Placement, place
from onward.lm.sizes import Sizes
from onward.lm.tokens import TokenRow
from onward.training.job import estimate
from onward.training.spec.request import JobSpec

FAMILIES = (
    "Llama", "Qwen2", "Qwen3", "Mistral", "Gemma2", "Gemma3Text", "Phi3", "SmolLM3", "Olmo2",
)  # fmt: skip
"""Prefixes of transformers' classes of configurations."""
TINY_NETWORK: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128, "max_position_embeddings": 512,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def synchronise(placed: Placement) -> None:
    if placed.device != "cpu":
        torch.cuda.synchronize()


def timed(placed: Placement, run: Callable[[], Any]) -> Callable[[], None]:
    """Returns ``run`` that ends when the GPU has finished."""

    def work() -> None:
        run()
        synchronise(placed)

    return work


# Families.


def families(placed: Placement, scratch: Path) -> dict[str, Any]:
    return {name: family(name, placed, scratch / name) for name in FAMILIES}


def family(name: str, placed: Placement, folder: Path) -> Any:
    """Compares log-probs of a random network, ours and transformers' in bfloat16 on the device, with those of
    transformers in float32: our mean difference should be no larger than theirs."""
    import transformers

    made = getattr(transformers, f"{name}Config", None)
    if made is None:
        return f"skipped: transformers {transformers.__version__} has no {name}Config"
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(made(**TINY_NETWORK), dtype=torch.float32).eval()
    model.save_pretrained(folder)
    try:
        policy = Policy.load(folder, device=placed.device, dtype="bfloat16")
    except ConfigError as refused:
        return f"skipped: {refused}"
    rnd = random.Random(0)
    rows = [[rnd.randrange(3, 320) for _ in range(length)] for length in (5, 40, 90)]
    prepared = [TokenRow(ids, [False] + [True] * (len(ids) - 1), [0.0] * len(ids)) for ids in rows]
    own = torch.cat([values[1:] for values in policy.logprobs(prepared)])
    exact = _logprobs(model.to(placed.device), rows)
    theirs = _logprobs(model.to(torch.bfloat16), rows)
    return {
        "mean_difference": _rounded((own - exact).abs().mean()),
        "transformers_mean_difference": _rounded((theirs - exact).abs().mean()),
        "largest_difference": _rounded((own - exact).abs().max()),
    }


@torch.no_grad()
def _logprobs(model: Any, rows: list[list[int]]) -> torch.Tensor:
    """Returns log-probs of all tokens but the first of each row, float32 on the CPU."""
    found = []
    for ids in rows:
        given = torch.tensor([ids], device=model.device)
        logits = model(given).logits[0, :-1].float().log_softmax(-1)
        found.append(logits.gather(1, given[0, 1:, None])[:, 0].cpu())
    return torch.cat(found)


def _rounded(value: torch.Tensor) -> float:
    return float(f"{float(value):.2e}")


# Speed.


def sampling(policy: Policy, placed: Placement, quick: bool) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    dtype = getattr(torch, placed.dtype)
    model: Any = AutoModelForCausalLM.from_pretrained(policy.folder, dtype=dtype).to(placed.device).eval()
    found: dict[str, Any] = {}
    cases = [SamplingCase("group", 1, 256, 8, 64), SamplingCase("batch", 8 if quick else 64, 256, 1, 64)]
    for case in cases:
        rnd = random.Random(0)
        prompts = [
            [rnd.randrange(3, policy.shape.vocab) for _ in range(case.length)] for _ in range(case.prompts)
        ]
        ours = timed(placed, partial(sample_ours, policy, case, prompts))
        theirs = timed(placed, sample_theirs(model, case, prompts, placed.device))
        theirs(), ours()  # warm up
        tokens = case.prompts * case.group * case.new
        found[case.name] = compare(ours, theirs, "transformers", tokens, 1 if quick else 3)
        found[case.name]["vllm"] = vllm(policy, case, prompts, placed)
    return found


def vllm(policy: Policy, case: SamplingCase, prompts: list[list[int]], placed: Placement) -> Any:
    if importlib.util.find_spec("vllm") is None:
        return "skipped: vllm is not installed"
    from vllm import LLM, SamplingParams

    engine = LLM(str(policy.folder), dtype=placed.dtype, gpu_memory_utilization=0.3, enforce_eager=False)
    settings = SamplingParams(n=case.group, max_tokens=case.new, min_tokens=case.new, logprobs=0)
    given = [{"prompt_token_ids": ids} for ids in prompts]
    engine.generate(given, settings, use_tqdm=False)
    started = time.perf_counter()
    engine.generate(given, settings, use_tqdm=False)
    seconds = time.perf_counter() - started
    return {
        "seconds": round(seconds, 3),
        "tokens_per_second": round(case.prompts * case.group * case.new / seconds),
    }


def training(policy: Policy, placed: Placement, quick: bool, scratch: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case in (TrainingCase("shared prompt", 256, 64), TrainingCase("all different", 256, 64, prompts=8)):
        rows = batch(policy, case)
        mine = timed(placed, our_step(policy, case, rows))
        mine()  # warm up
        if importlib.util.find_spec("trl") is None:
            started = time.perf_counter()
            mine()
            found[case.name] = {
                "seconds": time.perf_counter() - started,
                "trl": "skipped: it is not installed",
            }
            continue
        on_gpu = placed.device != "cpu"
        settings = {"use_cpu": not on_gpu, "bf16": on_gpu and placed.dtype == "bfloat16"}
        theirs = timed(placed, their_step(policy.folder, case, rows, scratch / "trl", **settings))
        theirs()
        found[case.name] = compare(mine, theirs, "trl", 8 * 320, 1 if quick else 3)
    return found


# Memory.


def memory(policy: Policy, placed: Placement) -> dict[str, Any]:
    """Compares the peak of a step on rows that share nothing with the estimate; on a CPU there is only one
    peak of the process, which other parts may have set."""
    if placed.device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    case = TrainingCase("all different", 256, 64, prompts=8)
    rows = batch(policy, case)
    if "memory" not in policy.adapters:
        policy.new_adapter("memory", 16, 32.0)
    learner = Learner(policy, "memory", LearnerConfig(epochs=1, minibatch_rows=8))
    list(learner.update(rows, [1.0, -1.0] * 4))
    spec = JobSpec(
        job_id="memory", epoch=1, algorithm="rloo", base_model="x", model_folder=str(policy.folder),
        start_digest=None, learning_rate=1e-4, epochs=1, batch_rows=8, lora_rank=16, lora_alpha=32.0,
        first_lora_layer=0.0, threads=0, device=placed.device, dtype=placed.dtype,
    )  # fmt: skip
    expected = estimate.memory(spec, Sizes.read(policy.folder), estimate.Load(8, 320.0))
    found: dict[str, Any] = {"estimate_gigabytes": round(expected.total / 1e9, 3)}
    if placed.device != "cpu":
        found["peak_gigabytes"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
    return found


# Learning. Options of ``onward train``, for imitation and then for play.

IMITATION = "--steps 16 --demonstrations 160"
QUICK_IMITATION = "--full --steps 60 --demonstrations 100 --batch-rows 16"
PLAY = "--steps 20 --group-size 8 --held-out 50 --episodes 64 --horizon 10"
QUICK_PLAY = "--steps 2 --group-size 8 --held-out 8 --episodes 32 --horizon 8"


def learning(model: str, placed: Placement, quick: bool, seconds: float, scratch: Path) -> dict[str, Any]:
    """Warms the model up on demonstrations, lets it play: held-out success before and after.

    With ``quick`` the place is the maze, where the random network of ``tiny`` succeeds now and then after few
    steps; attempts that all fail would hold nothing to learn from.
    """
    warm, better = scratch / "warm", scratch / "better"
    place = "maze" if quick else "crafting"
    until = time.monotonic() + seconds
    common = ["--device", placed.device, "--dtype", placed.dtype, "--env", place, "--json"]
    imitate = (QUICK_IMITATION if quick else IMITATION).split()
    play = (QUICK_PLAY if quick else PLAY).split()
    start = ["--model", str(warm / "model")] if quick else ["--model", model, "--start", str(warm)]
    _train(["--algorithm", "sft", "--model", model, *imitate, *common, "--out", str(warm)], until)
    done = _train(["--algorithm", "rloo", *start, *play, *common, "--out", str(better)], until)
    metrics = done["metrics"]
    figures = {"place": place} | {name: metrics.get(name) for name in ("held_out", "steps")}
    return figures | {name: done[name] for name in ("seconds", "peak_memory_gb", "expected_memory_gb")}


def _train(options: list[str], until: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "onward.cli", "train", *options]
    left = max(10.0, until - time.monotonic())
    ran = subprocess.run(command, capture_output=True, text=True, timeout=left, env=dict(os.environ))
    if ran.returncode != 0:
        raise RuntimeError(f"onward train ended with code {ran.returncode}: {ran.stderr[-500:].strip()}")
    return json.loads(ran.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="tiny networks on a CPU, about two minutes")
    parser.add_argument("--json", type=Path, help="write the result to this file as well")
    parser.add_argument("--model", help="as in lm_sampling.py; smollm2 by default")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, default=8.0, help="no part starts after this time")
    given = parser.parse_args()
    try:
        placed = place("cpu", "float32") if given.quick else place(given.device)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 2
    if placed.device == "cpu" and not given.quick:
        print("There is no GPU here: add --quick, which tries the program on a CPU.", file=sys.stderr)
        return 2
    started, result = (
        time.monotonic(),
        dict[str, Any](benchmark="gpu", machine=machine(), placed=asdict(placed)),
    )
    result["device"] = "cpu" if placed.device == "cpu" else torch.cuda.get_device_name(placed.device)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder, result["model"] = model_folder(given, scratch / "model")
        policy = Policy.load(folder, device=placed.device, dtype=placed.dtype)
        trained = given.model or ("tiny" if given.quick else "smollm2")
        left = given.minutes * 60
        parts: dict[str, Callable[[], Any]] = {
            "families": lambda: families(placed, scratch / "families"),
            "sampling": lambda: sampling(policy, placed, given.quick),
            "training": lambda: training(policy, placed, given.quick, scratch),
            "memory": lambda: memory(policy, placed),
            "learning": lambda: learning(
                trained, placed, given.quick, left - (time.monotonic() - started), scratch
            ),
        }
        for part, run in parts.items():
            if time.monotonic() - started > left:
                result[part] = "skipped: no time was left"
                continue
            try:
                result[part] = run()
            except Exception as error:
                traceback.print_exc()
                result[part] = f"failed: {type(error).__name__}: {str(error)[:300]}"
    result["seconds"] = round(time.monotonic() - started, 1)
    print(text := json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(text + "\n")
    return int(any(str(result[part]).startswith("failed") for part in parts))


if __name__ == "__main__":
    sys.exit(main())
