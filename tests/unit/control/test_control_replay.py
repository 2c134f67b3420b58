"""Replay memory: n-step windows by hand, what lies behind a cut episode, priorities, size, resume."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from onward.control.core.contract import EnvSpec, Step
from onward.control.core.replay import Replay, replay_bytes
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.core.sum_tree import SumTree
from onward.errors import ControlError

DISCRETE = EnvSpec("line", Layout(1), ActionSpec("discrete", (2,)))
BOX = EnvSpec("box", Layout(1), ActionSpec("box", low=(-2.0, 0.0), high=(2.0, 1.0)))
IMAGE = EnvSpec("image", Layout(2, (("image", (4, 4, 1)),)), ActionSpec("discrete", (2,)))
TERMINATED, TRUNCATED = "terminated", "truncated"


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def step(obs: Any, rewards: Any, end: str | None = None, final: Any = None, **more: Any) -> Step:
    """A step of one slot."""
    return Step(
        obs=column(obs),
        reward=np.array([rewards], np.float32),
        terminated=np.array([end == TERMINATED]),
        truncated=np.array([end == TRUNCATED]),
        final_obs=None if final is None else column(final),
        **more,
    )


def memory(
    n_step: int = 1, capacity: int = 16, spec: EnvSpec = DISCRETE, num: int = 1, **more: Any
) -> Replay:
    return Replay(spec, num, capacity, np.random.default_rng(0), gamma=0.5, n_step=n_step, **more)


def line(end: str | None, n_step: int) -> Replay:
    """Observations 0, 1, 2 with rewards 1, 2, 4; the third step may end the episode in 3; 10 follows."""
    replay = memory(n_step)
    obs: Any = column(0)
    for after, reward, ends in [
        (1, 1, False),
        (2, 2, False),
        (3, 4, True),
        (None, 8, False),
        (None, 16, False),
    ]:
        if ends and end:
            told = step(10, reward, end, final=3)
        elif after is None:
            told = step(float(obs[0, 0]) + 1, reward)
        else:
            told = step(after, reward)
        replay.add(obs, np.array([after is None]), told)
        obs = told.obs
    return replay


def by_start(replay: Replay) -> dict[float, tuple[float, float, float]]:
    """obs → (returns, next_obs, discount), from enough samples to have met every row."""
    batch = replay.sample(400)
    rows = zip(batch.obs[:, 0], batch.returns, batch.next_obs[:, 0], batch.discount, strict=True)
    seen: dict[float, set[tuple[float, float, float]]] = {}
    for obs, returns, following, discount in rows:
        seen.setdefault(float(obs), set()).add((float(returns), float(following), float(discount)))
    assert all(len(found) == 1 for found in seen.values())
    return {obs: found.pop() for obs, found in seen.items()}


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        # γ = 0.5. Start 0: 1 + 2/2 (+ 4/4 over three steps) …
        (None, {0: (3.0, 3, 0.125), 1: (2 + 2 + 2, 4, 0.125), 2: (4 + 4 + 4, 5, 0.125)}),
        (TERMINATED, {0: (3.0, 3, 0.0), 1: (4.0, 3, 0.0), 2: (4.0, 3, 0.0)}),
        (TRUNCATED, {0: (3.0, 3, 0.125), 1: (4.0, 3, 0.25), 2: (4.0, 3, 0.5)}),
    ],
)
def test_three_step_returns_stop_at_an_end_and_bootstrap_only_from_a_cut(
    end: str | None, expected: Any
) -> None:
    found = by_start(line(end, n_step=3))
    assert {obs: found[obs] for obs in (0, 1, 2)} == expected


def test_terminated_and_truncated_at_once_counts_as_terminated() -> None:
    replay = memory()
    both = Step(column(9), np.array([1.0], np.float32), np.array([True]), np.array([True]), column(5))
    replay.add(column(0), np.array([0]), both)
    assert by_start(replay) == {0: (1.0, 5, 0.0)}


def test_one_step_is_the_plain_transition() -> None:
    found = by_start(line(TRUNCATED, n_step=1))
    assert found == {
        0: (1, 1, 0.5),
        1: (2, 2, 0.5),
        2: (4, 3, 0.5),  # not 10, where the next episode begins
        10: (8, 11, 0.5),
        11: (16, 12, 0.5),
    }


def test_a_window_ends_at_the_newest_step_and_bootstraps_there() -> None:
    found = by_start(line(None, n_step=3))
    assert found[3] == (8 + 8, 5, 0.25)
    assert found[4] == (16, 5, 0.5)


def test_a_window_never_runs_from_the_newest_into_the_oldest_step() -> None:
    replay = memory(n_step=3, capacity=4)
    for t in range(11):
        replay.add(column(t), np.array([0]), step(t + 1, 1.0))
    assert by_start(replay) == {
        7: (1.75, 10, 0.125),
        8: (1.75, 11, 0.125),
        9: (1.5, 11, 0.25),
        10: (1.0, 11, 0.5),
    }


def test_cut_episodes_keep_their_own_last_observation_with_one_copy_of_each() -> None:
    """SB3#934, cleanrl#460. Against a slow memory that keeps both observations of every step."""
    rng = np.random.default_rng(1)
    num, capacity, n_step, gamma = 3, 21, 3, 0.5
    replay = memory(n_step, capacity, num=num)
    history: list[list[tuple[float, float, float, bool, bool]]] = [[] for _ in range(num)]
    name = iter(range(1, 10_000))
    obs = column(*(float(next(name)) for _ in range(num)))
    for _ in range(100):
        ends = rng.random(num)
        terminated, truncated = ends < 0.15, (ends >= 0.15) & (ends < 0.4)
        ended = terminated | truncated
        after = column(*(float(next(name)) for _ in range(num)))
        finals = column(*(float(next(name)) for _ in range(int(ended.sum())))) if ended.any() else None
        rewards = rng.integers(0, 8, num).astype(np.float32)
        told = Step(after, rewards, terminated, truncated, finals)
        led_to: Any = told.next_obs()
        for i in range(num):
            history[i].append((obs[i, 0], rewards[i], led_to[i, 0], terminated[i], truncated[i]))
        replay.add(obs, np.zeros(num, np.int64), told)
        obs = after
        expected = {}
        for slot in history:
            kept = slot[-(capacity // num) :]
            for start in range(len(kept)):
                returns, discount, last = 0.0, 1.0, 0.0
                for _, reward, following, is_end, is_cut in kept[start : start + n_step]:
                    returns += discount * reward
                    discount *= gamma
                    last = following
                    if is_end:
                        discount = 0.0
                    if is_end or is_cut:
                        break
                expected[float(kept[start][0])] = (returns, float(last), discount)
        found = by_start(replay)
        assert found.items() <= expected.items()
        assert len(found) == len(expected)
    # As many last observations as are needed, not one per step.
    assert len(replay._finals) <= 2 * capacity


def test_a_reset_from_outside_counts_as_a_cut() -> None:
    replay = memory(n_step=2)
    replay.add(column(0), np.array([0]), step(1, 1.0))
    replay.add(column(50), np.array([0]), step(51, 2.0))  # not 1: somebody has reset the environment
    assert by_start(replay) == {0: (1.0, 1, 0.5), 50: (2.0, 51, 0.5)}


def test_the_same_observation_in_another_array_is_no_cut() -> None:
    replay = memory(n_step=2)
    replay.add(column(0), np.array([0]), step(1, 1.0))
    replay.add(column(1), np.array([0]), step(2, 2.0))
    assert by_start(replay)[0] == (2.0, 2, 0.25)


def test_dead_slots_are_never_sampled() -> None:
    replay = memory(num=2)
    alive = np.array([True, False])
    obs = column(0, 100)
    for t in range(1, 6):
        told = Step(
            column(t, 100 + t), np.ones(2, np.float32), np.zeros(2, bool), np.zeros(2, bool), alive=alive
        )
        replay.add(obs, np.zeros(2, np.int64), told)
        obs = told.obs
    seen = set(replay.sample(400).obs[:, 0].tolist())
    assert seen == {0, 1, 2, 3, 4, 100}  # 100 was acted on alive; 101 … were not


def test_sampling_is_uniform_over_steps_and_slots() -> None:
    replay = memory(capacity=6, num=2)
    obs = column(0, 10)
    for t in range(1, 8):
        told = Step(column(t, 10 + t), np.zeros(2, np.float32), np.zeros(2, bool), np.zeros(2, bool))
        replay.add(obs, np.zeros(2, np.int64), told)
        obs = told.obs
    values, counts = np.unique(replay.sample(60_000).obs[:, 0], return_counts=True)
    assert values.tolist() == [4, 5, 6, 14, 15, 16]
    assert np.abs(counts / 60_000 - 1 / 6).max() < 0.01  # 6.5 standard deviations


def test_box_actions_are_stored_clipped_to_one() -> None:
    """hill-a#573, tianshou#601: warm-up or noise must not put actions outside −1 … 1 into the memory."""
    replay = memory(spec=BOX)
    replay.add(column(0), np.array([[-3.0, 0.25]], np.float32), step(1, 0.0))
    assert replay.sample(1).actions.tolist() == [[-1.0, 0.25]]
    assert replay.sample(1).actions.dtype == np.float32


def test_images_keep_their_bytes() -> None:
    """openai/baselines#943: float64 copies of both observations of a step eat all memory."""
    replay = memory(spec=IMAGE, capacity=8)
    rng = np.random.default_rng(0)

    def draw() -> dict[str, np.ndarray]:
        return {
            "vector": rng.random((1, 2), np.float32),
            "image": rng.integers(0, 256, (1, 4, 4, 1), np.uint8),
        }

    first, second, last, other = (draw() for _ in range(4))
    no, yes = np.array([False]), np.array([True])
    replay.add(first, np.array([0]), Step(second, np.ones(1, np.float32), no, no))
    replay.add(second, np.array([1]), Step(other, np.ones(1, np.float32), no, yes, last))
    batch = replay.sample(40)
    assert batch.obs["image"].dtype == np.uint8
    after = {0: second, 1: last}
    for i in range(40):
        for key in ("vector", "image"):
            assert np.array_equal(batch.next_obs[key][i], after[int(batch.actions[i])][key][0])
    assert isinstance(replay._obs, dict)
    held = sum(array.nbytes for array in replay._obs.values())
    assert held == (8 + 1) * (16 + 8)  # one row more than steps, one copy of each observation


def test_the_size_is_told_before_anything_is_allocated(caplog: pytest.LogCaptureFixture) -> None:
    atari = EnvSpec("atari", Layout(0, (("image", (84, 84, 4)),)), ActionSpec("discrete", (6,)))
    # 84·84·4 bytes of image, 8 of action, 4 of reward, 1 of how it ended, 4 of where its last one is
    assert replay_bytes(atari, 1_000_000) == 1_000_000 * (28_224 + 17)
    with pytest.raises(ControlError, match=r"28,241\.0 MB.*lower the buffer size to 35,409 steps or fewer"):
        Replay(atari, 1, 1_000_000, np.random.default_rng(0), memory_limit=1_000_000_000)
    with caplog.at_level(logging.INFO, "onward.control.core.replay"):
        memory(capacity=1000)
    assert "1,000 steps of 1 numbers" in caplog.text


def test_fewer_steps_than_environments_are_refused() -> None:
    with pytest.raises(ControlError, match="at least one step per environment"):
        memory(capacity=3, num=4)


def test_an_empty_memory_cannot_be_sampled() -> None:
    with pytest.raises(ControlError, match="before anything was added"):
        memory().sample(1)


def test_legal_actions_are_those_of_what_the_step_led_to() -> None:
    replay = memory()
    told = step(1, 0.0, action_mask=np.array([[True, False]]))
    replay.add(column(0), np.array([0]), told)
    ended = step(7, 0.0, TRUNCATED, final=2, action_mask=np.array([[False, True]]))
    replay.add(told.obs, np.array([0]), ended)
    batch = replay.sample(40)
    masks = {float(o): m.tolist() for o, m in zip(batch.obs[:, 0], batch.next_mask, strict=True)}
    assert masks == {0: [True, False], 1: [True, True]}  # of a last observation nobody says what is legal


def test_a_burst_is_cut_into_batches() -> None:
    replay = line(None, 1)
    burst = replay.sample(10).tensors()
    pieces = list(burst.pieces(4))
    assert [len(piece.rows) for piece in pieces] == [4, 4, 2]
    assert pieces[1].obs.tolist() == burst.obs[4:8].tolist()


# Priorities


def test_a_sum_tree_finds_the_leaf_in_which_a_mass_falls() -> None:
    tree = SumTree(5)
    tree.set(np.arange(5), np.array([1.0, 0.0, 3.0, 0.0, 2.0]))
    assert tree.total == 6
    mass = np.array([0.0, 0.99, 1.0, 3.99, 4.0, 5.99, 6.0])
    assert tree.find(mass).tolist() == [0, 0, 2, 2, 4, 4, 4]
    tree.set(np.array([2, 2]), np.array([9.0, 1.0]))  # the last one stays
    assert tree.total == 4
    assert tree.values().tolist() == [1, 0, 1, 0, 2]


def test_a_large_tree_samples_in_proportion() -> None:
    rng = np.random.default_rng(0)
    values = rng.random(1000)
    tree = SumTree(1000)
    tree.set(np.arange(1000), values)
    leaves, probability = tree.sample(200_000, rng)
    assert probability == pytest.approx(values[leaves] / values.sum())
    counts = np.bincount(leaves, minlength=1000) / 200_000
    assert np.abs(counts - values / values.sum()).max() < 1e-4  # drawn from equal parts: closer than chance


def test_priorities_and_importance_weights_by_hand() -> None:
    """Schaul et al. 2016: P(i) = pᵢ^α / Σ p^α, w = (N P(i))^−β / max w."""
    replay = memory(prioritised=True, alpha=0.5)
    for t in range(3):
        replay.add(column(t), np.array([0]), step(t + 1, 0.0))
    replay.set_priorities(np.arange(3), np.array([4.0, -1.0, 0.25]))
    # p^0.5 = 2, 1, ½ (the 1e-6 aside): P = 4/7, 2/7, 1/7; N = 3
    batch = replay.sample(70_000, beta=1.0)
    share = np.bincount(batch.rows, minlength=3) / 70_000
    assert share == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=1e-4)
    # (3 P)^−1 = 7/12, 7/6, 7/3; over the largest: ¼, ½, 1
    weights = [float(batch.weights[batch.rows == row][0]) for row in range(3)]
    assert weights == pytest.approx([0.25, 0.5, 1.0], rel=1e-5)
    half = replay.sample(7000, beta=0.5)
    assert float(half.weights[half.rows == 0][0]) == pytest.approx(0.5, rel=1e-5)


def test_new_steps_come_with_the_largest_priority_so_far() -> None:
    replay = memory(prioritised=True, alpha=1.0)
    for t in range(2):
        replay.add(column(t), np.array([0]), step(t + 1, 0.0))
    replay.set_priorities(np.array([0]), np.array([5.0]))
    replay.add(column(2), np.array([0]), step(3, 0.0))
    assert replay.state_dict()["priorities"].tolist() == pytest.approx([5, 1, 5, 0])


def test_forgotten_steps_have_no_priority() -> None:
    replay = memory(prioritised=True, capacity=4)
    for t in range(11):
        replay.add(column(t), np.array([0]), step(t + 1, 0.0))
    assert set(replay.sample(400).obs[:, 0].tolist()) == {7, 8, 9, 10}


# Resume


@pytest.mark.parametrize("steps", [3, 40])
@pytest.mark.parametrize("prioritised", [False, True])
def test_a_restored_memory_goes_on_bit_for_bit(steps: int, prioritised: bool) -> None:
    rng = np.random.default_rng(5)

    def advance(replays: list[Replay], count: int, obs: Any) -> Any:
        for _ in range(count):
            end = [None, None, TERMINATED, TRUNCATED][rng.integers(4)]
            told = step(rng.random(), rng.random(), end, rng.random() if end else None)
            for replay in replays:
                replay.add(obs.copy(), np.array([0]), told)
            obs = told.obs
        return obs

    first = memory(2, 10, prioritised=prioritised)
    obs = advance([first], steps, column(0))
    if prioritised:
        first.set_priorities(np.arange(3), np.array([1.0, 2.0, 3.0]))
    second = memory(2, 10, prioritised=prioritised)
    second.load_state_dict(first.state_dict())
    advance([first, second], 25, obs)
    assert len(first) == len(second)
    one, other = first.sample(64), second.sample(64)
    for name, value in vars(one).items():
        assert value is None or np.array_equal(value, getattr(other, name)), name


def test_the_state_of_another_size_is_refused() -> None:
    big = memory(capacity=20)
    obs = column(0)
    for t in range(20):
        big.add(obs, np.array([0]), step(t + 1, 0.0))
    with pytest.raises(ControlError, match="the same buffer size"):
        memory(capacity=4).load_state_dict(big.state_dict())
