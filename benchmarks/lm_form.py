"""The form of a policy while it learns: three jobs of the demo's model, offline, seed by seed.

Per seed the warm-started model v0 attempts 512 training tasks, a job learns from them, and the candidate
is validated as in a release (success on the validation tasks, format checks against the current
model). A candidate that fails is discarded, and the next job starts from the current one. ``form`` counts
well-formed answers to the five format questions of ``onward.release.validation.probe_prompts``, twenty
samples each. Their wording differs from the tasks, so form breaks there first.

The variants lead from ``plain`` to ``recipe``, which jobs use, one change at a time. The results are in
docs/form.md. Tried on four seeds and left out: sparing near-certain tokens in both directions (rise 0.07: the
form drifts even on the tasks, since nothing holds it), a pull towards the start in the whole distribution at
temperature 2 (form kept, rise 0.23), advantages weighted by 1 − p below the baseline (rise 0.45, form lost in
two of four), a learning rate of 2e-3 without a schedule (0.38, lost in one of four).

    python benchmarks/lm_form.py --json form.json            # ten seeds, about a minute each and variant
    python benchmarks/lm_form.py --variants recipe --seeds 0,1
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from machine import machine
from onward.envs import desk
from onward.lm.chat import Chat
from onward.lm.policy import Policy
from onward.lm.sampler import Sampler, SampleRequest
from onward.lm.trajectories import Trajectory
from onward.release.validation import checks, comparison, probe_prompts
from onward.suites.suite import ItemResult
from onward.training.job import methods
from onward.training.spec import recipes
from onward.training.spec.request import JobSpec
from onward.training.warm_start import desk_attempts, warmup

RECIPE = recipes.for_model("tiny")
ATTEMPTS = 512
JOBS = 3
TEST_SEED = 11
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"spare_above": None, "hold_coef": 0.0, "schedule": "constant"},
    "kl": {"spare_above": None, "hold_coef": 0.0, "schedule": "constant", "kl_coef": 0.1},
    "spare": {"spare_above": 0.9, "hold_coef": 0.0, "schedule": "constant"},
    "spare, linear": {"spare_above": 0.9, "hold_coef": 0.0, "schedule": "linear"},
    "recipe": {},
}


@dataclass
class Policies:
    """Current policy of a seed: its one adapter, the algorithm's state, its task and check results."""

    policy: Policy
    memory: dict[str, Any]
    tasks: list[ItemResult]
    checked: list[probe_prompts.CheckResult]


def spec_of(changes: dict[str, Any]) -> JobSpec:
    values: dict[str, Any] = {
        "job_id": "form", "epoch": 1, "algorithm": "reinforce", "base_model": "tiny", "model_folder": "",
        "start_digest": None, "learning_rate": RECIPE.learning_rate, "schedule": RECIPE.schedule,
        "epochs": RECIPE.epochs, "batch_rows": RECIPE.batch_size, "clip_epsilon": RECIPE.clip_epsilon,
        "lora_rank": RECIPE.lora_rank, "lora_alpha": RECIPE.lora_alpha, "normaliser": RECIPE.normaliser,
        "first_lora_layer": RECIPE.first_lora_layer, "return_from": "outcome", "unparsable_penalty": 0.5,
        "standardise": RECIPE.standardise, "negative_weight": RECIPE.negative_weight,
        "spare_above": RECIPE.spare_above, "hold_coef": RECIPE.hold_coef, "kl_coef": RECIPE.kl_coef,
        "seed": 0, "threads": 1,
    }  # fmt: skip
    return JobSpec.model_validate({**values, **changes})


def ask(policy: Policy, samples: int, seed: int) -> list[probe_prompts.CheckResult]:
    """Runs the release's checks, ``samples`` answers each, at the temperature of serving."""
    chat, sampler = Chat(policy.tokenizer), Sampler(policy, max_batch=64)
    by_id = {check.check_id: check for check in probe_prompts.CHECKS}
    for check in probe_prompts.CHECKS:
        talk = [
            {"role": "system", "content": desk.SYSTEM_PROMPT},
            {"role": "user", "content": check.request},
        ]
        for sample in range(samples):
            drawn = hashlib.sha256(f"{seed}/{check.check_id}/{sample}".encode()).digest()
            sampler.submit(
                SampleRequest(
                    request_id=f"{check.check_id}/{sample}",
                    prompt_ids=chat.render(talk),
                    max_new_tokens=RECIPE.max_tokens,
                    temperature=1.0,
                    stop_ids=chat.stop_ids,
                    adapter=methods.ADAPTER,
                    seed=int.from_bytes(drawn[:6], "big"),
                )
            )
    found = []
    while sampler.busy:
        for one in sampler.step():
            name, sample = one.request_id.split("/")
            check = by_id[name]
            passed = probe_prompts.passes(check, chat.text(one.token_ids))
            found.append(probe_prompts.CheckResult(name, check.kind, passed, int(sample)))
    return found


def attempt(policy: Policy, split: str, count: int, panel: int, seed: int) -> list[desk_attempts.Attempt]:
    tasks = desk.tasks(split, count, panel)
    return desk_attempts.attempt(policy, methods.ADAPTER, tasks, max_tokens=RECIPE.max_tokens, seed=seed)


def learn(
    policy: Policy, spec: JobSpec, memory: dict[str, Any], tried: Sequence[desk_attempts.Attempt]
) -> dict:
    """Runs one job on ``tried`` and returns the algorithm's state after it."""
    method = methods.make(policy, spec)
    method.load_state(memory)
    method.prepare(
        [
            Trajectory(
                rows=[one.row],
                reward=one.outcome.completion - spec.unparsable_penalty * one.unparsable,
                group=None,
                task_type=one.task.kind,
                success=one.outcome.success,
                policy="0",
                staleness=0,
            )
            for one in tried
        ]
    )
    for _ in method.steps():
        pass
    return method.state()


def judge(policy: Policy) -> tuple[list[ItemResult], list[probe_prompts.CheckResult]]:
    tried = attempt(policy, "validation", 100, 0, 0)
    results = [
        ItemResult(one.task.task_id, one.task.kind, one.outcome.completion, one.outcome.success)
        for one in tried
    ]
    return results, ask(policy, probe_prompts.SAMPLES, 0)


def well_formed(policy: Policy) -> int:
    """Counts the well-formed answers among 100."""
    return sum(one.passed for one in ask(policy, 20, 7) if one.kind == "format")


def run(v0: Path, seed: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Runs three jobs of one variant, starting from the model in ``v0``."""
    policy = Policy.load(v0 / "base")
    policy.add_adapter(methods.ADAPTER, v0 / "adapter")
    parameters = policy.adapter(methods.ADAPTER).params
    spec, memory = spec_of(changes), {}
    tasks, checked = judge(policy)
    before = desk_attempts.success(attempt(policy, "test", 100, 0, TEST_SEED))
    after, forms, rejected_for_form, promoted = before, [well_formed(policy)], 0, 0
    for number in range(1, JOBS + 1):
        tried = attempt(policy, "train", ATTEMPTS, 1000 * seed + number, 100 * seed + number)
        kept = {name: value.detach().clone() for name, value in parameters.items()}
        learned = learn(policy, spec, memory, tried)
        new_tasks, new_checked = judge(policy)
        safe, _ = checks.compare_checks(new_checked, checked)
        good = comparison.compare(comparison.pair(new_tasks, tasks)[0]).difference >= -0.05
        forms.append(well_formed(policy))
        rejected_for_form += not safe
        if safe and good:
            promoted += 1
            tasks, checked, memory = new_tasks, new_checked, learned
            after = desk_attempts.success(attempt(policy, "test", 100, 0, TEST_SEED))
        else:
            with torch.no_grad():
                for name, value in parameters.items():
                    value.copy_(kept[name])
    return {
        "seed": seed, "before": before, "after": after, "form": forms,
        "rejected_for_form": rejected_for_form, "promoted": promoted,
    }  # fmt: skip


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    rises = [one["after"] - one["before"] for one in runs]
    return {
        "runs": len(runs),
        "rise": {"median": statistics.median(rises), "least": min(rises), "most": max(rises)},
        "runs_without_rejection_for_form": sum(one["rejected_for_form"] == 0 for one in runs),
        "candidates_rejected_for_form": sum(one["rejected_for_form"] for one in runs),
        "least_form": sorted(min(one["form"][1:]) for one in runs),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8,9", help="numbers, separated by commas")
    parser.add_argument("--variants", default=";".join(VARIANTS), help="names, separated by semicolons")
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--quick", action="store_true", help="one seed of the recipe: its figures mean little"
    )
    given = parser.parse_args()
    seeds = [0] if given.quick else [int(text) for text in given.seeds.split(",")]
    names = ["recipe"] if given.quick else given.variants.split(";")
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="onward-form-"))
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    try:
        for seed in seeds:
            warmup.warm_up("tiny", folder / str(seed), seed=seed, threads=1)
            for name in names:
                found[name].append(run(folder / str(seed), seed, VARIANTS[name]))
                print(f"{name}: {found[name][-1]}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    told = {
        "benchmark": "lm_form",
        "machine": machine(),
        "variants": {name: {"changes": VARIANTS[name], **summary(runs)} for name, runs in found.items()},
        "runs": found,
    }
    if given.json:
        given.json.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told["variants"], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
