"""Training speed: one optimiser step of GRPO and of DPO beside TRL's trainers, same batch, adapter and model.

On TRL's side: its own ``GRPOTrainer.training_step`` and ``DPOTrainer.training_step`` (loss, and backward
through accelerate), then the clipping and the AdamW step of its train loop. Only the generation of a batch is
replaced: both sides get the same batch. Both train rank-16 LoRA on the seven projections of every layer,
without gradient checkpointing (TRL's default would be slower), with the clipped loss normalised over the
step's tokens. With ``--dtype bfloat16`` both have base weights in bfloat16, TRL with its option ``bf16``.
``loss_difference`` is that of the first steps. TRL computes every row whole. Ours computes the prompt of a
group or of a pair once, forward and backward, and keeps logits for 64 positions at a time. The case ``all
different`` has nothing to share: there both do the same products.
``reward`` trains with both whole loops (ours: sampler and learner) for equal wall time. With ``--quick`` the
network is tiny and untrained, so it can learn little.

Results of profiling (SmolLM2-135M, two cores). A step of ours is 60 to 70 % matrix products and 12 %
attention, so only fewer tokens can gain time, not faster ones. Where nothing is shared, both sides are
bound by the same products. Huge pages (THP_MEM_ALLOC_ENABLE) read packed weights 10 % faster in sampling but
made this step no faster, so they are not used.

The top-level ``ratio`` is that of the target case: GRPO, prompt 256, 64 new tokens, one group of 8.

    python benchmarks/lm_training.py [--quick] [--json FILE] [--model NAME] [--threads N] [--repeats N]
                                     [--dtype bfloat16] [--cases target,all-different]

``--cases`` names some of the cases (and ``reward``); by default all are measured.
"""

from __future__ import annotations

import logging
import random
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onward.lm  # noqa: F401  (before torch: it makes waiting threads passive)

import torch  # isort: skip

from lm_measure import arguments, compare, model_folder, report
from onward.lm.learner import Learner, LearnerConfig
from onward.lm.pairs import Pair
from onward.lm.policy import Policy
from onward.lm.preference import DpoConfig, PreferenceLearner
from onward.lm.sampler import Sampler, SampleRequest
from onward.lm.tokens import TokenRow

RATE = 1e-4
RANK, ALPHA = 16, 32.0
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass(frozen=True)
class Case:
    """A case of ``rows`` answers of ``new`` tokens to ``prompts`` different prompts of ``length`` tokens."""

    name: str
    length: int
    new: int
    rows: int = 8
    prompts: int = 1
    algorithm: str = "grpo"

    def __str__(self) -> str:
        return (
            f"{self.algorithm}, {self.name}: {self.rows} rows of {self.length} + {self.new}, "
            f"{self.prompts} prompt{'s' if self.prompts > 1 else ''}"
        )


TARGET = Case("target", 256, 64)
CASES = (
    TARGET,
    Case("long answers", 32, 256),
    Case("batch", 256, 64, rows=32, prompts=4),
    Case("all different", 256, 64, prompts=8),
    Case("pairs", 256, 64, prompts=4, algorithm="dpo"),
)


def batch(policy: Policy, case: Case) -> list[TokenRow]:
    """Returns rows with the base's log-probs. DPO reads the first half as chosen, the other as rejected."""
    rnd = random.Random(0)

    def tokens(count: int) -> list[int]:
        return [rnd.randrange(3, policy.shape.vocab) for _ in range(count)]

    different = [tokens(case.length) for _ in range(case.prompts)]
    prompts = [different[i % case.prompts] for i in range(case.rows)]
    sampled = [False] * case.length + [True] * case.new
    rows = [TokenRow([*p, *tokens(case.new)], sampled, [0.0] * len(sampled)) for p in prompts]
    values = policy.logprobs(rows)
    return [TokenRow(r.ids, sampled, v.tolist()) for r, v in zip(rows, values, strict=True)]


def gains(case: Case) -> list[float]:
    return [1.0 if i % 2 else -1.0 for i in range(case.rows)]


# Ours.


def our_step(policy: Policy, case: Case, rows: list[TokenRow]) -> Callable[[], float]:
    if "bench" in policy.adapters:
        policy.remove_adapter("bench")
    policy.new_adapter("bench", RANK, ALPHA)
    if case.algorithm == "dpo":
        half = case.rows // 2
        pairs = [Pair([a], [b]) for a, b in zip(rows[:half], rows[half:], strict=True)]
        preference = PreferenceLearner(policy, "bench", DpoConfig(learning_rate=RATE, minibatch_pairs=half))
        return lambda: next(iter(list(preference.update(pairs)))).loss
    settings = LearnerConfig(learning_rate=RATE, epochs=1, minibatch_rows=case.rows, dual_clip=None)
    learner = Learner(policy, "bench", settings)
    return lambda: next(iter(list(learner.update(rows, gains(case))))).loss


# Theirs.


def trainer(folder: Path, algorithm: str, scratch: Path, dtype: str = "float32", **more: Any) -> Any:
    import trl
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    lora = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=PROJECTIONS, task_type="CAUSAL_LM")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    common: dict[str, Any] = {
        "output_dir": str(scratch), "use_cpu": True, "bf16": dtype == "bfloat16", "report_to": [],
        "save_strategy": "no",
        "gradient_checkpointing": False, "learning_rate": RATE, "disable_tqdm": True, "max_grad_norm": 1.0,
        "adam_beta2": 0.95, "lr_scheduler_type": "constant", "logging_steps": 100_000,
    }  # fmt: skip
    shared: dict[str, Any] = {"model": model, "processing_class": tokenizer, "peft_config": lora}
    if algorithm == "dpo":
        data = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}] * 8)
        return trl.DPOTrainer(args=trl.DPOConfig(**common, beta=0.1), train_dataset=data, **shared)
    settings = {"num_generations": 8, "per_device_train_batch_size": 8, "max_completion_length": 64} | more
    data = settings.pop("dataset", None) or Dataset.from_list([{"prompt": "a"}] * 8)
    rewards = settings.pop("reward_funcs", lambda **known: [0.0] * len(known["prompts"]))
    callbacks = settings.pop("callbacks", [])
    return trl.GRPOTrainer(
        args=trl.GRPOConfig(**(common | {"beta": 0.0, "loss_type": "dapo"} | settings)),
        reward_funcs=rewards, train_dataset=data, callbacks=callbacks, **shared,
    )  # fmt: skip


def their_step(
    folder: Path, case: Case, rows: list[TokenRow], scratch: Path, **settings: Any
) -> Callable[[], float]:
    """Returns a step of TRL's trainer, on the device of its model; ``settings`` are further ones of GRPO."""
    made = trainer(folder, case.algorithm, scratch, max_completion_length=case.new, **settings)
    made.create_optimizer()
    made.model.train()
    made.current_gradient_accumulation_steps = 1
    ids = torch.tensor([row.ids for row in rows])
    if case.algorithm == "dpo":
        inputs = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "completion_mask": torch.tensor([row.sampled for row in rows]).long(),
        }
    else:
        inputs = {
            "prompt_ids": ids[:, : case.length],
            "prompt_mask": torch.ones_like(ids[:, : case.length]),
            "completion_ids": ids[:, case.length :],
            "completion_mask": torch.ones_like(ids[:, case.length :]),
            "old_per_token_logps": torch.tensor([row.logprobs[case.length :] for row in rows]),
            "advantages": torch.tensor(gains(case)),
            "num_items_in_batch": torch.tensor(float(case.rows * case.new)),
        }
    inputs = {name: value.to(made.model.device) for name, value in inputs.items()}
    made._prepare_inputs = lambda given: given
    parameters = [p for p in made.model.parameters() if p.requires_grad]

    def run() -> float:
        loss = made.training_step(made.model, inputs, None)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        made.optimizer.step()
        made.optimizer.zero_grad()
        return float(loss)

    return run


def measure(policy: Policy, folder: Path, case: Case, repeats: int, scratch: Path) -> dict[str, Any]:
    rows = batch(policy, case)
    mine = our_step(policy, case, rows)
    other = their_step(folder, case, rows, scratch, dtype=policy.dtype)
    difference = abs(mine() - other())  # the first steps warm both up
    result = compare(mine, other, "trl", case.rows * (case.length + case.new), repeats)
    return {"case": str(case)} | result | {"loss_difference": float(f"{difference:.1e}")}


# Reward after equal wall time.

NEW, GROUP, PROMPTS = 16, 8, 4
LEARNING_RATE = 1e-3


def reward_of(ids: list[int]) -> float:
    """Returns the share of even token ids: about one half at the start, 1 at best."""
    return sum(1 for token in ids if token % 2 == 0) / NEW


def answers(policy: Policy, adapter: str, prompts: list[list[int]], each: int) -> list[TokenRow]:
    sampler, rows = Sampler(policy, 64), {}
    for number in range(len(prompts) * each):
        ids = prompts[number // each]
        sampler.submit(SampleRequest(str(number), ids, NEW, adapter=adapter))
    while sampler.busy:
        for sample in sampler.step():
            ids = prompts[int(sample.request_id) // each]
            mask = [False] * len(ids) + [True] * len(sample.token_ids)
            logprobs = [0.0] * len(ids) + sample.logprobs
            rows[int(sample.request_id)] = TokenRow([*ids, *sample.token_ids], mask, logprobs)
    return [rows[i] for i in sorted(rows)]


def mean_reward(policy: Policy, adapter: str, prompts: list[list[int]]) -> float:
    rows = answers(policy, adapter, prompts, 32)
    return round(sum(reward_of(r.ids[-sum(r.sampled) :]) for r in rows) / len(rows), 3)


class Ours:
    """Our loop as single steps, to alternate with those of a peer; ``seconds`` is their total time."""

    def __init__(self, policy: Policy, prompts: list[list[int]]) -> None:
        self.policy, self.prompts, self.steps, self.seconds = policy, prompts, 0, 0.0
        policy.new_adapter("ours", RANK, ALPHA)
        settings = LearnerConfig(
            learning_rate=LEARNING_RATE, epochs=1, minibatch_rows=GROUP * PROMPTS, dual_clip=None
        )
        self.learner = Learner(policy, "ours", settings)

    def step(self) -> None:
        start = time.perf_counter()
        rows = answers(self.policy, "ours", self.prompts, GROUP)
        rewards = torch.tensor([reward_of(r.ids[-sum(r.sampled) :]) for r in rows]).view(-1, GROUP)
        gain = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
        list(self.learner.update(rows, gain.flatten().tolist()))
        self.steps += 1
        self.seconds += time.perf_counter() - start


def reward_after(seconds: float, folder: Path, scratch: Path) -> dict[str, Any]:
    """Runs both loops in turn, each for ``seconds`` of wall time, so that other load affects both alike."""
    from datasets import Dataset
    from transformers import TrainerCallback

    policy = Policy.load(folder)
    texts = [f"word{i} and number" for i in range(PROMPTS)]
    prompts = [policy.tokenizer.encode(text, add_special_tokens=False) for text in texts]
    policy.new_adapter("start", RANK, ALPHA)
    ours, theirs = Ours(policy, prompts), [0.0, 0.0]

    class InTurn(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            theirs[1] = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            theirs[0] += time.perf_counter() - theirs[1]
            while ours.seconds < theirs[0]:
                ours.step()
            control.should_training_stop = theirs[0] > seconds
            return control

    def rewards(**known: Any) -> list[float]:
        return [reward_of(list(ids)) for ids in known["completion_ids"]]

    made = trainer(
        folder, "grpo", scratch, reward_funcs=rewards, callbacks=[InTurn()], learning_rate=LEARNING_RATE,
        dataset=Dataset.from_list([{"prompt": text} for text in texts] * 500), num_generations=GROUP,
        per_device_train_batch_size=GROUP * PROMPTS, max_completion_length=NEW, num_train_epochs=1000,
    )  # fmt: skip
    made.train()
    made.model.save_pretrained(scratch / "peft")
    policy.add_adapter("trl", scratch / "peft")
    return {
        "task": f"share of even tokens in {NEW}, {PROMPTS} prompts × {GROUP}",
        "seconds": seconds,
        "start": mean_reward(policy, "start", prompts),
        "ours": {"reward": mean_reward(policy, "ours", prompts), "steps": ours.steps},
        "trl": {"reward": mean_reward(policy, "trl", prompts), "steps": made.state.global_step},
    }


def main() -> None:
    parser = arguments("One optimiser step of GRPO and DPO beside TRL's.")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--cases", help="names of cases, joined by commas, with - for spaces")
    given = parser.parse_args()
    wanted = given.cases.replace("-", " ").split(",") if given.cases else [*(c.name for c in CASES), "reward"]
    torch.set_num_threads(given.threads)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        folder, model = model_folder(given, scratch / "model")
        policy = Policy.load(folder, dtype=given.dtype)
        found: dict[str, Any] = {"dtype": given.dtype, "cases": []}
        for case in CASES:
            if case.name in wanted:
                repeats = given.repeats if case is TARGET or given.cases or given.quick else 1
                found["cases"].append(measure(policy, folder, case, repeats, scratch))
        if "reward" in wanted:
            found["reward"] = reward_after(5.0 if given.quick else 90.0, folder, scratch)
    report("lm_training", model, given, found["cases"][0]["ratio"], found)


if __name__ == "__main__":
    main()
