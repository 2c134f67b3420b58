"""Needs of a run, before it runs: memory by formula, time by formula and a short measurement. No torch.

The formulas are those of docs/train-command.md; a test compares memory with a measured run, within a factor
of two, and benchmarks/lm_memory.py with a network of 0.5 billion parameters. Sizes come from ``config.json``
alone, so that a dry run loads no weights.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onward.lm import devices
from onward.lm.sizes import NetworkSizes, Sizes
from onward.training.data import conversations
from onward.training.job.shares import Prompts
from onward.training.spec.request import JobSpec

PROCESS_BYTES = 420 << 20
"""Memory of the interpreter with torch and transformers loaded."""
_PREFIX_TOKENS = 2048
"""Tokens per running episode in the sampler's prefix store, where each turn continues the one before."""
_PREFIX_BYTES = (64 << 20, 2 << 30)
HEAD_TOKENS = 64
"""Tokens whose logits exist at once."""
WIDTH = {"float32": 4, "bfloat16": 2, "float16": 2}
_LOADING = 1.75
"""Resident bytes at the peak of a load per byte of the weights, pages of the files included."""
LOADING_HELD = 1.1
"""The same without those pages, which the kernel drops when memory is short."""
_EFFICIENCY = 0.6
"""Share of the measured matrix rate that a pass over small matrices reaches."""
_PASS_SECONDS = 0.0006
"""Cost of one layer besides arithmetic, in each pass."""
_SAMPLED_SHARE = 0.5
"""Share of ``max_tokens`` that an answer uses."""
_OBSERVATION_TOKENS = 32
_HELD_OUT_TURNS = 30.0
"""Turn limit assumed for held-out tasks, which run with the environment's own limit, not known here."""


@dataclass(frozen=True)
class Load:
    """Work for the network: rows of one update, and their tokens."""

    rows: int
    row_tokens: float
    updates: int = 1
    turns: float = 0.0
    """Answers per row; 0 if nothing is sampled."""
    computed: float | None = None
    """Tokens of all rows together if a prompt that several rows share counts once; None: nothing is known to
    be shared."""

    @property
    def tokens(self) -> float:
        """Tokens of an update that are computed."""
        return self.rows * self.row_tokens if self.computed is None else self.computed


@dataclass(frozen=True)
class Memory:
    """Bytes by part; ``total`` is the peak that the parts can reach together. On a GPU it is the GPU's, and
    ``process`` is 0."""

    process: float
    weights: float
    adapter: float
    optimiser: float
    activations: float
    cache: float
    loading: float
    """Weights as they are read, beside those that are rearranged; gone when the run begins."""

    @property
    def total(self) -> float:
        running = self.weights + self.adapter + self.optimiser + max(self.activations, self.cache)
        return self.process + max(running, self.loading)


PARTS = ("process", "weights", "adapter", "optimiser", "activations", "cache", "loading")

TINY = Sizes(1024, 128, 4, 4, 2, 32, 384, True)
"""The network that ``lm.tiny`` makes, with the largest vocabulary that it may get."""


def tokens_of(lines: Sequence[Mapping[str, Any]]) -> tuple[int, float]:
    """Returns (rows, mean tokens of a row) of a dataset; text counts as one token per four characters."""
    lengths = [
        sum(len(call["prompt_ids"]) + len(call["token_ids"]) for call in line["calls"])
        if "calls" in line
        else sum(len(message["content"]) // 4 + 5 for message in conversations.texts_of(line))
        for line in lines
    ]
    return len(lengths), sum(lengths) / max(1, len(lengths))


def load_of(
    spec: JobSpec,
    rows: int = 0,
    row_tokens: float = 0.0,
    *,
    computed: float | None = None,
    prompts: Prompts | None = None,
) -> Load:
    """Returns the load of a run: from the data if there is any, of which ``computed`` tokens are computed,
    else a guess from the plan, with the environment's own ``prompts`` if they are known."""
    plan = spec.environment
    if plan is None or spec.algorithm == "sft":
        return Load(rows, row_tokens, computed=computed)
    schedule = plan.schedule
    turns = float(schedule.turns[-1]) if schedule else 10.0
    rest = turns * (_SAMPLED_SHARE * plan.max_tokens + _OBSERVATION_TOKENS)
    return Load(
        rows=plan.episodes,
        row_tokens=rest + (_OBSERVATION_TOKENS if prompts is None else prompts.tokens),
        updates=plan.steps,
        turns=turns,
        computed=None if prompts is None else prompts.computed + plan.episodes * rest,
    )


def memory(spec: JobSpec, network: NetworkSizes, load: Load) -> Memory:
    """Returns the bytes that a run needs, by formula."""
    on_gpu = devices.is_gpu(spec.device)
    dtype = ("bfloat16" if on_gpu else "float32") if spec.dtype == "auto" else spec.dtype
    width = WIDTH[dtype]
    first = 0 if spec.full else int(spec.first_lora_layer * network.layers)
    trained_layers = network.layers - first
    adapter = 0 if spec.full else adapter_parameters(spec, network)
    trained = network.parameters if spec.full else adapter
    copies = 3 + (1 if spec.full and width < 4 else 0)  # gradient, two moments, a float32 copy
    tokens = max(min(spec.micro_batch_tokens, load.tokens), load.row_tokens)
    per_layer = network.kept_values(spec.lora_rank if not spec.full else 0)
    kept = trained_layers * per_layer
    if spec.gradient_checkpointing:
        kept = trained_layers * network.hidden + per_layer
    head = min(HEAD_TOKENS, tokens) * network.vocab * 4 * 3
    trunk = min(1 << 30, load.tokens * network.hidden * width) if first else 0
    weights = network.parameters * width
    packed = weights if network.is_fast and spec.plays and not on_gpu and devices.packs(dtype) else 0
    cache = 0.0
    if load.turns:
        plan = spec.environment
        slots = min(load.rows, plan.concurrency if plan else load.rows)
        longest = load.row_tokens
        if plan is not None and plan.held_out_count:
            longest *= max(1.0, _HELD_OUT_TURNS / load.turns)
        per_token = network.cached_values * width
        # doubled, because growing a cache copies it
        cache = 2 * slots * longest * per_token
        if network.is_fast:
            cache += prefix_bytes(slots, per_token)
    return Memory(
        process=0 if on_gpu else PROCESS_BYTES,
        weights=weights + packed,
        adapter=adapter * 4,
        optimiser=trained * 4 * copies,
        activations=tokens * kept * width + head + trunk,
        cache=cache,
        loading=_LOADING * weights,
    )


def prefix_bytes(episodes: int, per_token: float) -> int:
    """Returns the bytes for the known prefixes of running episodes; ``per_token``: bytes per token."""
    least, most = _PREFIX_BYTES
    return int(min(max(episodes * _PREFIX_TOKENS * per_token, least), most))


def adapter_parameters(spec: JobSpec, network: NetworkSizes) -> int:
    """Counts the adapter's parameters: rank × (inputs + outputs) of each target in each adapted layer."""
    layers = range(int(spec.first_lora_layer * network.layers), network.layers)
    return network.lora_parameters(spec.lora_rank, layers, spec.lora_targets)


def seconds(spec: JobSpec, network: NetworkSizes, load: Load, rate: float) -> float:
    """Returns the expected time, for a machine that multiplies matrices at ``rate`` operations a second.

    Learning: 2 operations per weight and token forward, as many backward for activations in layers with a
    graph, as many again if all weights are trained. Sampling: 2 per weight and token, and a pass per token of
    the longest answer.
    """
    weights = network.layers * network.block  # the head is applied to sampled tokens only
    graph = 1.0 if spec.full else 1.0 - spec.first_lora_layer
    factor = 2 * weights * (1 + graph * (2 if spec.full else 1))
    tokens = load.tokens * spec.epochs * load.updates
    if spec.max_steps is not None and load.rows:
        tokens = min(tokens, spec.max_steps * spec.batch_rows * load.tokens / load.rows)
    passes = max(1.0, tokens / spec.micro_batch_tokens)
    learning = tokens * factor / (rate * _EFFICIENCY) + passes * 3 * network.layers * _PASS_SECONDS
    plan = spec.environment
    if not load.turns or plan is None:
        return learning
    decode_passes = load.updates * load.turns * plan.max_tokens * max(1.0, load.rows / plan.concurrency)
    arithmetic = load.updates * load.rows * load.row_tokens * 2 * weights / (rate * _EFFICIENCY)
    held_out = 1 + 2 * plan.held_out_count / max(1, load.updates * load.rows)
    return learning + held_out * (arithmetic + decode_passes * network.layers * _PASS_SECONDS)


def matrix_rate(tries: int = 40) -> float:
    """Measures float32 matrix operations a second on this machine: the best of some tries of 5 ms."""
    import numpy as np  # imported late: a help text does not need it

    a = np.ones((384, 384), dtype=np.float32)
    b = a @ a  # not timed: threads start here
    best = float("inf")
    for _ in range(tries):
        started = time.perf_counter()
        for _ in range(4):
            b = a @ b * np.float32(1 / 384)
        best = min(best, (time.perf_counter() - started) / 4)
    return 2 * 384**3 / best
