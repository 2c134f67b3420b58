"""A tiny base model and an adapter of it that is far from it, for tests of engines."""

from __future__ import annotations

from pathlib import Path

import torch

from onward.lm import probe
from onward.lm.policy import Policy
from onward.lm.request import SampleRequest
from onward.lm.tiny import build_tiny
from onward.training import checkpoints

CORPUS = ["Add 2 and 3.", "What is the capital?"]
PROMPT = [40, 41, 42, 43, 44]


def adapted(parent: Path) -> tuple[Path, Policy, Path, str]:
    """Makes a base model, its policy with an adapter, the adapter's checkpoint with a probe, its digest."""
    folder = build_tiny(parent / "model", CORPUS, vocab=300, hidden=32, layers=2)
    policy = Policy.load(folder)
    generator = torch.Generator().manual_seed(1)
    for key, tensor in policy.new_adapter("job", rank=4, alpha=8).params.items():
        if ".lora_B." in key:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.3)
    out = folder.parent / "checkpoint"
    policy.save_adapter("job", out)
    probe.make(policy, "job").write(out)
    manifest = checkpoints.write_manifest(out, job_id="job", epoch=1, base_digest=policy.base_digest)
    return folder, policy, out, manifest.adapter_digest


def ask(**change) -> SampleRequest:
    return SampleRequest(
        **{"request_id": "r", "prompt_ids": PROMPT, "max_new_tokens": 6, "seed": 3, "stop_ids": [2], **change}
    )
