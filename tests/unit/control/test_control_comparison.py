"""Comparison: settings are translated word for word, actors agree, the table says what was not reached; the
commands eval and export."""

from __future__ import annotations

import inspect
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3 as sb3
from docs_blocks import run_command

import control_results as results
import control_vs_peers as peers
from control_peers_page import lost
from onward.cli.control_evaluate import _over_seeds, _words
from onward.control import comparison
from onward.control.comparison import ModelActor, Outcome, equal_settings, translated
from onward.control.core.config import CONFIGS
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.evaluation.assess import Assessment, Score
from onward.control.peer_settings import translated_for_sbx
from onward.control.policies.policy import Layer, Policy, PolicyParts
from onward.control.running.runs import Folder
from onward.errors import ControlError, MissingExtraError


def test_the_zoos_cart_pole_settings_in_their_words() -> None:
    ppo = translated(equal_settings("sb3", "ppo", "CartPole-v1"))
    assert (ppo["n_steps"], ppo["batch_size"], ppo["n_epochs"]) == (32, 256, 20)
    assert (ppo["learning_rate"](1.0), ppo["learning_rate"](0.25)) == (1e-3, 2.5e-4)
    assert ppo["clip_range"](0.5) == pytest.approx(0.1)
    assert ppo["policy_kwargs"]["net_arch"] == [64, 64]
    dqn = translated(equal_settings("sb3", "dqn", "CartPole-v1"))
    assert (dqn["train_freq"], dqn["gradient_steps"], dqn["target_update_interval"]) == (256, 128, 10)
    sac = translated(equal_settings("sb3", "sac", "Pendulum-v1"))
    assert (sac["learning_rate"], sac["ent_coef"], sac["policy_kwargs"]["net_arch"]) == (
        1e-3, "auto", [256, 256]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("num_envs", "train_every", "gradient_steps", "theirs"),
    [(1, 4, 2, (4, 2)), (8, 16, 4, (2, 4)), (8, 8, 4, (1, 4)), (4, 1, 1, (1, 4)), (8, 4, 3, (1, 6)),
     (4, 1, -1, (1, -1))],
)  # fmt: skip
def test_both_sides_take_as_many_gradient_steps_per_step(
    num_envs: int, train_every: int, gradient_steps: int, theirs: tuple[int, int]
) -> None:
    config = CONFIGS["sac"](num_envs=num_envs, train_every=train_every, gradient_steps=gradient_steps)
    words = translated(config)
    assert (words["train_freq"], words["gradient_steps"]) == theirs


@pytest.mark.parametrize("algorithm", comparison.PEERS)
def test_every_translated_word_is_theirs(algorithm: str) -> None:
    known = inspect.signature(getattr(sb3, algorithm.upper()).__init__).parameters
    for peer in ("sb3", "cleanrl"):
        assert set(translated(equal_settings(peer, algorithm, "CartPole-v1"))) <= set(known)


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [("dqn", {}), ("dqn", {"double": False, "dueling": True}), ("ppo", {"layer_norm": True}), ("ddpg", {}),
     ("sac", {"action_noise": "ou"})],
)  # fmt: skip
def test_what_they_do_not_have_is_refused(algorithm: str, changes: dict[str, Any]) -> None:
    with pytest.raises(ControlError, match=r"stable-baselines3('s DQN)? (has no|has neither|is given no)"):
        translated(CONFIGS[algorithm](**changes))


def test_a_peers_box_action_is_scaled_back() -> None:
    class Model:
        def predict(self, obs: Any, deterministic: bool) -> tuple[Any, None]:
            return np.array([[-2.0, 0.0], [6.0, 2.5]], np.float32), None

    spec = ActionSpec("box", low=(-2.0, 0.0), high=(6.0, 5.0), shape=(2,))
    assert ModelActor(Model(), spec, None).act_flat(np.zeros((2, 1))).tolist() == [[-1, -1], [1, 0]]


CASE = peers.Case("CartPole-v1", "ppo", 1000, 4)
CELLS = peers.equal("equal", [CASE], 100, "sb3")
SPEED = {"onward": 4.0, "stable-baselines3": 1.0, "stable-baselines3, flushed": 2.0, "SBX": 5.0}


def measured(cells: list[Any], **changes: Any) -> dict[str, Any]:
    """Results in which a side takes 1000 / its speed processor seconds, and half of them to the threshold;
    the last seed takes ten times as long."""
    found = {}
    for cell in cells:
        seconds = 1000 / SPEED[cell.side] * (10 if cell.seed == 3 else 1)
        outcome = Outcome(
            cell.side, 1000, 2 * seconds, seconds, seconds, 500, 400.0, 0.5,
            cpu_seconds_to_threshold=seconds / 2,
        ).as_dict()  # fmt: skip
        found[cell.key] = {"digest": cell.digest, "outcome": {**outcome, **changes.get(cell.side, {})}}
    return found


def test_ratios_are_of_medians_of_processor_time_against_each_peer() -> None:
    row = peers.row(CELLS, measured(CELLS))
    assert {side: values["steps_per_cpu_second"] for side, values in row["sides"].items()} == SPEED
    assert row["sides"]["onward"]["cpu_seconds_to_threshold"] == 125.0  # not 387.5, the mean
    assert row["ratios"] == {"stable-baselines3": 4.0, "stable-baselines3, flushed": 2.0, "SBX": 0.8}
    assert row["ratios_to_threshold"] == row["ratios"]


def test_speed_is_that_of_the_seeds_that_are_trained_to_the_end() -> None:
    """Steps per processor second 4, 3, 2 of whole runs, and 100 of the many that stop at the threshold."""
    case = peers.Case("CartPole-v1", "ppo", 1000, 15)

    def summary(planned: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for cell in planned:
            speed = {0: 4.0, 1: 3.0, 2: 2.0}.get(cell.seed, 100.0)
            seconds = 1000 / speed
            outcome = Outcome(cell.side, 1000, seconds, seconds, seconds, 1, 0.0, 0.5).as_dict()
            found[cell.key] = {"digest": cell.digest, "outcome": outcome}
        return peers.row(planned, found)["sides"]["onward"]

    equal = summary(peers.equal("equal", [case], 100, "sb3"))
    assert (equal["steps_per_cpu_second"], equal["steps_per_second"]) == (3.0, 3.0)
    stopped = [replace(cell, stop=True) for cell in peers.equal("best", [case], 100, "sb3")]
    assert summary(stopped)["steps_per_cpu_second"] == 100.0  # there all of them stop


def test_a_seed_that_never_comes_to_the_threshold_counts_as_the_slowest() -> None:
    cells = measured(CELLS)
    for seed in (0, 1):
        cells[f"equal/ppo on CartPole-v1/onward/{seed}"]["outcome"]["cpu_seconds_to_threshold"] = None
    found = peers.row(CELLS, cells)
    assert found["sides"]["onward"]["cpu_seconds_to_threshold"] is None  # between 1250 and never
    assert found["sides"]["onward"]["reached"] == 2 and found["ratios_to_threshold"]["SBX"] is None


def test_what_a_case_lost_is_said() -> None:
    cells = measured(CELLS, **{"SBX": {"final_success": 0.9}})
    assert lost(peers.row(CELLS, cells)) == [
        "ppo on CartPole-v1 beside SBX is slower (0.8 × its steps per processor second)",
        "ppo on CartPole-v1 beside SBX comes to the threshold later (0.8)",
        "ppo on CartPole-v1 beside SBX succeeds less often (0.5 / 0.9)",
    ]
    cells["equal/ppo on CartPole-v1/onward/0"]["outcome"]["cpu_seconds_to_threshold"] = None
    assert "ppo on CartPole-v1 beside SBX reaches the threshold less often (3 / 4)" in lost(
        peers.row(CELLS, cells)
    )


def test_a_benchmark_that_was_stopped_goes_on_and_names_a_peer_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, raced = tmp_path / "result.json", list[tuple[str, int, bool]]()

    def side_of(name: str) -> Any:
        def side(race: comparison.Race) -> Outcome:
            if name == "SBX":
                raise MissingExtraError("sbx", "Comparing with SBX")
            if len(raced) == 4:
                raise KeyboardInterrupt
            raced.append((name, race.seed, race.stop))
            return Outcome(name, 1000, 2.0, 1.0, 1.0, 500, 400.0, 0.5, cpu_seconds_to_threshold=0.5)

        return side

    monkeypatch.setattr(peers, "SIDES", {name: side_of(name) for name in peers.SIDES})
    monkeypatch.setattr(peers, "FULL", (CASE,))
    monkeypatch.setattr(peers, "CLEANRL", (CASE,))
    monkeypatch.setattr("sys.argv", ["x", "--json", str(file), "--only", "equal"])
    with pytest.raises(KeyboardInterrupt):
        peers.main()
    first = list(raced)
    raced.append(("the next session", 0, False))
    peers.main()
    measured_now = first + raced[5:]
    assert sorted(measured_now) == sorted(
        (name, seed, seed >= 3) for seed in range(4) for name in peers.SIDES if name != "SBX"
    )
    monkeypatch.setattr("sys.argv", ["x", "--json", str(file), "--only", "cleanrl"])
    peers.main()
    said = file.with_suffix(".md").read_text()
    line = "| ppo on CartPole-v1 | stable-baselines3, flushed | 1,000 | 1 | 0.5 | 1 | 4 of 4 | 0.5 |"
    assert said.count(line) == 2 and "Not measured: Comparing with SBX needs the optional part 'sbx'" in said
    assert said.endswith("Nowhere here.\n") and said in capsys.readouterr().out
    found = json.loads(file.read_text())
    file.write_text(json.dumps({**found, "machine": {**found["machine"], "cores": 1000}}))
    with pytest.raises(SystemExit, match=r"of another machine .*: give another file"):
        peers.main()


def test_the_best_trial_is_measured_once_every_trial_was() -> None:
    case = peers.Case("Pendulum-v1", "sac", 1000, 2)
    tried = peers.trials([case])
    assert peers.best([case], 100, {}) == []
    cells = {
        cell.key: {
            "digest": cell.digest,
            "outcome": {
                "cpu_seconds": 9.0,
                "cpu_seconds_to_threshold": None if cell.trial == 0 else cell.trial,
            },
        }
        for cell in tried
    }
    assert peers.chosen(case, "onward", cells) == 1
    final = peers.best([case], 100, cells)
    assert {cell.race.settings.hidden for cell in final} == {(64, 64)}
    assert {cell.seed for cell in final} == {0, 1} and {cell.seed for cell in tried} == {1000, 1001}


def test_each_side_may_try_as_often() -> None:
    for trials in peers.TRIALS.values():
        assert len(trials["onward"]) == len(trials["stable-baselines3"])
    for cell in peers.trials(peers.BEST):
        if cell.side == "stable-baselines3":
            translated(cell.race.settings)


def test_no_peer_draws_and_denormals_are_flushed_only_where_that_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a render mode LunarLander keeps a body for every engine firing: ours seemed 9.8 × as fast."""
    import stable_baselines3.common.env_util as util
    import torch

    modes: list[Any] = []
    flushed: list[bool] = []
    made = util.make_vec_env

    def watched(*given: Any, **named: Any) -> Any:
        env = made(*given, **named)
        modes.extend(env.get_attr("render_mode"))
        return env

    def learn(self: Any, *given: Any, **named: Any) -> None:
        flushed.append(float(torch.tensor([1e-30]) * 1e-9) == 0.0)

    monkeypatch.setattr(util, "make_vec_env", watched)
    monkeypatch.setattr(sb3.PPO, "learn", learn)
    race = replace(peers.Cell("equal", CASE, "onward", 0).race, check_episodes=1)
    monkeypatch.setattr(comparison, "EPISODES", 1)
    torch.set_flush_denormal(True)  # as a process that trained with ours may be
    try:
        names = [comparison.SIDES[name](race).side for name in list(comparison.SIDES)[1:3]]
    finally:
        torch.set_flush_denormal(False)
    assert names == ["stable-baselines3", "stable-baselines3, flushed"]
    assert set(modes) == {None} and flushed == [False, True]


def test_sbx_gets_our_settings_without_those_that_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Linen:
        tanh, relu = "tanh of flax", "relu of flax"

    monkeypatch.setitem(sys.modules, "flax.linen", Linen)
    ppo = translated_for_sbx(equal_settings("sb3", "ppo", "CartPole-v1"))
    assert ppo["policy_kwargs"]["activation_fn"] == "tanh of flax"
    assert not {"clip_range_vf", "target_kl"} & ppo.keys()
    dqn = translated_for_sbx(equal_settings("sb3", "dqn", "CartPole-v1"))
    assert "max_grad_norm" not in dqn and dqn["policy_kwargs"]["net_arch"] == [256, 256]
    for algorithm, changes, why in (
        ("dqn", {"double": False, "hidden": (120, 84)}, "two hidden layers of one size"),
        ("dqn", {"double": False, "lr_schedule": "linear", "hidden": (64, 64)}, "one learning rate"),
        ("ppo", {"value_clip": 0.2}, "clips no values"),
    ):
        with pytest.raises(ControlError, match=why):
            translated_for_sbx(CONFIGS[algorithm](**changes))


# The table of results.


def test_every_published_cell_is_of_the_present_settings() -> None:
    """A new field of a run must not make the results of many hours stale."""
    published = json.loads((results.RESULTS / "control.json").read_text())["cells"]
    assert published and results.missing(results.GROUPS, published) == []


def results_cell(mean: float, solved: int | None, digest: str = "d") -> dict[str, Any]:
    score = {"mean": mean, "success": 0.95, "ratio": 0.9}
    judged = {"clean": score, "random": {"mean": 20.0}, "noise": score, "transfer_ratio": 0.7, "rule": "r"}
    return {
        "digest": digest, "preset": "zoo", "timesteps": 100, "hours": 0.1, "assessment": judged,
        "solved": None if solved is None else {"episode": solved},
    }  # fmt: skip


def test_a_row_of_the_table_by_hand() -> None:
    group = results.Group("CartPole-v1", "ppo", 5)
    own = [results_cell(mean, 300 + 10 * i) for i, mean in enumerate([480, 490, 500, 500, 500])]
    row = results.row(group, own)
    assert row["return_iqm"][0] == pytest.approx((490 + 500 + 500) / 3)
    assert row["episodes_to_solve"] == 320
    assert row["variation"] == pytest.approx(np.std([480, 490, 500, 500, 500], ddof=1) / 494)
    assert row["variation_interval"] is not None
    assert row["not_reached"] == ["≥ 80 % transfer"]
    assert "| CartPole-v1/ppo | zoo, 100 | 5 | 496.7" in results.line(row)


def test_what_was_not_reached_or_measured_is_said() -> None:
    group = results.Group("CartPole-v1", "ppo", 3)
    own = [results_cell(480, 300), results_cell(200, None)]
    row = results.row(group, own)
    assert row["variation_interval"] is None
    assert row["not_reached"] == [
        "solved in < 10,000 episodes (1 of 2 seeds)",
        "< 10 % variation",
        "≥ 80 % transfer",
        "1 of 3 seeds not trained yet",
    ]


def test_a_cut_table_goes_on_where_it_was() -> None:
    group = results.Group("CartPole-v1", "ppo", 3)
    cells = {results.key(group.run(1)): results_cell(1.0, 1, results.digest(group.run(1)))}
    [(found, runs)] = results.missing([group], cells)
    assert (found, [run.seed for run in runs]) == (group, [0, 2])
    cells[results.key(group.run(1))]["digest"] = "of other settings"
    assert [run.seed for run in results.missing([group], cells)[0][1]] == [0, 1, 2]


def test_cells_of_other_settings_are_not_in_the_table_and_what_is_missing_is_named(tmp_path: Path) -> None:
    group = results.Group("CartPole-v1", "ppo", 2)
    now = {results.key(group.run(0)): results_cell(500.0, 1, results.digest(group.run(0)))}
    results.write(tmp_path / "t.json", now, [group])
    results.write(tmp_path / "t.json", {results.key(group.run(1)): results_cell(1.0, 1, "other")}, [group])
    document = json.loads((tmp_path / "t.json").read_text())
    assert len(document["cells"]) == 2  # what another process wrote meanwhile is kept
    assert [row["seeds"] for row in document["rows"]] == [1]
    assert "by the same command: CartPole-v1/ppo (1 of 2 seeds)." in (tmp_path / "t.md").read_text()


def test_every_group_of_the_table_has_a_preset() -> None:
    for group in results.GROUPS:
        assert group.run(0).preset in ("ours", "zoo")


# Commands.


@pytest.fixture
def run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    lean = Layer(np.array([[0, 0, 0, 0], [0.1, 0.5, 1, 1]], np.float32), np.zeros(2, np.float32))
    parts = PolicyParts(Layout(4), ActionSpec("discrete", (2,), start=(0,)), "q", [lean])
    Policy(parts, "CartPole-v1").save(tmp_path / "run" / "policy")
    return tmp_path / "run"


def test_eval_prints_scores_and_statistics(run_folder: Path) -> None:
    code, said = run_command("onward control eval run run --episodes 4 --no-variants")
    assert code == 0
    assert "success: return ≥ 475" in said and "500.00" in said and "100%" in said
    assert "interquartile mean of the returns: 500" in said and "coefficient of variation: 0 %" in said


def test_eval_as_json(run_folder: Path) -> None:
    code, said = run_command("onward control eval run run run run run --episodes 2 --no-variants --json")
    found = json.loads(said)
    assert code == 0 and len(found["policies"]) == 5
    assert found["policies"][0]["clean"]["mean"] == 500.0
    assert found["over_seeds"] == {"seeds": 5, "iqm": [500.0] * 3, "variation": [0.0] * 3}


def test_a_spread_around_a_mean_of_0_is_null_not_infinity() -> None:
    def judged(mean: float) -> Assessment:
        clean, random = Score("clean", mean, 0.0, 1.0, None), Score("random policy", -5.0, 0.0, 1.0, None)
        return Assessment("Some-v0", 100, 0, "", clean, random, None, "", ())

    together = _over_seeds([judged(-1.0), judged(1.0)])
    assert json.loads(json.dumps(together, allow_nan=False)) == {"seeds": 2, "iqm": [0.0], "variation": None}
    assert list(_words(together))[-1] == "  coefficient of variation: not defined around a mean of 0"


def test_export_writes_the_files(run_folder: Path) -> None:
    pytest.importorskip("onnx")
    code, said = run_command("onward control export run --out out")
    assert code == 0
    assert [line.split()[0] for line in said.splitlines()] == [
        "out/policy.json", "out/policy.onnx", "out/policy.safetensors"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("eval nowhere", "No policy lies in nowhere"),
        ("eval run --env Pendulum-v1", "takes 4 numbers, Pendulum-v1 gives 3"),
        ("export nowhere", "No policy lies in nowhere"),
        ("compare CartPole-v1 --peer rllib", "There is no peer 'rllib'"),
        ("compare CartPole-v1 --algorithm a3c", "There is no peer with a3c"),
    ],
)
def test_bad_input_is_one_sentence(command: str, words: str, run_folder: Path) -> None:
    code, said = run_command(f"onward control {command}")
    assert code == 2
    assert words in said and len(said.splitlines()) == 1


@pytest.mark.long
def test_both_sides_run_a_short_race() -> None:
    race = peers.Cell("equal", peers.Case("CartPole-v1", "ppo", 2048, looks=4), "onward", 0).race
    for side in (comparison.ours, comparison.stable_baselines3):
        found = side(race)
        assert found.steps >= 2048 and found.seconds > 0
        assert math.isfinite(found.final_mean) and found.final_mean > 8
        assert [look.step for look in found.curve] == sorted(look.step for look in found.curve)


def test_an_interrupted_run_is_no_cell(tmp_path):
    """It has a summary and a policy too: what is half trained must not be judged."""
    run = results.Group("CartPole-v1", "ppo", 1).run(0)
    folder = Folder.of(tmp_path / results.digest(run), run)
    assert not results.finished(run, tmp_path)
    folder.path.mkdir(parents=True)
    for end, wanted in (("interrupted", False), ("finished", True), ("solved", True)):
        folder.summary.write_text(json.dumps({"end": end}))
        assert results.finished(run, tmp_path) is wanted
