"""Memory that a base model needs here: to be served, to train an adapter, to train all of its weights.

The figures are those of ``estimate`` for a usual run. Refusals count only what a run cannot do without, so
that no model is refused because an estimate was cautious. No torch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from onward.errors import ConfigError
from onward.lm import devices
from onward.lm.devices import Dtype
from onward.lm.model_folder import ModelFolder
from onward.lm.model_path import AskedPath
from onward.memory import free_memory
from onward.training.job import estimate
from onward.training.spec.recipes import Recipe
from onward.training.spec.request import JobSpec

Purpose = Literal["serving", "vllm", "lora", "full"]
CONVERSATIONS = 8
"""Conversations at once in the estimate of serving, each as long as the context."""
USUAL = estimate.Load(rows=16, row_tokens=1024)
"""Load of the estimates of training: one step of a usual run."""
_WORDS: dict[Purpose, str] = {
    "serving": "to be served",
    "vllm": "to be served by vLLM",
    "lora": "to train an adapter",
    "full": "to train all of its weights",
}


@dataclass(frozen=True)
class Need:
    """Bytes of memory. ``least`` leaves out activations and caches, which depend on the work."""

    total: float
    least: float


def needs(
    model: ModelFolder, *, dtype: Dtype = "float32", path: AskedPath = "auto", max_context: int = 2048
) -> dict[Purpose, Need]:
    """Returns the memory for each purpose in a number format, on CPUs; ``auto`` counts as float32."""
    chosen: Dtype = "float32" if dtype == "auto" else dtype
    return {
        "serving": _serving(model, chosen, max_context, path),
        "lora": _training(model, chosen, full=False, path=path),
        "full": _training(model, chosen, full=True, path=path),
    }


def _least(model: ModelFolder, purpose: Purpose, dtype: Dtype) -> float:
    """Returns the bytes that ``purpose`` cannot do without; for ``auto`` those of the format with fewer."""
    if dtype == "auto":
        return min(_least(model, purpose, "float32"), _least(model, purpose, "bfloat16"))
    if purpose == "vllm":  # it has one layout, and a process that is no smaller than ours
        return estimate.PROCESS_BYTES + float(estimate.WIDTH[dtype]) * model.parameters
    if purpose == "serving":
        return _serving(model, dtype).least
    return _training(model, dtype, full=purpose == "full").least


def refuse_too_large(
    model: ModelFolder, purpose: Purpose, *, device: str = "cpu", dtype: Dtype = "float32"
) -> None:
    """Raises ConfigError if the model cannot have the memory that it needs at least, as things are now.

    Memory of a GPU is not checked here: this process has no torch.
    """
    if not is_cpu(device):
        return
    need, free = _least(model, purpose, dtype), free_memory()
    if need > free:
        raise ConfigError(
            f"The model in {model.folder} needs {gigabytes(need)} of memory at least {_WORDS[purpose]}, and "
            f"{gigabytes(free)} are free: take a smaller model, or end other programs."
        )


def is_cpu(device: str) -> bool:
    """Returns whether ``model.device`` means main memory; ``auto`` does on a machine without a GPU."""
    return not devices.is_gpu(device)


def gigabytes(count: float) -> str:
    """Returns a number of bytes to read: 1.5 GB."""
    return f"{count / 1e9:,.1f} GB"


def _serving(model: ModelFolder, dtype: Dtype, max_context: int = 2048, path: AskedPath = "auto") -> Need:
    width, sizes = estimate.WIDTH[dtype], model.sizes(path)
    packed = 2 if sizes.is_fast and devices.packs(dtype) else 1
    least = estimate.PROCESS_BYTES + float(width) * model.parameters * packed
    per_token = sizes.cached_values * width
    cache = CONVERSATIONS * max_context * per_token
    if sizes.is_fast:
        cache += estimate.prefix_bytes(CONVERSATIONS, per_token)
    return Need(least + cache, least)


def _training(model: ModelFolder, dtype: Dtype, *, full: bool, path: AskedPath = "auto") -> Need:
    sizes = model.sizes(path)
    weights = float(estimate.WIDTH[dtype]) * model.parameters
    state = 4.0 * model.parameters * (3 if dtype == "float32" else 4)  # and a copy of narrower weights
    recipe = Recipe()
    spec = JobSpec(
        job_id="check", epoch=1, algorithm="sft", base_model=model.folder.name,
        model_folder=str(model.folder), start_digest=None, full=full, threads=recipe.threads,
        learning_rate=recipe.learning_rate, epochs=recipe.epochs, batch_rows=recipe.batch_size,
        lora_rank=recipe.lora_rank, lora_alpha=recipe.lora_alpha, first_lora_layer=recipe.first_lora_layer,
        device="cpu", dtype=dtype,
    )  # fmt: skip
    memory = replace(estimate.memory(spec, sizes, USUAL), weights=weights)
    if full:
        memory = replace(memory, optimiser=state)
    loading = estimate.LOADING_HELD * weights
    running = memory.weights + memory.adapter + memory.optimiser
    return Need(memory.total, memory.process + max(running, loading))
