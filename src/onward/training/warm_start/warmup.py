"""The warm start (cycle 0): ``python -m onward.training.warm_start.warmup --model NAME --out DIR --seed N``.

It is supervised fine-tuning on at most 200 demonstrations of training templates. It stops as soon as success
sampled at temperature 1 is inside the recipe's window. The result is v0: for ``tiny`` all weights are trained
(``base/``) and the adapter is zero; for any other model the weights are unchanged and the adapter is trained.
After v0 there is reinforcement learning alone.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onward.envs import desk
from onward.errors import ConfigError, OnwardError, TrainingError
from onward.processes import die_with_parent
from onward.training import checkpoints
from onward.training.data import conversations
from onward.training.spec.recipes import Recipe, WarmUp, for_model

if TYPE_CHECKING:
    from onward.lm.chat import Chat
    from onward.lm.model import LanguageModel
    from onward.lm.tokens import TokenRow

TINY = "tiny"
ADAPTER = "v0"
ATTEMPTS_PER_GROUP = 8
_CHECK_SEED = 2_000_003  # seeds of check tasks: neither demonstrations nor the agents' tasks
_FAR = 0.15  # this far beyond the window, more steps cannot help

Emit = Callable[..., None]


@dataclass(frozen=True)
class WarmUpResult:
    """v0: its folders and its success at temperature 1. ``mixed_share`` is over groups of eight."""

    base_folder: Path
    adapter_folder: Path
    adapter_digest: str
    steps: int
    success: float
    by_kind: dict[str, float]
    mixed_share: float
    seconds: float
    raw_success: float | None
    """Success of the untrained base on the test tasks; None if the base is unchanged and still there."""


def warm_up(
    model: str,
    out: Path,
    *,
    base: Path | None = None,
    seed: int = 0,
    threads: int | None = None,
    recipe: Recipe | None = None,
    family: Literal["llama", "qwen2"] = "llama",
    emit: Emit = lambda event, **facts: None,
) -> WarmUpResult:
    """Makes v0 of ``model`` in ``out/adapter``. The same seed and thread count give the same result.
    ``family`` is that of the network that ``tiny`` is.

    ``base`` is the folder of the base model; for ``tiny`` it is where the base is written (default
    ``out/base``). ``emit(event, **facts)`` receives stage, progress and check events. Raises ConfigError
    without a base, TrainingError (CONVERGENCE) when success never comes near a window that is required.
    """
    import torch

    from onward.lm import paths

    recipe = recipe or for_model(model)
    torch.set_num_threads(threads or os.cpu_count() or 1)
    started = time.monotonic()
    raw_success = None
    emit("stage", name="base")
    if model == TINY:
        from onward.training.warm_start import desk_base

        folder = base or out / "base"
        policy = paths.load(desk_base.build(folder, seed, family))
        raw_success = _raw(policy, recipe, seed)
        trained = None
    else:
        if base is None:
            raise ConfigError(f"The warm start of {model!r} needs the folder of its base model: give --base.")
        folder = base
        policy = paths.load(base)
        _new_adapter(policy, recipe, seed)
        trained = ADAPTER
    steps, figures = _fit(policy, trained, recipe, seed, emit)
    if model == TINY:
        policy.save(folder)
        policy = paths.load(folder)
        _new_adapter(policy, recipe, seed)
    emit("stage", name="save")
    digest = _save(policy, out / "adapter", model, seed, {"steps": steps, **figures})
    return WarmUpResult(
        base_folder=folder,
        adapter_folder=out / "adapter",
        adapter_digest=digest,
        steps=steps,
        seconds=time.monotonic() - started,
        raw_success=raw_success,
        **figures,
    )


def _new_adapter(policy: LanguageModel, recipe: Recipe, seed: int) -> None:
    layers = policy.shape.layers
    chosen = range(int(recipe.first_lora_layer * layers), layers)
    policy.new_adapter(ADAPTER, recipe.lora_rank, recipe.lora_alpha, chosen, seed)


def _fit(
    policy: LanguageModel, adapter: str | None, recipe: Recipe, seed: int, emit: Emit
) -> tuple[int, dict[str, Any]]:
    """Trains until a check falls inside the window; returns the best weights' step and their check."""
    from onward.lm import sft
    from onward.lm.chat import Chat

    plan = recipe.warm_up
    emit("stage", name="demonstrations")
    rows = list(_demonstration_rows(Chat(policy.tokenizer), plan, seed))
    emit("stage", name="train", rows=len(rows))
    parameters = list(policy.tensors() if adapter is None else policy.adapter(adapter).params.values())
    best = _Kept(distance=float("inf"))
    for done in sft.fit(
        policy,
        adapter,
        rows,
        learning_rate=plan.learning_rate,
        batch_rows=plan.batch_rows,
        warmup_steps=plan.warmup_steps,
        seed=seed,
    ):
        emit("progress", step=done.step, total_steps=plan.max_steps, loss=done.loss)
        if done.step >= plan.first_check and (done.step - plan.first_check) % plan.check_every == 0:
            figures = _check(policy, adapter, recipe, seed)
            emit("check", step=done.step, **figures)
            above, below = figures["success"] - plan.window[1], plan.window[0] - figures["success"]
            distance = max(above, below, 0.0)
            if distance <= best.distance:
                values = [p.detach().clone() for p in parameters]
                best = _Kept(distance, done.step, figures, values)
            if distance == 0 or above > _FAR:
                break
        if done.step >= plan.max_steps:
            break
    if best.distance > _FAR and plan.required:
        raise TrainingError(
            "CONVERGENCE",
            f"The warm start did not reach {plan.window[0]:.0%} to {plan.window[1]:.0%} sampled success in "
            f"{plan.max_steps} steps: try another seed, or raise max_steps in the recipe.",
        )
    _restore(parameters, best.values)
    return best.step, best.figures


@dataclass
class _Kept:
    """The weights nearest to the window so far."""

    distance: float
    step: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    values: list[Any] = field(default_factory=list)


def _restore(parameters: list[Any], kept: list[Any]) -> None:
    import torch

    with torch.no_grad():
        for parameter, value in zip(parameters, kept, strict=True):
            parameter.requires_grad_(False)
            parameter.copy_(value)


def _demonstration_rows(chat: Chat, plan: WarmUp, seed: int) -> Iterator[TokenRow]:
    """Yields the same demonstrations in every pass: their number is the number of distinct conversations."""
    rows = [
        conversations.token_row(chat, talk, known=True)
        for talk in desk.demonstrations(plan.demonstrations, seed, plan.careless)
    ]
    for _ in range(-(-plan.max_steps * plan.batch_rows // plan.demonstrations)):
        yield from rows


def _check(policy: LanguageModel, adapter: str | None, recipe: Recipe, seed: int) -> dict[str, Any]:
    """Runs groups of eight attempts at temperature 1, at training tasks that are used for nothing else."""
    from onward.training.warm_start import desk_attempts

    panel = desk.tasks("train", recipe.warm_up.groups, _CHECK_SEED + seed)
    groups = [task for task in panel for _ in range(ATTEMPTS_PER_GROUP)]
    found = desk_attempts.attempt(policy, adapter, groups, max_tokens=recipe.max_tokens, seed=seed)
    return {
        "success": desk_attempts.success(found),
        "by_kind": desk_attempts.by_kind(found),
        "mixed_share": desk_attempts.mixed_share(found),
    }


def _raw(policy: LanguageModel, recipe: Recipe, seed: int) -> float:
    from onward.training.warm_start import desk_attempts

    panel = desk.tasks("test", 100)
    found = desk_attempts.attempt(policy, None, panel, max_tokens=recipe.max_tokens, seed=seed)
    return desk_attempts.success(found)


def _save(policy: LanguageModel, folder: Path, model: str, seed: int, metrics: dict[str, Any]) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    policy.save_adapter(ADAPTER, folder)
    name = re.sub(r"[^A-Za-z0-9_-]", "-", Path(model).name)[:64]
    manifest = checkpoints.write_manifest(
        folder, job_id=f"warm-up-{name}-{seed}", epoch=0, base_digest=policy.base_digest, metrics=metrics
    )
    return manifest.adapter_digest


def main(argv: list[str] | None = None) -> int:
    """Command line of the child; prints JSON lines with ``--json``, plain sentences without."""
    parser = argparse.ArgumentParser(prog="python -m onward.training.warm_start.warmup")
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--base", type=Path, help="folder of the base model (tiny: where to write it)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--plan", help="the warm start's numbers as JSON, in place of the model's recipe")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    die_with_parent()

    def emit(event: str, **facts: Any) -> None:
        line = {"event": event, **facts}
        text = json.dumps(line, allow_nan=False) if args.json else _sentence(line)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    recipe = for_model(args.model)
    if args.plan:
        recipe = replace(recipe, warm_up=WarmUp(**json.loads(args.plan)))
    try:
        result = warm_up(
            args.model,
            args.out,
            base=args.base,
            seed=args.seed,
            threads=args.threads,
            recipe=recipe,
            emit=emit,
        )
    except OnwardError as error:
        emit("failed", code=getattr(error, "code", "DATA"), message=str(error))
        return 1
    folders = {name: str(getattr(result, name)) for name in ("base_folder", "adapter_folder")}
    emit("done", **(asdict(result) | folders))
    return 0


def _sentence(line: dict[str, Any]) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in line.items() if key != "event")
    return f"{line['event']}: {facts}"


if __name__ == "__main__":
    sys.exit(main())
