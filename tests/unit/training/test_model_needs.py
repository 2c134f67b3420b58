"""Refusals count what a run cannot do without: never less than loading, never what can be dropped."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from docs_blocks import run_command
from model_folders import good_model

from onward import config
from onward.contracts import TrainingRequest
from onward.errors import ConfigError
from onward.lm import devices, kernels
from onward.lm.devices import Dtype
from onward.lm.model_folder import ModelFolder, inspect
from onward.lm.tiny import build_tiny
from onward.lm.weight_files import Stored
from onward.serving import base_models
from onward.serving.engines.vllm_server import dtype_of
from onward.telemetry import logs
from onward.training.job import estimate, model_needs
from onward.training.role import attempt

SEVEN_B = {
    "model_type": "qwen2", "vocab_size": 152_064, "hidden_size": 3584, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18_944,
    "tie_word_embeddings": False,
}  # fmt: skip
PARAMETERS = 7_615_616_512
"""Those of Qwen2.5-7B, as its publisher counts them."""


@pytest.fixture
def seven_b(tmp_path: Path) -> ModelFolder:
    found = inspect(good_model(tmp_path / "own"))
    return replace(found, config=SEVEN_B, tensors={"all": Stored("BF16", (PARAMETERS,))})


def test_an_adapter_needs_at_least_the_memory_that_loading_holds(seven_b: ModelFolder) -> None:
    """By hand: 4 bytes a weight and a tenth more, which is above the weights with adapter and moments."""
    need = model_needs.needs(seven_b)["lora"]
    assert need.least == pytest.approx(estimate.PROCESS_BYTES + 1.1 * 4 * PARAMETERS)
    assert need.least <= need.total


@pytest.mark.parametrize(
    ("gpus", "device", "counts"),
    [(0, "auto", True), (1, "auto", False), (1, "cpu", True), (1, "cuda:0", False)],
)
def test_main_memory_is_checked_exactly_where_torch_would_run_on_the_cpu(
    seven_b: ModelFolder, monkeypatch: pytest.MonkeyPatch, gpus: int, device: str, counts: bool
) -> None:
    """A driver without a torch that can use it, as ``gpus`` finds out, is no GPU."""
    monkeypatch.setattr(devices, "gpus", lambda: gpus)
    monkeypatch.setattr(model_needs, "free_memory", lambda: 1 << 30)
    with pytest.raises(ConfigError, match="are free") if counts else nullcontext():
        model_needs.refuse_too_large(seven_b, "lora", device=device)


@pytest.mark.parametrize(("asked", "device"), [(None, "auto"), (0, "cpu")])
def test_the_memory_of_a_job_is_checked_on_the_device_of_that_job(
    seven_b: ModelFolder, monkeypatch: pytest.MonkeyPatch, asked: int | None, device: str
) -> None:
    """A request of no GPU runs on the CPU of a machine with one."""
    seen = []
    monkeypatch.setattr(devices, "gpus", lambda: 1)
    monkeypatch.setattr(attempt, "refuse_too_large", lambda *_, **told: seen.append(told["device"]))
    context: Any = SimpleNamespace(base_model=seven_b.folder, settings=config.load(environ={}))
    request = TrainingRequest.model_validate(
        {
            "training_job_id": "j", "timestamp": "2026-01-01T00:00:00Z", "requester": "tests",
            "trigger_reason": "manual",
            "training_config": {
                "base_model": "tiny", "algorithm": "reinforce", "hyperparameters": {"learning_rate": 1e-4},
                "dataset": {"source": "clickhouse", "sample_size": 8},
                "compute": {} if asked is None else {"gpu_count": asked},
            },
        }
    )  # fmt: skip
    attempt.check_model(context, request)
    assert seen == [device]


def test_the_demo_checks_memory_on_the_device_that_its_settings_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def require(*_: object, **told: object) -> None:
        seen.append(told["device"])
        raise ConfigError("stop here")

    monkeypatch.setattr(base_models, "require", require)
    monkeypatch.setattr(logs, "setup", lambda *_: None)  # it would change the logs of every later test
    code, _ = run_command(f"onward demo --model smollm2 --dir {tmp_path}")
    assert (code, seen) == (2, ["auto"])


@pytest.mark.parametrize(
    ("purpose", "dtype", "width"),
    [("vllm", "float32", 4), ("vllm", "bfloat16", 2), ("vllm", "auto", 2), ("serving", "float32", 8),
     ("serving", "float16", 2), ("serving", "auto", 2), ("full", "auto", 16), ("full", "bfloat16", 18)],
)  # fmt: skip
def test_a_refusal_counts_the_bytes_of_the_format_that_is_used(
    seven_b: ModelFolder,
    monkeypatch: pytest.MonkeyPatch,
    purpose: model_needs.Purpose,
    dtype: Dtype,
    width: int,
) -> None:
    """By hand, bytes a weight: only the built-in engine has a second layout, here of float32 alone."""
    monkeypatch.setattr(devices, "_multiplies_bfloat16", lambda: False)
    least = estimate.PROCESS_BYTES + width * PARAMETERS
    monkeypatch.setattr(model_needs, "free_memory", lambda: int(least * 1.001))
    model_needs.refuse_too_large(seven_b, purpose, dtype=dtype)
    monkeypatch.setattr(model_needs, "free_memory", lambda: int(least * 0.999))
    with pytest.raises(ConfigError, match="are free"):
        model_needs.refuse_too_large(seven_b, purpose, dtype=dtype)


def test_packing_is_known_without_torch_as_kernels_know_it_with_it() -> None:
    for dtype in ("float32", "bfloat16", "float16"):
        assert devices.packs(dtype) == (getattr(torch, dtype) in kernels._FAST_DTYPES)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        ([], "bfloat16"),
        (["--dtype", "float32"], "float32"),
        (["--dtype=float", "--dtype", "half"], "bfloat16"),
    ],
)
def test_the_format_of_a_vllm_server_is_the_last_that_it_is_told(options: list[str], dtype: str) -> None:
    assert dtype_of(config.VllmSettings(options=options)) == dtype


_CHILD = """
import json, sys, threading
from pathlib import Path
from onward.lm.policy import Policy

def held():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10

before, seen, done = held(), [], threading.Event()
def watch():
    while not done.wait(0.0005):
        seen.append(held())
thread = threading.Thread(target=watch)
thread.start()
policy = Policy.load(Path(sys.argv[1]))
seen.append(held())
done.set()
thread.join()
print(json.dumps([max(seen) - before, 4 * policy.shape.parameters]))
"""


@pytest.mark.slow
def test_loading_holds_what_the_formula_says(tmp_path: Path) -> None:
    """Memory that the kernel cannot drop, measured; a float32 file lends its pages to the embedding."""
    base = build_tiny(
        tmp_path / "base", ["a b c"] * 9, hidden=576, layers=10, heads=9, kv_heads=3, intermediate=1536
    )
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(base)], capture_output=True, text=True, check=True
    )
    peak, weights = json.loads(child.stdout)
    assert 0.8 < peak / weights < 1.25 * estimate.LOADING_HELD
