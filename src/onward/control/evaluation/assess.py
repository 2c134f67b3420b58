"""Assessment of one policy: greedy success, and scores under noise and in similar tasks.

Slots start from the same seeds for every score. In the numpy tasks each episode therefore starts alike, so
clean, noisy, transferred and random scores differ by the change and not by luck of the start. Where the
environment draws during an episode (LunarLander), only the first episode of each slot starts alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onward.control.core.contract import EnvSpec
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.environments import make
from onward.control.environments.variants import VARIANTS, Variant
from onward.control.evaluation.evaluate import (
    EPISODES,
    NOISE,
    SLOTS,
    Actor,
    Episodes,
    RandomActor,
    play,
    success_rule,
)
from onward.control.evaluation.statistics import score_ratio
from onward.control.policies.policy import Policy
from onward.errors import ControlError


@dataclass(frozen=True)
class Score:
    """Result of the episodes (a hundred by default) in one environment."""

    name: str
    mean: float
    std: float
    length: float
    success: float | None
    ratio: float | None = None
    """(mean − random) / (clean mean − random); None where clean is not above random: nothing was learned."""


@dataclass(frozen=True)
class Assessment:
    """Result of ``assess``; all scores are raw returns."""

    env: str
    episodes: int
    seed: int
    rule: str
    """The rule of success in words; empty where there is none."""
    clean: Score
    random: Score
    noise: Score | None
    noise_from: str
    """Source of the noise's deviation."""
    transfer: tuple[Score, ...]

    @property
    def transfer_ratio(self) -> float | None:
        """Mean ratio over the variants."""
        ratios = [score.ratio for score in self.transfer if score.ratio is not None]
        return float(np.mean(ratios)) if ratios else None

    def as_dict(self) -> dict[str, Any]:
        """Returns plain JSON values."""
        return {**asdict(self), "transfer_ratio": self.transfer_ratio}


def assess(
    actor: Actor,
    env_id: str,
    *,
    episodes: int = EPISODES,
    seed: int = 0,
    num: int = SLOTS,
    threshold: float | None = None,
    noise: float | None = NOISE,
    variants: Sequence[Variant] | None = None,
    env_kwargs: dict[str, Any] | None = None,
) -> Assessment:
    """Assesses ``actor`` in ``env_id``. ``variants``: None for those of ``VARIANTS``, () for none; ``noise``
    None: no noisy episodes. Raises ControlError where actor and environment do not fit."""
    env = make(env_id, min(num, episodes), env_kwargs=env_kwargs)
    env.without_shaping()
    fitting(actor, env.spec)
    rule = success_rule(env.spec, threshold)

    def score(name: str, who: Actor, where: Any = None, **options: Any) -> tuple[Score, Episodes]:
        found = play(who, where or env, episodes, seed, rule=rule, **options)
        mean, std = found.mean, float(found.returns.std())
        return Score(name, mean, std, float(found.lengths.mean()), found.success), found

    try:
        clean, met = score("clean", actor)
        random, _ = score("random policy", RandomActor(env.spec.actions, seed))

        def relative(one: Score) -> Score:
            ratio = score_ratio(one.mean, clean.mean, random.mean)
            return one if math.isnan(ratio) else replace(one, ratio=ratio)

        noisy, source = None, ""
        if noise is not None and env.spec.layout.width:
            deviation, source = _deviation(actor, met)
            noisy = relative(score(f"noise {noise:g}", actor, noise=noise * deviation)[0])
    finally:
        env.close()
    transfer = []
    for variant in VARIANTS.get(env_id, ()) if variants is None else variants:
        other = variant.make(min(num, episodes), env_kwargs)
        try:
            transfer.append(relative(score(variant.name, actor, other)[0]))
        finally:
            other.close()
    return Assessment(env_id, episodes, seed, rule.words, clean, random, noisy, source, tuple(transfer))


def fitting(actor: Actor, spec: EnvSpec) -> None:
    """Raises ControlError where a policy was made for other spaces than those of ``spec``."""
    if not isinstance(actor, Policy):
        return
    ours, theirs = actor.parts, spec
    if _layout_words(ours.layout) != _layout_words(theirs.layout):
        raise ControlError(
            f"The policy takes {_layout_words(ours.layout)}, {spec.id} gives {_layout_words(theirs.layout)}: "
            f"evaluate it in the environment it was trained in ({actor.env_id or 'not recorded'})."
        )
    if _action_words(ours.actions) != _action_words(theirs.actions):
        raise ControlError(
            f"The policy gives {_action_words(ours.actions)}, {spec.id} takes "
            f"{_action_words(theirs.actions)}: evaluate it in the environment it was trained in "
            f"({actor.env_id or 'not recorded'})."
        )


def _action_words(actions: ActionSpec) -> str:
    return f"{actions.kind} actions {list(actions.sizes) or actions.dim}"


def _layout_words(layout: Layout) -> str:
    images = "".join(f" and image {key} {shape}" for key, shape in layout.images)
    return f"{layout.width} numbers{images}"


def _deviation(actor: Actor, met: Episodes) -> tuple[NDArray[np.float64], str]:
    """Returns each number's running deviation and its source: the normaliser, else clean episodes."""
    if isinstance(actor, Policy) and actor.parts.norm is not None:
        return np.sqrt(actor.parts.norm[1]), "the policy's normaliser"
    assert met.met is not None
    return met.met.std, "the policy's clean episodes"
