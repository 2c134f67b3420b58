"""Bonuses: the scale filtered along time, counts, RND and ICM; every one resumes bit for bit."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch

from onward.control.core.config import DQNConfig, PPOConfig
from onward.control.core.contract import EnvSpec
from onward.control.core.seeds import Seeds
from onward.control.core.spaces import ActionSpec, Layout, Leaf
from onward.control.explore.bonus import ReturnFilter, bonus_weight, flat_rows
from onward.control.explore.counts import CountBonus, Counts, SimHash, exact_keys
from onward.control.explore.icm import IntrinsicCuriosity, action_loss, action_rows
from onward.control.explore.make import make_bonus
from onward.control.explore.rnd import RandomDistillation
from onward.errors import ControlError

DISCRETE = ActionSpec("discrete", sizes=(3,), shape=(), start=(0,))
MULTI = ActionSpec("multi_discrete", sizes=(2, 3), shape=(2,), start=(0, 0))
BITS = ActionSpec("multi_binary", sizes=(2, 2), shape=(2,), start=(0, 0))
BOX = ActionSpec("box", low=(-2.0, 0.0), high=(2.0, 1.0), shape=(2,))
VECTOR = Layout(width=2)
PICTURE = Layout(width=1, images=(("image", (4, 4, 1)),))
ROOMS = Layout(width=3, leaves=(Leaf(path=(), kind="one_hot", shape=(), sizes=(3,), start=(0,)),))


def spec(layout: Layout = VECTOR, actions: ActionSpec = DISCRETE) -> EnvSpec:
    return EnvSpec("test", layout, actions)


def config(bonus: str, **settings) -> PPOConfig:
    return PPOConfig(bonus=bonus, **{"bonus_random_steps": 0, "bonus_learning_rate": 1e-3, **settings})


def made(bonus: str, num: int = 2, layout: Layout = VECTOR, actions: ActionSpec = DISCRETE, **settings):
    result = make_bonus(spec(layout, actions), num, config(bonus, **settings), Seeds(3))
    assert result is not None
    return result


def draw_actions(actions: ActionSpec, lead: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    if actions.kind == "discrete":
        return generator.integers(actions.sizes[0], size=lead)
    if actions.kind == "box":
        return generator.normal(size=(*lead, actions.dim)).astype(np.float32)
    return generator.integers(actions.sizes, size=(*lead, actions.dim))


def transitions(lead: tuple[int, ...], seed: int, layout: Layout = VECTOR, actions: ActionSpec = DISCRETE):
    generator = np.random.default_rng(seed)

    def draw():
        vector = generator.normal(size=(*lead, layout.width)).astype(np.float32)
        if layout.flat:
            return vector
        pixels = generator.integers(256, size=(*lead, 4, 4, 1)).astype(np.uint8)
        return {"vector": vector, "image": pixels}

    return draw(), draw_actions(actions, lead, generator), draw()


# -- the scale of the stream

REWARDS = np.array([[1.0, 0.0], [1.0, 2.0], [0.0, 4.0]])  # (time 3, slots 2)
GOES_ON = np.zeros((3, 2), dtype=bool)


def test_the_reward_filter_runs_along_time_in_each_slot():
    # cleanrl#360 ran over slots. γ = ½: slot 0 has 1, 1.5, 0.75; slot 1 has 0, 2, 5. Mean 41/24;
    # mean of squares (1 + 2.25 + 0.5625 + 0 + 4 + 25) / 6 = 5.46875; variance 5.46875 − (41/24)² = 2.550347.
    stream = ReturnFilter(2, 0.5, episodic=False)
    stream.observe(REWARDS, GOES_ON)
    assert stream.filtered.tolist() == [0.75, 5.0]
    assert stream.std == pytest.approx(1.596981, abs=1e-6)


def test_the_reward_filter_goes_on_from_one_rollout_to_the_next():
    whole, parts = ReturnFilter(2, 0.5, episodic=False), ReturnFilter(2, 0.5, episodic=False)
    whole.observe(REWARDS, GOES_ON)
    for t in range(3):
        parts.observe(REWARDS[t : t + 1], GOES_ON[t : t + 1])
    assert parts.filtered.tolist() == whole.filtered.tolist()
    assert parts.std == pytest.approx(whole.std, rel=1e-12)


def test_only_an_episodic_stream_starts_again_after_an_end():
    ended = np.array([[True, False], [False, True], [False, False]])
    on, anew = ReturnFilter(2, 0.5, episodic=False), ReturnFilter(2, 0.5, episodic=True)
    for stream in (on, anew):
        stream.observe(REWARDS, ended)
    assert on.filtered.tolist() == [0.75, 5.0]
    assert anew.filtered.tolist() == [0.5, 4.0]  # slot 0: 1 | 1, 0.5; slot 1: 0, 2 | 4


def test_the_reward_filter_refuses_slots_first():
    with pytest.raises(ControlError, match=r"give \(time, 2\)"):
        ReturnFilter(2, 0.5, episodic=False).observe(REWARDS.T, GOES_ON.T)


def test_a_stream_without_differences_is_left_as_it_is():
    stream = ReturnFilter(1, 0.0, episodic=False)
    assert stream.std == 1.0
    stream.observe(np.full((4, 1), 3.0), np.zeros((4, 1), dtype=bool))
    assert stream.std == 1.0


def test_rnd_is_not_episodic_and_the_others_are():
    assert [made(kind).episodic for kind in ("rnd", "icm", "count")] == [False, True, True]


def test_the_weight_falls_to_0_at_its_share_of_the_run():
    falling = config("rnd", bonus_weight=2.0, bonus_until=0.5)
    assert [bonus_weight(falling, at) for at in (0.0, 0.25, 0.5, 1.0)] == [2.0, 1.0, 0.0, 0.0]
    assert bonus_weight(config("rnd", bonus_weight=2.0), 1.0) == 2.0


# -- counts


def test_simhash_against_a_slow_reference():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(20, 3)).astype(np.float32)
    simhash = SimHash(3, 11, np.random.default_rng(1))
    for row, key in zip(rows, simhash.keys(rows), strict=True):
        bits = [float(row @ simhash.planes[:, i] + simhash.offsets[i]) > 0 for i in range(11)]
        text = "".join("1" if bit else "0" for bit in bits) + "00000"
        assert key == int(text, 2).to_bytes(2, "big")


def test_simhash_tells_apart_what_differs_in_length_alone_and_keeps_neighbours_together():
    simhash = SimHash(2, 32, np.random.default_rng(1))
    near, same, far = simhash.keys(np.array([[1.0, 1.0], [1.0001, 1.0], [4.0, 4.0]], dtype=np.float32))
    assert near == same != far


def test_exact_keys_are_equal_for_equal_numbers():
    keys = exact_keys(np.array([[0.0, 1.0], [-0.0, 1.0], [0.0, 1.5]]))
    assert keys[0] == keys[1] != keys[2]


def test_counts_of_pairs_grow_and_come_back():
    counts = Counts(columns=2)
    keys = exact_keys(np.arange(600.0)[:, None])
    counts.add(keys, np.arange(600) % 2)
    counts.add([keys[599], keys[599]], np.array([1, 0]))
    again = Counts(columns=2)
    again.load_state_dict(copy.deepcopy(counts.state_dict()))
    for each in (counts, again):
        assert each.of([keys[0], keys[599], b"never"]).tolist() == [[1, 0], [1, 2], [0, 0]]
        assert (len(each), each.total) == (600, 602)
        each.add([b"new!"], np.array([1]))
        assert each.of([b"new!"]).tolist() == [[0, 1]]


def test_the_count_bonus_by_hand_on_listed_states():
    bonus = made("count", layout=ROOMS)
    assert isinstance(bonus, CountBonus) and bonus.exact and bonus.primed
    room = np.eye(3, dtype=np.float32)
    met = room[[[0, 0], [0, 1], [0, 0]]]  # (time 3, slots 2): room 0 five times, room 1 once
    none = np.zeros((3, 2), dtype=np.int64)
    bonus.observe(met, none, met, none.astype(bool))
    expected = [math.sqrt(math.log(6) / n) for n in (5, 1, 1)]  # a room never met counts as met once
    assert bonus.reward(room, none, room) == pytest.approx(expected)
    assert bonus.update(room, none, room) == {"bonus_states": 2.0}


def test_the_hash_does_not_move_while_it_is_counted_with():
    bonus = made("count", bonus_random_steps=8, bonus_features=16)
    assert not bonus.primed
    for seed in range(4):
        bonus.prime(transitions((2,), seed)[2])
    assert bonus.primed
    obs, actions, following = transitions((50, 2), 9)
    before = bonus._keys(flat_rows(obs, VECTOR))
    bonus.observe(obs, actions, following * 100, np.zeros((50, 2), dtype=bool))
    assert bonus._keys(flat_rows(obs, VECTOR)) == before


@pytest.mark.parametrize("kind", ["count", "rnd", "icm"])
def test_a_slot_that_did_not_act_met_nothing(kind: str):
    obs, actions, following = transitions((6, 2), 0)
    alive = np.ones((6, 2), dtype=bool)
    alive[3:, 1] = False
    ended = np.zeros((6, 2), dtype=bool)
    states = []
    for elsewhere in (0.0, 50.0):
        bonus = made(kind)
        told = following.copy()
        told[3:, 1] += elsewhere
        bonus.observe(obs, actions, told, ended, alive)
        states.append((bonus.reward(obs[:3], actions[:3], following[:3]), bonus.norm.count))
    assert np.array_equal(states[0][0], states[1][0])
    assert states[0][1] == (0 if kind == "count" else 9)


# -- random network distillation


def test_the_predictor_is_two_layers_deeper_than_the_target():
    bonus = made("rnd", bonus_features=8)
    assert isinstance(bonus, RandomDistillation)
    assert (len(bonus.target.linears), len(bonus.predictor.linears)) == (2, 4)


def test_rnd_is_the_squared_error_over_the_streams_deviation():
    bonus = made("rnd", bonus_features=8)
    obs, actions, following = transitions((5, 2), 0)
    bonus.observe(obs, actions, following, np.zeros((5, 2), dtype=bool))
    rows = following.reshape(10, 2).astype(np.float64)
    white = torch.from_numpy(((rows - rows.mean(0)) / np.sqrt(rows.var(0) + 1e-8)).astype(np.float32))
    with torch.no_grad():
        raw = ((bonus.predictor(white) - bonus.target(white)) ** 2).mean(1).numpy().reshape(5, 2)
    filtered, seen = np.zeros(2), []
    for t in range(5):
        filtered = 0.99 * filtered + raw[t]
        seen += filtered.tolist()
    assert bonus.reward(obs, actions, following) == pytest.approx(raw / np.std(seen), rel=1e-4)


def test_whitened_observations_are_cut_at_5():
    bonus = made("rnd")
    for seed in range(3):
        bonus.prime(transitions((100,), seed)[2])
    none = np.zeros(2, dtype=np.int64)
    far = bonus.reward(np.zeros((2, 2)), none, np.array([[1e6, -1e6], [50.0, -50.0]], dtype=np.float32))
    assert far[0] == far[1] > 0


def test_random_steps_set_the_statistics_before_anything_is_learned():
    bonus = made("rnd", bonus_random_steps=6)
    steps = [
        np.array([[1.0, 2.0], [3.0, 4.0]]),
        np.array([[5.0, 6.0], [7.0, 8.0]]),
        np.array([[9.0, 0.0]] * 2),
    ]
    ready = []
    for rows in steps:
        bonus.prime(rows)
        ready.append(bonus.primed)
    assert ready == [False, False, True]
    assert bonus.norm.mean.tolist() == pytest.approx([34 / 6, 20 / 6])


def test_rnd_falls_where_it_learned_and_not_elsewhere_and_its_target_stays():
    bonus = made("rnd")
    generator = np.random.default_rng(0)
    known = generator.uniform(-1, 0, (256, 2)).astype(np.float32)
    new = generator.uniform(1, 2, (256, 2)).astype(np.float32)
    bonus.prime(np.concatenate([known, new]))
    none = np.zeros(256, dtype=np.int64)
    target = copy.deepcopy(bonus.target.state_dict())
    before = [bonus.reward(known, none, rows).mean() for rows in (known, new)]
    for _ in range(200):
        metrics = bonus.update(known, none, known)
    after = [bonus.reward(known, none, rows).mean() for rows in (known, new)]
    assert after[0] < 0.05 * before[0]
    assert after[1] > 5 * after[0]
    assert set(metrics) == {"bonus_loss", "bonus_std"}
    assert all(torch.equal(value, target[key]) for key, value in bonus.target.state_dict().items())


# -- intrinsic curiosity


def test_actions_as_rows_by_hand():
    assert action_rows(DISCRETE, np.array([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]
    assert action_rows(MULTI, np.array([[1, 2], [0, 0]])).tolist() == [[0, 1, 0, 0, 1], [1, 0, 1, 0, 0]]
    assert action_rows(BITS, np.array([[1, 0]])).tolist() == [[1, 0]]
    assert action_rows(BOX, np.array([[0.5, -3.0]])).tolist() == [[0.5, -1.0]]


def test_the_loss_of_a_guessed_action_by_hand():
    flat = torch.zeros(2, 5)
    assert float(action_loss(DISCRETE, flat[:, :3], np.array([2, 0]))) == pytest.approx(math.log(3))
    assert float(action_loss(MULTI, flat, np.array([[1, 2], [0, 0]]))) == pytest.approx(math.log(6))
    assert float(action_loss(BITS, flat[:, :2], np.array([[1, 0], [1, 1]]))) == pytest.approx(math.log(4))
    assert float(action_loss(BOX, flat[:1, :2], np.array([[0.5, -3.0]]))) == pytest.approx(0.625)


def test_icm_forgets_what_it_foresees_and_minds_what_it_does_not():
    """Actions 0 and 1 move a known step; action 2 led nowhere in training and far away afterwards."""
    bonus = made("icm")
    assert isinstance(bonus, IntrinsicCuriosity)
    generator = np.random.default_rng(0)
    moves = np.array([[0.5, 0.0], [0.0, 0.5], [0.0, 0.0]], dtype=np.float32)
    first = generator.normal(size=(256, 2)).astype(np.float32)
    bonus.prime(first)
    for _ in range(400):
        start, actions = generator.normal(size=(256, 2)).astype(np.float32), generator.integers(3, size=256)
        bonus.update(start, actions, start + moves[actions])
    actions = np.arange(256) % 3
    foreseen = bonus.reward(first, actions, first + moves[actions])
    surprise = bonus.reward(first, np.full(256, 2), first + 1.5)
    assert surprise.mean() > 10 * foreseen.mean()
    start, end = bonus._white(first), bonus._white(first + moves[actions])
    guess = bonus.inverse_model(torch.cat([bonus.features(start), bonus.features(end)], dim=-1))
    assert (guess.argmax(dim=1).numpy() == actions).mean() > 0.95


def test_the_features_of_icm_learn_from_the_inverse_model_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onward.control.explore.icm.FORWARD_SHARE", 1.0)
    bonus = made("icm")
    before = copy.deepcopy(bonus.features.state_dict())
    bonus.update(*transitions((32,), 0))
    assert all(torch.equal(value, before[key]) for key, value in bonus.features.state_dict().items())


# -- all of them


@pytest.mark.parametrize("actions", [DISCRETE, MULTI, BITS, BOX], ids=lambda a: a.kind)
@pytest.mark.parametrize("layout", [VECTOR, PICTURE], ids=["vector", "pictures"])
@pytest.mark.parametrize("kind", ["count", "rnd", "icm"])
def test_a_bonus_resumes_bit_for_bit(kind: str, layout: Layout, actions: ActionSpec):
    def go_on(bonus, rounds: range) -> list[np.ndarray]:
        rewards = []
        for seed in rounds:
            if not bonus.primed:
                bonus.prime(transitions((2,), seed, layout, actions)[2])
                continue
            met = transitions((4, 2), seed, layout, actions)
            bonus.observe(*met, np.zeros((4, 2), dtype=bool))
            bonus.update(*transitions((8,), 100 + seed, layout, actions))
            rewards.append(bonus.reward(*met))
        return rewards

    def fresh():
        return made(kind, layout=layout, actions=actions, bonus_random_steps=4, bonus_features=16)

    whole = fresh()
    expected = go_on(whole, range(8))
    assert len(expected) == 6 and all(r.shape == (4, 2) and r.dtype == np.float32 for r in expected)
    first, second = (
        fresh(),
        make_bonus(
            spec(layout, actions), 2, config(kind, bonus_random_steps=4, bonus_features=16), Seeds(99)
        ),
    )
    head = go_on(first, range(5))
    assert second is not None
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    tail = go_on(second, range(5, 8))
    assert all(np.array_equal(a, b) for a, b in zip(head + tail, expected, strict=True))


def test_a_state_is_not_changed_by_what_comes_after_it():
    bonus = made("rnd")
    bonus.update(*transitions((8,), 0))
    state = bonus.state_dict()
    kept = copy.deepcopy(state)
    bonus.observe(*transitions((4, 2), 1), np.zeros((4, 2), dtype=bool))
    bonus.update(*transitions((8,), 2))
    assert torch.equal(state["learned"], kept["learned"])
    assert state["filter"]["filtered"].tolist() == kept["filter"]["filtered"].tolist()
    assert len(kept["moments"]) == 3
    assert all(torch.equal(state["moments"][name], value) for name, value in kept["moments"].items())


def test_no_bonus_is_none():
    assert make_bonus(spec(), 2, config("none"), Seeds(0)) is None


def test_what_cannot_work_is_refused_with_a_remedy():
    with pytest.raises(ControlError, match="ResizeObservation"):
        made("rnd", layout=Layout(width=0, images=(("image", (210, 160, 3)),)))
    with pytest.raises(ControlError, match="set n_step=1, or use bonus=rnd"):
        make_bonus(spec(), 2, DQNConfig(bonus="icm", n_step=3), Seeds(0))
    with pytest.raises(ControlError, match="resume with the settings"):
        made("rnd").load_state_dict(made("icm").state_dict())
    with pytest.raises(ControlError, match="same number of environments"):
        made("rnd", num=3).load_state_dict(made("rnd", num=2).state_dict())
