"""Memory of a network with the shape of Qwen2.5-0.5B: load, sample, one LoRA step, beside the estimate.

The weights are random, in a file of bfloat16 as published models have them, in the form of a Llama. A child
process loads them, samples one group of 8 (prompt 256, 64 new tokens) and takes one step of rank-16 LoRA on
all layers; its peak is the system's count (VmHWM), reset before each stage. ``estimate`` is what
``onward train --dry-run`` says before such a run; ``ratio`` is estimate over peak.

Results (AMD EPYC without matrix units, one thread, float32, load 15 on two cores): peaks of 3.3 GB to load,
4.5 GB to sample and 6.4 GB for the step; the estimate is 6.8 GB, 7 % above (results/lm_memory.json). While
weights load, the file's pages and the stacked copies are there beside them. Sampling keeps a second, packed
copy of the weights.

    python benchmarks/lm_memory.py [--quick] [--json FILE] [--threads N]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import onward.lm  # noqa: F401  (before torch: it makes waiting threads passive)

import torch  # isort: skip

from safetensors.torch import save_file

from machine import machine
from onward.lm.learner import Learner, LearnerConfig
from onward.lm.policy import Policy
from onward.lm.request import SampleRequest
from onward.lm.sampler import Sampler
from onward.lm.sizes import Sizes
from onward.lm.tokens import TokenRow
from onward.training.job import estimate
from onward.training.spec.environment_plan import EnvironmentPlan
from onward.training.spec.request import JobSpec

QWEN = Sizes(151_936, 896, 24, 14, 2, 64, 4864, True)
SMALL = Sizes(4_096, 256, 4, 4, 2, 64, 1024, True)
PROMPT, NEW, GROUP, RANK = 256, 64, 8, 16
LIMIT_GIB = 24.0


def write(folder: Path, sizes: Sizes) -> None:
    """Writes a random network of these sizes."""
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "vocab_size": sizes.vocab, "hidden_size": sizes.hidden, "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads, "head_dim": sizes.head_dim,
        "intermediate_size": sizes.intermediate, "tie_word_embeddings": sizes.tied, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "max_position_embeddings": 4096,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": (sizes.vocab, sizes.hidden), "model.norm.weight": (sizes.hidden,)}
    for i in range(sizes.layers):
        block = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{block}{norm}.weight"] = (sizes.hidden,)
        for name, shape in sizes.projections().items():
            part = "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            shapes[f"{block}{part}.{name}.weight"] = shape
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: (0.02 * torch.randn(shape, generator=generator) + (len(shape) == 1)).bfloat16()
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def peak() -> int:
    """Returns the peak of resident memory in bytes since the last ``reset``."""
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) << 10


def reset() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def child(folder: Path, threads: int) -> None:
    """Loads, samples, learns, and prints the peak of each as JSON."""
    torch.set_num_threads(threads)
    peaks = {"process": peak()}
    policy = Policy.load(folder)
    policy.new_adapter("x", RANK, 32.0)
    peaks["load"] = peak()
    reset()
    prompt = [(7 * n) % policy.shape.vocab for n in range(PROMPT)]
    sampler = Sampler(policy, max_batch=GROUP)
    for number in range(GROUP):
        sampler.submit(SampleRequest(str(number), prompt, NEW, adapter="x", seed=number))
    rows = []
    while sampler.busy:
        for one in sampler.step():
            sampled = [False] * PROMPT + [True] * NEW
            rows.append(TokenRow([*prompt, *one.token_ids], sampled, [0.0] * PROMPT + one.logprobs))
    del sampler
    peaks["sample"] = peak()
    reset()
    learner = Learner(policy, "x", LearnerConfig(epochs=1, minibatch_rows=GROUP))
    list(learner.update(rows, [1.0, -1.0] * (GROUP // 2)))
    peaks["step"] = peak()
    print(json.dumps(peaks))


def expected(sizes: Sizes, folder: Path) -> estimate.Memory:
    """Returns the estimate of such a run, as ``onward train --dry-run`` makes it."""
    plan = EnvironmentPlan(
        place="crafting", steps=1, episodes=GROUP, group_size=GROUP, held_out=0, max_tokens=NEW,
        concurrency=GROUP,
    )  # fmt: skip
    spec = JobSpec(
        job_id="memory", epoch=1, algorithm="rloo", base_model="random", model_folder=str(folder),
        start_digest=None, learning_rate=1e-4, epochs=1, batch_rows=GROUP, lora_rank=RANK, lora_alpha=32.0,
        first_lora_layer=0.0, threads=0, environment=plan, dtype="float32", device="cpu",
    )  # fmt: skip
    computed = PROMPT - 1 + GROUP * (NEW + 1)  # the prompt once, short of its last token
    load = estimate.Load(GROUP, PROMPT + NEW, updates=1, turns=1.0, computed=computed)
    return estimate.memory(spec, sizes, load)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small network, some seconds")
    parser.add_argument("--json", type=Path, help="write the result to this file as well")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child, given.threads)
        return 0
    sizes = SMALL if given.quick else QWEN
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write(folder, sizes)
        command = [sys.executable, __file__, "--child", scratch, "--threads", str(given.threads)]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=3600, env=dict(os.environ))
        if ran.returncode != 0:
            print(ran.stderr[-2000:], file=sys.stderr)
            return 1
        peaks: dict[str, int] = json.loads(ran.stdout.splitlines()[-1])
        memory = expected(sizes, folder)
    most = max(peaks.values())
    parts = {name: round(getattr(memory, name) / 1e9, 3) for name in (*estimate.PARTS, "total")}
    result: dict[str, Any] = {
        "benchmark": "lm_memory",
        "ratio": round(memory.total / most, 3),
        "machine": machine(),
        "parameters": sizes.parameters,
        "peak_gigabytes": {name: round(value / 1e9, 3) for name, value in peaks.items()},
        "estimate_gigabytes": parts,
        "fits_24_gib": most < LIMIT_GIB * (1 << 30),
    }
    print(text := json.dumps(result, indent=2))
    if given.json:
        given.json.write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
