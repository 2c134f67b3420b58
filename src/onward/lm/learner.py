"""Clipped policy-gradient updates of one adapter, or of all weights, from token rows and their advantages.

Invariants: every step follows from rows, advantages, configuration and ``state`` alone. The order of rows is
derived from (seed, update, epoch), so an update that is saved half-way and restored takes exactly the steps
of an uninterrupted one. The learner does not depend on the algorithm behind the advantages.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onward.errors import ConfigError
from onward.lm import losses
from onward.lm.batches import Batches, Prepared
from onward.lm.cursor import Cursor
from onward.lm.model import LanguageModel
from onward.lm.objective import KlCoefficient, PolicyObjective
from onward.lm.options import CriticConfig, LearnerConfig
from onward.lm.packing import Wanted
from onward.lm.saved import load_state, save_state, trained_tensors
from onward.lm.statistics import PartStatistics, StepMetrics, StepStatistics
from onward.lm.stepper import Stepper, Stepping
from onward.lm.tokens import TokenRow
from onward.lm.value import ValueHead, explained_variance

__all__ = ["STATE_FILE", "CriticConfig", "Learner", "LearnerConfig", "StepMetrics"]

STATE_FILE = "learner.pt"

MISMATCH = 2e-4
"""Mean of |log π − log μ| in nats, before the first step, above which a sampler's log-probs are not the
learner's own. Another order of sums in float32 gives 1e-6 to 1e-5, bfloat16 on a trained network 0.03."""
_COMPARED = 16
"""Rows that are compared to find out."""

PerToken = Sequence[float | Sequence[float] | Tensor]


class Learner(Stepping):
    """Owns the optimiser of one resident adapter, and of its critic if ``config.critic`` is set. With
    ``adapter`` None all weights are trained in place; otherwise the base weights are never changed."""

    def __init__(self, policy: LanguageModel, adapter: str | None, config: LearnerConfig) -> None:
        if adapter is None and config.kl_coef > 0 and config.kl_reference == "base":
            raise ConfigError(
                "Training all weights leaves no base to stay close to: use kl_reference = 'start', or an "
                "adapter."
            )
        self.policy = policy
        self.name = adapter
        self.config = config
        self.tensors = trained_tensors(policy, adapter)
        self.critic = None if config.critic is None else ValueHead(policy.shape.hidden, policy.device)
        self.stepper = Stepper(
            list(self.tensors.values()),
            config.learning_rate,
            config.max_grad_norm,
            critic=[] if self.critic is None else self.critic.parameters,
            critic_learning_rate=0.0
            if config.critic is None
            else config.critic.learning_rate / policy.shape.hidden**0.5,
        )
        self.stepper.scale_for(policy.torch_dtype)
        self.kl = KlCoefficient(config.kl_coef, config.kl_target)
        self.updates = 0
        self.cursor = Cursor(
            config.minibatch_rows,
            config.epochs,
            schedule=config.schedule,
            warmup_steps=config.warmup_steps,
            max_steps=config.max_steps,
        )
        self._active = config  # with the importance cap of the current update
        self._fixed: dict[str, Any] = {}  # values fixed during the current update, see ``open``
        self._opened: Sequence[TokenRow] | None = None
        self._batches: Batches | None = None

    # --- an update ---------------------------------------------------------------------------------

    def open(self, rows: Sequence[TokenRow]) -> None:
        """Checks ``rows`` and computes the values that stay fixed during their update, before its first step.

        These are the log-probs at the start and of the reference, and the coefficient of KL in the reward.
        After ``restore`` in the middle of an update they come from the saved state. Raises TrainingError
        (DATA) when a row cannot be trained on, or the rows are not those of the state.
        """
        if self._batches is not None and self._opened is rows:
            return
        config = self.config
        prepared = Prepared.from_rows(rows, self.policy.shape.max_positions, config.behaviour)
        digest = hashlib.sha256()
        for row in prepared.rows:
            digest.update(repr((row.ids, row.sampled, row.logprobs, row.settings)).encode())
            digest.update(row.masks_digest())
        self.cursor.refuse_other_data(self._fixed.get("rows"), digest.hexdigest(), "rows")
        if not self.cursor.done:
            self._fixed = {"rows": digest.hexdigest(), "penalty_coef": self.kl.value}
        self._batches = Batches(
            self.policy,
            self.name,
            prepared,
            config.micro_batch_tokens,
            config.cache_bytes,
            config.gradient_checkpointing,
        )
        self._opened = rows
        self._once("cap", self._importance_cap)
        self._active = replace(config, importance_cap=self._fixed["cap"])
        needs_start = self._active.importance_cap is not None or config.behaviour == "recompute"
        penalty = config.kl_coef > 0
        if needs_start or (penalty and (config.kl_reference == "start" or config.kl_in == "reward")):
            self._once("start", lambda b: b.logprobs(self.name))
        if penalty:
            start = self._fixed.get("start") if config.kl_reference == "start" else None
            self._once("reference", lambda b: start if start is not None else b.logprobs(None))

    def _once(self, name: str, made: Any) -> None:
        if name not in self._fixed:
            self._fixed[name] = made(self._batches)

    def _importance_cap(self, batches: Batches) -> float | None:
        """Returns the cap on importance weights of this update, None for no weights."""
        config = self.config
        looks = config.importance_cap is None and config.behaviour == "recorded"
        if config.mismatch_cap is None or not looks or self.cursor.done:  # done: an older version's state
            return config.importance_cap
        count = len(batches.prepared.rows)
        some = range(0, count, -(-count // _COMPARED))
        recorded = [row.logprobs[t] for row in (batches.prepared.rows[i] for i in some) for t in row.trained]
        own = torch.cat(batches.logprobs(self.name, some))
        self._fixed["mismatch"] = float((own - torch.tensor(recorded)).abs().mean())
        return config.mismatch_cap if self._fixed["mismatch"] > MISMATCH else None

    def reward_penalty(self) -> list[Tensor] | None:
        """Returns β k1 per trained token of each opened row, to subtract from its reward; None without such a
        KL. k1 = log π_start − log π_ref, without gradient: the policy gradient carries it."""
        if self.config.kl_in != "reward" or self.config.kl_coef == 0:
            return None
        coef = float(self._fixed["penalty_coef"])
        pairs = zip(self._fixed["start"], self._fixed["reference"], strict=True)
        return [coef * losses.kl(start, reference, "k1") for start, reference in pairs]

    def values(self) -> list[Tensor]:
        """Returns the critic's value before each trained token of the opened rows, fixed for the update."""
        critic = self.critic
        if critic is None:
            raise ConfigError("This learner has no critic: give LearnerConfig(critic=CriticConfig()).")
        self._once("values", lambda b: b.each(self.name, lambda _, hidden: critic(hidden)))
        return self._fixed["values"]

    def warm_critic(
        self, returns: Sequence[Tensor], units: Sequence[Sequence[Hashable]] | None = None
    ) -> None:
        """Makes the values of the opened rows, each from a critic that was not fitted to its row, and warms
        up a new critic.

        ``returns`` are the plain ones per trained token. ``units`` of each row, as in ``folds_of``, name its
        attempt and its group; the prompt is added here.
        """
        critic, batches = self.critic, self._batches
        if critic is None or self.config.critic is None or batches is None or "values" in self._fixed:
            return
        rows, origin = batches.prepared.rows, batches.prepared.origin
        named = [(i,) for i in origin] if units is None else [units[i] for i in origin]
        prompted = [(*n, ("prompt", *row.prompt)) for n, row in zip(named, rows, strict=True)]
        self._fixed["values"] = critic.judge(
            rows,
            batches.each(self.name, lambda _, hidden: hidden.float()),
            batches.prepared.aligned(returns, "return"),
            prompted,
            self.config.critic,
            self.config.seed,
        )
        self._explain(returns)

    def _explain(self, returns: PerToken) -> None:
        if "explained" not in self._fixed and self._batches is not None:
            targets = self._batches.prepared.aligned(returns, "return")
            values = torch.cat(self._fixed["values"])
            self._fixed["explained"] = explained_variance(values, torch.cat(targets))

    def update(
        self, rows: Sequence[TokenRow], advantages: PerToken, returns: PerToken | None = None
    ) -> Iterator[StepMetrics]:
        """Runs ``epochs`` passes over ``rows``; advantages are one number per row, or one per token of it.

        ``returns`` has the same form and is given when the critic is trained. After ``restore`` in the middle
        of an update, the same rows continue from the saved step. Raises TrainingError (DATA) when no row can
        be trained on or the rows differ from the restored ones.
        """
        self.open(rows)
        batches = self._batches
        assert batches is not None
        pushes = batches.prepared.aligned(advantages, "advantage")
        targets = None
        if returns is not None:
            targets = batches.prepared.aligned(returns, "return")
            self.values()
            self._explain(returns)
            if self.critic is not None:
                self.critic.remember(batches.prepared.rows)
        digest = hashlib.sha256(repr([p.tolist() for p in pushes]).encode()).hexdigest()
        self.cursor.refuse_other_data(self._fixed.get("advantages"), digest, "advantages of the rows")
        self._fixed["advantages"] = digest
        cursor = self.cursor
        for chosen in cursor.batches(len(pushes), self._order):
            metrics = self._step(batches, chosen, pushes, targets)
            cursor.advance()
            yield metrics
        self.updates += 1
        self._fixed, self._batches, self._opened = {}, None, None

    def _order(self, epoch: int) -> list[int]:
        assert self._batches is not None
        shuffle = random.Random(f"{self.config.seed}/{self.updates}/{epoch}")
        return self._batches.sharing.shuffled(shuffle)

    # --- a step ------------------------------------------------------------------------------------

    def _step(
        self,
        batches: Batches,
        indices: Sequence[int],
        advantages: list[Tensor],
        returns: list[Tensor] | None,
    ) -> StepMetrics:
        """Takes one optimiser step on the rows ``indices``; its denominator counts all of them."""
        config = self.config
        counts = [len(advantages[i]) for i in indices]
        each = losses.token_weights(counts, config.normaliser, config.constant_length)
        weight = dict(zip(indices, each, strict=True))
        everybody = (
            config.penalises_loss or config.hold_coef > 0 or config.entropy_coef > 0 or returns is not None
        )
        learning = [i for i in indices if everybody or bool(advantages[i].any())]
        seen = StepStatistics()
        coef = self.kl.value
        with self.stepper.tracking():
            for part in batches.split(learning):
                self._backward(batches, part, weight, sum(counts), advantages, returns, seen)
        norm, taken = 0.0, False
        self.stepper.scale_rate(self.cursor.rate_share)
        if learning:
            norm, taken = self.stepper.step(seen.loss + seen.value_loss)
            if self.name is None:
                self.policy.drop_copies()
        metrics = seen.metrics(self.cursor.done + 1, self.cursor.total, norm, not taken, coef, self._active)
        metrics = replace(metrics, held_out_explained_variance=float(self._fixed.get("explained", 0.0)))
        if self._active.importance_cap is None and "mismatch" in self._fixed:
            metrics = replace(metrics, logprob_difference=self._fixed["mismatch"])
        if "reference" in self._fixed:
            self.kl.observe(metrics.reference_kl)
        return metrics

    def _backward(
        self,
        batches: Batches,
        part: Sequence[int],
        weight: dict[int, float],
        step_tokens: int,
        advantages: list[Tensor],
        returns: list[Tensor] | None,
        seen: StepStatistics,
    ) -> None:
        """Adds the gradient of the rows ``part``; ``weight`` is each row's weight per token in the step."""
        config, scale = self.config, self.stepper.scale
        with torch.enable_grad():
            packed, hidden = batches.hidden(part, self.name)
        device = hidden.device

        def gathered(values: list[Tensor] | None) -> Tensor:
            return torch.zeros(0) if values is None else torch.cat([values[i] for i in part]).to(device)

        plain = torch.tensor([weight[i] for i in part], device=device)[packed.row_of]
        behaviour, old, importance = self._ratios(packed, gathered(self._fixed.get("start")))
        objective = PolicyObjective(
            config,
            gathered(advantages),
            plain * importance,
            old,
            behaviour,
            gathered(self._fixed["reference"]) if config.penalises_loss else None,
            self.kl.value,
            scale,
        )
        value_gradient = None
        if returns is not None and self.critic is not None and config.critic is not None:
            values = gathered(self._fixed["values"])
            loss, value_gradient = self.critic.backward(
                hidden, values, gathered(returns), 1 / step_tokens, config.critic, scale
            )
            seen.value_loss += loss
        exploring = config.entropy_coef > 0
        logp, entropy = self.policy.backward_logprobs(
            hidden,
            packed.targets,
            packed.temperature,
            objective.slope,
            entropy_slope=-config.entropy_coef * scale * plain if exploring else None,
            also=value_gradient,
            permitted=packed.permitted,
        )
        seen.loss += objective.loss
        if exploring:
            seen.loss -= config.entropy_coef * float((plain * entropy).sum())
        reference = gathered(self._fixed.get("reference"))
        seen.add_part(
            PartStatistics(logp, old, behaviour, objective.advantages, entropy, importance, reference)
        )

    def _ratios(self, packed: Wanted, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns (log μ, denominator of the clipped ratio, importance weight), per trained token."""
        config = self._active
        behaviour = start if config.behaviour == "recompute" else packed.behaviour
        if config.importance_cap is None:
            return behaviour, behaviour, torch.ones_like(behaviour)
        importance = losses.importance_weights(
            start,
            behaviour,
            config.importance_cap,
            rows=packed.row_of if config.importance_level == "sequence" else None,
            floor=config.importance_floor,
        )
        return behaviour, start, importance

    # --- state -------------------------------------------------------------------------------------

    def save(self, folder: Path) -> bool:
        """Writes parameters, optimiser and cursor, so that ``restore`` continues between two steps. Right
        after a step that was not finite, writes nothing and returns False."""
        if not self.finite:
            return False
        state = {
            "stepper": self.stepper.state(),
            "critic": None if self.critic is None else [p.detach().cpu() for p in self.critic.parameters],
            "warm": self.critic is not None and self.critic.warm,
            "fitted_to": [] if self.critic is None else list(self.critic.fitted_to),
            "kl_coef": self.kl.value,
            "updates": self.updates,
            "cursor": self.cursor.done,
            "fixed": self._fixed,
        }
        save_state(folder / STATE_FILE, self.tensors, state)
        return True

    @torch.no_grad()
    def restore(self, folder: Path) -> None:
        """Restores the state written by ``save``; the adapter must have the same rank and layers."""
        state = load_state(folder / STATE_FILE, self.tensors, critic=self.critic is not None)
        self.stepper.load_state(state["stepper"])
        if self.critic is not None:
            for parameter, saved in zip(self.critic.parameters, state["critic"], strict=True):
                parameter.copy_(saved)
            self.critic.warm = bool(state["warm"])
            self.critic.fitted_to = dict.fromkeys(state.get("fitted_to", ()))
        self.kl.value = float(state["kl_coef"])
        self.updates, self.cursor.done = int(state["updates"]), int(state["cursor"])
        self._fixed, self._opened, self._batches = dict(state["fixed"]), None, None
        if self.name is None:
            self.policy.drop_copies()
