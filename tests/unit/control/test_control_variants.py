"""Transfer variants change the physics they name, in the numpy tasks and in Gymnasium's own."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import pytest

from onward.control.environments.variants import VARIANTS, Variant

ALL = [variant for variants in VARIANTS.values() for variant in variants]


@pytest.mark.parametrize("variant", ALL, ids=lambda v: f"{v.env_id} {v.name}")
def test_spaces_stay_and_the_physics_change(variant: Variant) -> None:
    plain, changed = Variant(variant.env_id, "as it is", {}).make(2), variant.make(2)
    assert changed.spec.layout == plain.spec.layout
    assert changed.spec.actions == plain.spec.actions
    assert (changed.spec.id, changed.spec.threshold) == (plain.spec.id, plain.spec.threshold)
    ways = []
    for env in (plain, changed):
        env.reset(7)
        spec = env.spec.actions
        action = np.full((2, 1), 0.8, np.float32) if spec.kind == "box" else np.ones(2, np.int64)
        action = np.repeat(action, spec.dim, axis=1) if spec.kind == "box" else action
        ways.append([env.step(action).obs for _ in range(5)][-1])
        env.close()
    assert not np.allclose(*ways, atol=1e-6)


def cart_pole_step(state: list[float], force: float, length: float, masspole: float) -> list[float]:
    """One Euler step of Barto, Sutton, Anderson (1983) with gravity 9.8, cart 1 kg, 0.02 s."""
    x, speed, angle, spin = state
    total = 1.0 + masspole
    push = (force + masspole * length * spin**2 * math.sin(angle)) / total
    turn = (9.8 * math.sin(angle) - math.cos(angle) * push) / (
        length * (4 / 3 - masspole * math.cos(angle) ** 2 / total)
    )
    slide = push - masspole * length * turn * math.cos(angle) / total
    return [x + 0.02 * speed, speed + 0.02 * slide, angle + 0.02 * spin, spin + 0.02 * turn]


@pytest.mark.parametrize("variant", VARIANTS["CartPole-v1"], ids=lambda v: v.name)
def test_cart_pole_variants_by_the_equations(variant: Variant) -> None:
    """Masses that Gymnasium derives once are derived again."""
    body = {"length": 0.5, "masspole": 0.1, "force_mag": 10.0} | variant.changes
    env = variant.make(1)
    obs, _ = env.reset(0)
    assert not isinstance(obs, dict)
    state = obs[0].tolist()
    for action in (1, 1, 0, 1, 0, 0, 1):
        force = body["force_mag"] * (1 if action else -1)
        state = cart_pole_step(state, force, body["length"], body["masspole"])
        assert env.step(np.array([action])).obs == pytest.approx(np.array([state]), abs=1e-5)


@pytest.mark.parametrize("variant", VARIANTS["Pendulum-v1"], ids=lambda v: v.name)
def test_pendulum_variants_are_gymnasiums_with_the_same_attributes(variant: Variant) -> None:
    from onward.control.core.seeds import Seeds

    theirs: Any = gymnasium.make("Pendulum-v1")
    for name, value in variant.changes.items():
        assert hasattr(theirs.unwrapped, name)
        setattr(theirs.unwrapped, name, value)
    ours = variant.make(1)
    ours.reset(3)
    theirs.reset(seed=Seeds(3).slots(1)[0])
    for torque in (0.5, -1.0, 1.0, 0.25, 0.0):
        step = ours.step(np.array([[torque]], np.float32))
        obs, reward, *_ = theirs.step(np.array([2 * torque], np.float32))
        assert step.obs == pytest.approx(obs[None], abs=1e-5)
        assert step.reward == pytest.approx([reward], abs=1e-4)


def test_lander_variants_reach_the_environment() -> None:
    for env_id in ("LunarLander-v3", "LunarLanderContinuous-v3"):
        for variant in VARIANTS[env_id]:
            env: Any = variant.make(1)
            body = env.slots[0].env.unwrapped
            assert body.continuous == (env_id == "LunarLanderContinuous-v3")
            for name, value in variant.changes.items():
                assert getattr(body, name) == value
            env.close()
