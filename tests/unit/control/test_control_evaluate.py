"""Evaluation: quotas, raw returns, rules of success, baselines, noise; statistics by hand and by scipy."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy
from numpy.typing import NDArray

from onward.control.core.contract import Environments, EnvSpec, Flags, Step
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout, Obs, action_spec
from onward.control.environments import make
from onward.control.environments.variants import VARIANTS
from onward.control.evaluation.assess import assess, fitting
from onward.control.evaluation.evaluate import AtLeast, RandomActor, Upright, play, solve_bar, success_rule
from onward.control.evaluation.statistics import (
    iqm,
    iqm_interval,
    score_ratio,
    variation,
    variation_interval,
)
from onward.control.policies.policy import Layer, Policy, PolicyParts
from onward.errors import ControlError

TWO = ActionSpec("discrete", (2,), start=(0,))


class Scripted(Environments):
    """Slot s's k-th episode (from 0) lasts ``lengths[s][k % …]`` steps and pays ``pay[s]`` at its end; the
    observation is (slot, steps so far)."""

    def __init__(self, lengths: list[list[int]], pay: list[float], env_id: str = "Scripted") -> None:
        self.spec = EnvSpec(env_id, Layout(2), TWO, threshold=1.0)
        self.num, self._lengths, self._pay = len(lengths), lengths, np.array(pay)
        self.seen: list[NDArray[Any]] = []

    def _limit(self) -> NDArray[np.int64]:
        return np.array([own[k % len(own)] for own, k in zip(self._lengths, self._k, strict=True)])

    def _obs(self) -> NDArray[np.float32]:
        return np.stack([np.arange(self.num), self._t], axis=1).astype(np.float32)

    def reset(self, seed: int) -> tuple[Obs, Flags | None]:
        self.seed = seed
        self._t, self._k = np.zeros(self.num, np.int64), np.zeros(self.num, np.int64)
        return self._obs(), None

    def step(self, actions: NDArray[Any]) -> Step:
        self._t += 1
        ended = self._t >= self._limit()
        reward = np.where(ended, self._pay, 0.0).astype(np.float32)
        final = self._obs()[ended] if ended.any() else None
        self._k += ended
        self._t[ended] = 0
        return Step(self._obs(), reward, ended, np.zeros(self.num, np.bool_), final)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> tuple[Obs, Flags | None]:
        raise NotImplementedError


class Watcher:
    """Acts 0 and keeps what it saw."""

    def __init__(self) -> None:
        self.seen: list[NDArray[Any]] = []

    def act_flat(self, obs: Obs, mask: Any = None, deterministic: bool = True) -> NDArray[Any]:
        assert not isinstance(obs, dict)
        self.seen.append(obs.copy())
        return np.zeros(len(obs), np.int64)


# Quotas (bug case 23).


def test_short_episodes_are_not_favoured() -> None:
    """One slot succeeds in one step, three fail in ten: the first eight that end would be 8 successes."""
    env = Scripted([[1], [10], [10], [10]], [1.0, 0.0, 0.0, 0.0])
    found = play(Watcher(), env, 8, rule=AtLeast(1.0))
    assert found.success == 0.25
    assert found.lengths.tolist() == [1, 1, 10, 10, 10, 10, 10, 10]


def test_episodes_are_shared_out_and_the_rest_goes_to_the_first_slots() -> None:
    env = Scripted([[2], [3], [5]], [1.0, 2.0, 3.0])
    found = play(Watcher(), env, 8)
    assert found.returns.tolist() == [1, 1, 1, 2, 2, 2, 3, 3]
    assert found.lengths.tolist() == [2, 2, 2, 3, 3, 3, 5, 5]
    assert found.success is None


def test_fewer_episodes_than_slots() -> None:
    assert play(Watcher(), Scripted([[2], [3], [5]], [1.0, 2.0, 3.0]), 2).returns.tolist() == [1, 2]


def test_no_episodes_are_refused() -> None:
    with pytest.raises(ControlError, match="give at least 1"):
        play(Watcher(), Scripted([[1]], [0.0]), 0)


def test_statistics_are_of_what_was_acted_on_while_it_counted() -> None:
    """Slot 0 is done after one step; only (0, 0) of it counts. Slot 1 gives (1, 0), (1, 1), (1, 2)."""
    found = play(Watcher(), Scripted([[1], [3]], [0.0, 0.0]), 2)
    assert found.met is not None and found.met.count == 4
    assert found.met.mean == pytest.approx([0.75, 0.75])


def test_seeds_are_not_those_of_training() -> None:
    env = Scripted([[1]], [0.0])
    play(Watcher(), env, 1, seed=3)
    training = {Seeds(3).integer("train"), *Seeds(3).slots(64)}
    assert env.seed not in training
    first = env.seed
    play(Watcher(), env, 1, seed=4)
    assert env.seed != first


# Raw returns (bug case 21).


def test_returns_are_raw_and_the_normaliser_stays_frozen() -> None:
    """Pendulum's rewards are summed as the environment gives them, whatever the policy normalises."""
    env = make("Pendulum-v1", 4)
    layer = Layer(np.zeros((1, 3), np.float32), np.zeros(1, np.float32))
    mean, variance = np.array([0.5, 0.1, 2.0]), np.array([2.0, 3.0, 9.0])
    parts = PolicyParts(
        env.spec.layout, env.spec.actions, "gaussian", [layer], norm=(mean.copy(), variance.copy(), 10.0)
    )
    found = play(Policy(parts), env, 4, seed=1)
    env.reset(Seeds(1).child("evaluation").integer("env"))
    total = np.zeros(4)
    for _ in range(200):
        total += env.step(np.zeros((4, 1), np.float32)).reward
    assert found.returns == pytest.approx(total)
    assert parts.norm is not None
    assert (parts.norm[0] == mean).all() and (parts.norm[1] == variance).all()


# Success.


def test_at_least_includes_the_threshold() -> None:
    env = Scripted([[1], [1]], [475.0, 474.9])
    assert play(Watcher(), env, 2, rule=AtLeast(475.0)).successes is not None
    assert play(Watcher(), env, 2, rule=AtLeast(475.0)).success == 0.5


def upright_step(cosines: list[float], ended: list[bool], final: list[float]) -> Step:
    flags = np.array(ended)

    def rows(values: list[float]) -> NDArray[np.float32]:
        return np.array([[c, 0.0, 0.0] for c in values], np.float32)

    last = rows(final) if final else None
    return Step(rows(cosines), np.zeros(len(ended), np.float32), np.zeros_like(flags), flags, last)


@pytest.mark.parametrize(("fallen_at", "success"), [(None, True), (149, True), (150, False), (199, False)])
def test_pendulum_succeeds_when_upright_for_the_last_fifty_steps(
    fallen_at: int | None, success: bool
) -> None:
    rule = Upright()
    rule.start(1)
    for t in range(200):
        cosine = 0.5 if t == fallen_at else 0.96
        step = upright_step([1.0 if t == 199 else cosine], [t == 199], [cosine] if t == 199 else [])
        rule.observe(step)
    assert rule.success(-9999.0, 0) is success


def test_pendulum_does_not_carry_over_to_the_next_episode() -> None:
    rule = Upright()
    rule.start(1)
    for t in range(60):
        rule.observe(upright_step([1.0], [t == 59], [1.0] if t == 59 else []))
    assert rule.success(0.0, 0)
    for t in range(20):
        rule.observe(upright_step([1.0], [t == 19], [1.0] if t == 19 else []))
    assert not rule.success(0.0, 0)


def test_which_rule_holds_where() -> None:
    cart, pendulum = make("CartPole-v1", 1).spec, make("Pendulum-v1", 1).spec
    assert success_rule(cart).words == "return ≥ 475"
    assert isinstance(success_rule(pendulum), Upright)
    assert success_rule(pendulum, -150.0).words == "return ≥ -150"
    assert (solve_bar(cart), solve_bar(pendulum)) == (475.0, -200.0)
    assert success_rule(EnvSpec("Own-v0", Layout(1), TWO)).words == ""


def test_a_hand_written_controller_keeps_the_pendulum_upright_and_random_does_not() -> None:
    class Swing:
        """Pumps energy, then holds by feedback."""

        def act_flat(self, obs: Obs, mask: Any = None, deterministic: bool = True) -> NDArray[Any]:
            assert not isinstance(obs, dict)
            cos, sin, speed = obs.T
            angle = np.arctan2(sin, cos)
            energy = speed**2 / 2 + 15 * (cos - 1)  # of the rod, over m l²/3: 3 g / 2 l = 15
            torque = np.where(cos > 0.9, -10 * angle - 3 * speed, -np.sign(energy * speed + 1e-9) * 2)
            return (np.clip(torque, -2, 2) / 2)[:, None].astype(np.float32)

    env = make("Pendulum-v1", 20)
    rule = success_rule(env.spec)
    assert play(Swing(), env, 100, rule=rule).success == 1.0
    assert play(RandomActor(env.spec.actions), env, 100, rule=rule).success == 0.0


# The random policy.


def test_random_actor_is_uniform_legal_and_repeats() -> None:
    obs = np.zeros((9000, 1), np.float32)
    three = ActionSpec("discrete", (3,), start=(0,))
    drawn = RandomActor(three, 1).act_flat(obs)
    assert np.bincount(drawn) / 9000 == pytest.approx([1 / 3] * 3, abs=0.02)
    assert (RandomActor(three, 1).act_flat(obs) == drawn).all()
    mask = np.broadcast_to([True, False, True], (9000, 3))
    assert np.bincount(RandomActor(three, 1).act_flat(obs, mask), minlength=3)[1] == 0
    box = RandomActor(ActionSpec("box", low=(0.0,) * 2, high=(5.0,) * 2, shape=(2,)), 1).act_flat(obs)
    assert (box.min(), box.max()) == pytest.approx((-1, 1), abs=0.01)
    from gymnasium import spaces

    several = RandomActor(action_spec(spaces.MultiDiscrete([2, 5])), 1).act_flat(obs)
    assert several.max(axis=0).tolist() == [1, 4]
    mask = np.broadcast_to([True, False, True, True, False, False, True], (9000, 7))
    several = RandomActor(action_spec(spaces.MultiDiscrete([2, 5])), 1).act_flat(obs, mask)
    assert several[:, 0].max() == 0
    assert np.bincount(several[:, 1]) / 9000 == pytest.approx([1 / 3, 1 / 3, 0, 0, 1 / 3], abs=0.02)


# Noise.


def test_noise_reaches_the_actor_alone_and_has_its_deviation() -> None:
    env, actor = Scripted([[100]] * 50, [1.0] * 50), Watcher()
    quiet = Watcher()
    play(quiet, env, 50)
    found = play(actor, env, 50, noise=np.array([0.5, 0.0]))
    difference = np.array(actor.seen) - np.array(quiet.seen)
    assert difference[..., 0].std() == pytest.approx(0.5, rel=0.03)
    assert abs(difference[..., 0].mean()) < 0.03
    assert (difference[..., 1] == 0).all()
    assert found.lengths.tolist() == [100] * 50  # and the statistics are of what was, not of what was seen
    assert found.met is not None and found.met.var[1] == pytest.approx((100**2 - 1) / 12)


# An assessment.


def balance(norm: bool = False) -> Policy:
    """CartPole by hand: push to where the pole leans and moves."""
    weight = np.array([[0, 0, 0, 0], [0.1, 0.5, 1.0, 1.0]], np.float32)
    parts = PolicyParts(Layout(4), TWO, "q", [Layer(weight, np.zeros(2, np.float32))])
    if norm:
        stats = np.zeros(4), np.array([4.0, 9.0, 0.01, 4.0]), 1e9
        weight = weight * np.sqrt(stats[1]).astype(np.float32)
        parts = PolicyParts(Layout(4), TWO, "q", [Layer(weight, np.zeros(2, np.float32))], norm=stats)
    return Policy(parts, "CartPole-v1")


def test_assessment_of_a_hand_written_policy() -> None:
    found = assess(balance(), "CartPole-v1", episodes=20, seed=5)
    assert (found.clean.mean, found.clean.success, found.rule) == (500.0, 1.0, "return ≥ 475")
    assert 15 < found.random.mean < 30 and found.random.success == 0.0
    assert found.noise is not None and found.noise_from == "the policy's clean episodes"
    noisy = (found.noise.mean - found.random.mean) / (500.0 - found.random.mean)
    assert found.noise.ratio == pytest.approx(noisy)
    assert [score.name for score in found.transfer] == [
        "pole twice as long",
        "pole three times as heavy",
        "push 7 N instead of 10",
        "push 15 N instead of 10",
    ]
    ratios = [(score.mean - found.random.mean) / (500.0 - found.random.mean) for score in found.transfer]
    assert [score.ratio for score in found.transfer] == pytest.approx(ratios)
    assert found.transfer_ratio == pytest.approx(np.mean(ratios))
    assert found.as_dict()["clean"]["mean"] == 500.0
    assert assess(balance(), "CartPole-v1", episodes=20, seed=5) == found


def test_what_learned_nothing_has_no_ratio_and_is_still_json() -> None:
    parts = replace(balance().parts, layers=[Layer(np.zeros((2, 4), np.float32), np.zeros(2, np.float32))])
    found = assess(Policy(parts), "CartPole-v1", episodes=20, variants=VARIANTS["CartPole-v1"][:1])
    assert found.clean.mean < found.random.mean
    assert found.noise is not None
    assert (found.noise.ratio, found.transfer[0].ratio, found.transfer_ratio) == (None, None, None)
    assert "NaN" not in json.dumps(found.as_dict())


def test_the_deviation_of_noise_is_the_normalisers_where_there_is_one() -> None:
    found = assess(balance(norm=True), "CartPole-v1", episodes=20, variants=())
    assert found.noise_from == "the policy's normaliser"
    assert found.noise is not None and found.noise.mean < 300  # 0.2 · 2 rad/s of spin is a lot
    assert (found.transfer, found.transfer_ratio) == ((), None)
    assert assess(balance(), "CartPole-v1", episodes=20, variants=(), noise=None).noise is None


def test_a_policy_of_another_environment_is_one_sentence() -> None:
    with pytest.raises(ControlError, match="takes 4 numbers, Pendulum-v1 gives 3 numbers") as caught:
        assess(balance(), "Pendulum-v1")
    assert "trained in (CartPole-v1)" in str(caught.value)
    cart = make("CartPole-v1", 1).spec
    other = Policy(PolicyParts(Layout(4), ActionSpec("discrete", (3,), start=(0,)), "q", [
        Layer(np.zeros((3, 4), np.float32), np.zeros(3, np.float32))
    ]))  # fmt: skip
    with pytest.raises(ControlError, match=r"gives discrete actions \[3\], CartPole-v1 takes"):
        fitting(other, cart)


# Statistics.


def test_iqm_by_hand() -> None:
    assert iqm([1, 2, 3, 4, 100]) == 3.0
    assert iqm([0, 0, 5, 7, 9, 11, 50, 90]) == 8.0
    assert iqm([3.0]) == 3.0


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8, 10, 33])
def test_iqm_is_scipys_trimmed_mean(count: int) -> None:
    values = np.random.default_rng(count).standard_normal(count) * 50
    assert iqm(values) == pytest.approx(scipy.stats.trim_mean(values, 0.25))


def test_variation_by_hand() -> None:
    assert variation([8, 10, 12]) == pytest.approx(0.2)  # std 2 (n − 1) over 10
    assert variation([500.0] * 5) == 0.0
    assert variation(np.array([90, 110, 100, 95, 105])) == pytest.approx(np.sqrt(62.5) / 100)


def test_variation_of_negative_returns_is_taken_above_random() -> None:
    """(−160, −150, −140) over random −1200: mean 1050, std 10."""
    assert variation([-160, -150, -140], random=-1200) == pytest.approx(10 / 1050)
    with pytest.raises(ControlError, match="give its score as random"):
        variation([-160, -150, -140])
    assert variation([8, 10, 12], random=-200) == pytest.approx(0.2)


def test_intervals_against_scipys_bootstrap() -> None:
    values = np.array([430.0, 470.0, 480.0, 495.0, 500.0, 500.0, 440.0])
    ours = iqm_interval(values)
    theirs = scipy.stats.bootstrap(
        (values,), lambda x, axis: scipy.stats.trim_mean(x, 0.25, axis=axis), method="percentile",
        n_resamples=20_000, rng=np.random.default_rng(9),
    ).confidence_interval  # fmt: skip
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1.0)
    assert ours.low <= ours.value <= ours.high
    ours = variation_interval(values)
    theirs = scipy.stats.bootstrap(
        (values,), lambda x, axis: np.std(x, axis=axis, ddof=1) / np.mean(x, axis=axis),
        method="percentile", n_resamples=20_000, rng=np.random.default_rng(9),
    ).confidence_interval  # fmt: skip
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.002)


def test_equal_seeds_have_no_spread() -> None:
    assert iqm_interval([500.0] * 5) == (500.0, 500.0, 500.0)
    assert variation_interval([-100.0] * 5, random=-500.0) == (0.0, 0.0, 0.0)


def test_intervals_want_five_seeds_and_figures_want_numbers() -> None:
    with pytest.raises(ControlError, match="train at least 5 seeds"):
        iqm_interval([1, 2, 3, 4])
    with pytest.raises(ControlError, match="not defined"):
        variation([1.0])
    for wrong in ([], [1.0, float("nan")]):
        with pytest.raises(ControlError, match="one finite number per seed"):
            iqm(wrong)


def test_score_ratio_by_hand() -> None:
    assert score_ratio(420.0, 500.0, 20.0) == pytest.approx(400 / 480)
    assert score_ratio(-300.0, -150.0, -1200.0) == pytest.approx(900 / 1050)
    assert np.isnan(score_ratio(5.0, 1.0, 2.0))
