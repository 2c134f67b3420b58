"""Comparison: settings are translated word for word, actors agree, the table says what was not reached; the
commands eval and export."""

from __future__ import annotations

import inspect
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stable_baselines3 as sb3
from docs_blocks import run_command

import control_results as results
import control_vs_peers as peers
from onward.cli.control_evaluate import _over_seeds, _words
from onward.control import comparison
from onward.control.comparison import ModelActor, Outcome, equal_settings, translated
from onward.control.core.config import CONFIGS
from onward.control.core.spaces import ActionSpec, Layout
from onward.control.evaluation.assess import Assessment, Score
from onward.control.policies.policy import Layer, Policy, PolicyParts
from onward.control.running.runs import Folder
from onward.errors import ControlError


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


def outcome(seconds: float, reached: float | None) -> Outcome:
    return Outcome("x", 1000, seconds, seconds / 2, reached, None, 400.0, 0.5)


def test_ratios_of_a_case_by_hand() -> None:
    found = peers.row(peers.Case("CartPole-v1", "ppo", 1000), {
        "onward": [outcome(1.0, 0.5), outcome(1.0, 1.5)],
        "stable-baselines3": [outcome(4.0, 3.0), outcome(4.0, 3.0)],
    })  # fmt: skip
    assert (found["ratio"], found["cpu_ratio"], found["ratio_to_threshold"]) == (4.0, 4.0, 3.0)
    missed = peers.summary([outcome(1.0, 0.5), outcome(1.0, None)])
    assert (missed["seconds_to_threshold"], missed["reached"]) == (None, "1 of 2")


def test_what_a_case_lost_is_said() -> None:
    case = peers.Case("CartPole-v1", "ppo", 1000)
    slow, poor = outcome(2.0, 2.0), Outcome("x", 1000, 1.0, 0.5, 1.0, None, 400.0, 0.9)
    assert peers.lost(peers.row(case, {"onward": [slow], "stable-baselines3": [poor]})) == [
        "ppo on CartPole-v1 is slower (0.5 of their steps/s)",
        "ppo on CartPole-v1 comes to the threshold later (0.5)",
        "ppo on CartPole-v1 succeeds less often (0.5 / 0.9)",
    ]
    assert peers.lost(peers.row(case, {"onward": [poor], "stable-baselines3": [slow]})) == []
    missed = peers.row(case, {"onward": [poor, outcome(1.0, None)], "stable-baselines3": [poor, poor]})
    assert peers.lost(missed)[0] == "ppo on CartPole-v1 reaches the threshold less often (1 of 2 / 2 of 2)"


def test_sections_that_are_not_run_stay_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "result.json"
    case = peers.Case("CartPole-v1", "ppo", 1000, 5)
    raced: list[tuple[int, bool]] = []

    def side(race: comparison.Race) -> Outcome:
        raced.append((race.seed, race.stop))
        return outcome(1.0, 0.5)

    monkeypatch.setattr(peers, "SIDES", {"onward": side, "stable-baselines3": side})
    monkeypatch.setattr(peers, "FULL", (case,))
    monkeypatch.setattr(peers, "CLEANRL", (case,))
    for only in ("equal", "cleanrl"):
        monkeypatch.setattr("sys.argv", ["x", "--json", str(file), "--only", only, "--seeds", "4"])
        peers.main()
    found = json.loads(file.read_text())
    assert [len(found[f"{name} settings"]) for name in ("equal", "cleanrl")] == [1, 1]
    assert found["ratio"] == {"ppo CartPole-v1": 1.0}
    told = file.with_suffix(".md").read_text()
    row = "| ppo on CartPole-v1 | 1,000 / 1,000 | 1 | 1 | 0.5 / 0.5 | 1 | 4 of 4 / 4 of 4 | 0.5 / 0.5 |"
    assert told.count(row) == 2 and told.endswith("Nowhere here.\n")
    file.write_text(json.dumps({**found, "machine": {**found["machine"], "cores": 1000}}))
    with pytest.raises(SystemExit, match=r"of another machine .*: give another file"):
        peers.main()
    assert raced[::2] == [(seed, seed >= 3) for seed in range(4)] * 2
    assert capsys.readouterr().out.count("ppo on CartPole-v1, 1,000 steps at most") == 2


def test_each_side_may_try_as_often() -> None:
    for trials in peers.TRIALS.values():
        assert len(trials["onward"]) == len(trials["stable-baselines3"])
    for (env, algorithm), trials in peers.TRIALS.items():
        for changes in trials["stable-baselines3"]:
            translated(peers.changed(peers.Case(env, algorithm, 1000), changes, 0).settings)


# The table of results.


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
    race = peers.race("CartPole-v1", "ppo", 2048, 0)
    for side in (comparison.ours, comparison.stable_baselines3):
        found = side(race)
        assert found.steps >= 2048 and found.seconds > 0
        assert math.isfinite(found.final_mean) and found.final_mean > 8
        assert [step for step, _, _ in found.curve] == sorted(step for step, _, _ in found.curve)


def test_an_interrupted_run_is_no_cell(tmp_path):
    """It has a summary and a policy too: what is half trained must not be judged."""
    run = results.Group("CartPole-v1", "ppo", 1).run(0)
    folder = Folder.of(tmp_path / results.digest(run), run)
    assert not results.finished(run, tmp_path)
    folder.path.mkdir(parents=True)
    for end, wanted in (("interrupted", False), ("finished", True), ("solved", True)):
        folder.summary.write_text(json.dumps({"end": end}))
        assert results.finished(run, tmp_path) is wanted
