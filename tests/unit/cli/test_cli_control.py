"""The command line of control policies: what it makes, what it refuses, and how it stops and goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onward.cli import main
from onward.cli.control_display import outcome, told
from onward.control.running import checkpoint, curves, presets
from onward.control.running.log import read_rows
from onward.control.running.runs import Folder
from onward.errors import install_command, program

pytestmark = pytest.mark.slow

SMALL = ["--set", "hidden=16", "--set", "n_steps=32", "--set", "epochs=2", "--set", "batch_size=64",
         "--preset", "default", "--set", "num_envs=4"]  # fmt: skip


@pytest.fixture
def pictures() -> None:
    """Lets the runs of a test draw their curves, which takes most of a short run's time."""


@pytest.fixture(autouse=True)
def _drawn_where_wanted(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    if "pictures" not in request.fixturenames:
        monkeypatch.setattr(curves, "draw", lambda folders, picture: picture)


def onward(*arguments: str) -> int:
    """Exit code of the command in this process."""
    with pytest.raises(SystemExit) as left:
        main(["control", *arguments])
    code = left.value.code
    return code if isinstance(code, int) else 0 if code is None else 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["CartPole-v1", "--algorithm", "ppp"], "There is no algorithm 'ppp': choose one of q_learning"),
        (["CartPole-v1", "--algorithm", "ppo", "--preset", "best"], "There is no preset 'best' for ppo"),
        (["CartPole-v1", "--algorithm", "ppo", "--set", "clp=1"], "did you mean clip?"),
        (["CartPole-v1", "--algorithm", "ppo", "--set", "clip=-1"], "--set clip=-1: give a number greater"),
        (["CartPole-v9", "--algorithm", "ppo"], "CartPole-v9"),
        (["NoSuch-v0", "--algorithm", "ppo"], "NoSuch"),
        (["CartPole-v1", "--algorithm", "ppo", "--set", "lr=1"], "did you mean learning_rate?"),
        (["CartPole-v1", "--algorithm", "sac"],
         "sac cannot learn CartPole-v1, which takes discrete actions: use reinforce or dqn or ppo or a3c."),
        (["CartPole-v1", "--algorithm", "q_learning"],
         "q_learning cannot learn CartPole-v1, which gives numbers that are measured, not counted"),
        (["Pendulum-v1", "--algorithm", "dqn"],
         "dqn cannot learn Pendulum-v1, which takes box actions: use reinforce or ppo or a3c or sac or ddpg"),
        (["CartPole-v1", "--algorithm", "ppo", "--env-set", "length"], "--env-set length: give NAME=VALUE"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence_and_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert onward("train", *arguments, "--out", str(tmp_path / "runs")) == 2
    told = capsys.readouterr()
    assert sentence in told.err
    assert told.err.strip().count("\n") == 0
    assert not (tmp_path / "runs").exists()


def test_a_run_leaves_everything_it_promises(
    tmp_path: Path, pictures: None, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "CartPole-v1", "--algorithm", "ppo", *SMALL, "--timesteps", "640", "--seed", "3"]
    assert onward(*arguments, "--out", str(tmp_path)) == 0
    folder = tmp_path / "CartPole-v1-ppo-seed3"
    names = {path.name.split(".tfevents")[0] for path in folder.iterdir()}
    assert names == {
        ".lock", "config.json", "metrics.csv", "events.out", "checkpoint", "policy", "summary.json",
        "curves.png", "curves-dark.png",
    }  # fmt: skip
    run = Folder(folder).read()
    assert (run.seed, run.preset, run.timesteps, run.settings.as_dict()["hidden"]) == (
        3,
        "default",
        640,
        [16],
    )
    assert read_rows(folder / "metrics.csv")[-1]["step"] == 640
    text = capsys.readouterr().out
    assert "ppo on CartPole-v1, preset default, 640 steps at most." in text
    assert "100 greedy episodes on unseen seeds" in text
    assert onward(*arguments, "--out", str(tmp_path)) == 2
    said = capsys.readouterr().err.replace(program(), "onward")
    assert "already holds a run: go on with it by 'onward control resume " in said
    assert onward("resume", str(folder)) == 2
    assert "is finished: give --timesteps" in capsys.readouterr().err
    assert onward("resume", str(folder), "--timesteps", "512") == 2
    assert "is at step 640 already: give it a later end than 512" in capsys.readouterr().err
    assert onward("resume", str(folder), "--timesteps", "768", "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert events[0]["event"] == "started"
    assert events[0]["step"] == 640
    assert (events[-1]["event"], events[-1]["summary"]["steps"]) == ("done", 768)
    assert Folder(folder).read().timesteps == 768  # for the resume after a stop on the way there


def test_a_solved_run_goes_on_to_a_later_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["CartPole-v1", "--algorithm", "ppo", *SMALL, "--timesteps", "6400", "--threshold", "1"]
    assert onward("train", *arguments, "--out", str(tmp_path)) == 0
    folder = tmp_path / "CartPole-v1-ppo-seed0"
    steps = json.loads(Folder(folder).summary.read_text())["steps"]
    assert onward("resume", str(folder)) == 2
    assert "is solved: give --timesteps" in capsys.readouterr().err
    assert onward("resume", str(folder), "--timesteps", str(steps + 256)) == 0
    summary = json.loads(Folder(folder).summary.read_text())
    assert (summary["end"], summary["steps"]) == ("finished", steps + 256)


def test_what_belongs_to_the_run_reaches_it(tmp_path: Path) -> None:
    """A preset's own fields of the run, and what is given above them."""
    small = ["--set", "hidden=8", "--set", "batch_size=8", "--set", "gradient_steps=1"]
    dqn = ["train", "MountainCar-v0", "--algorithm", "dqn", *small, "--timesteps", "64", "--out"]
    more = ["--keep-going", "--obs-noise", "0.3", "--eval-every", "32"]
    assert onward(*dqn, str(tmp_path / "ours")) == 0
    assert onward(*dqn, str(tmp_path / "other"), *more) == 0
    ours, other = (Folder(tmp_path / name / "MountainCar-v0-dqn-seed0").read() for name in ("ours", "other"))
    tuned = presets.OURS["dqn"]["MountainCar-v0"].run
    assert {"solve_success", "eval_episodes", "eval_every"} <= tuned.keys()
    assert {name: vars(ours)[name] for name in tuned} == tuned
    assert (ours.preset, ours.stop_when_solved) == ("ours", True)
    assert (other.solve_success, other.stop_when_solved) == (tuned["solve_success"], False)
    assert (other.obs_noise, other.eval_every) == (0.3, 32)


def test_what_is_asked_for_comes_before_what_a_preset_says_of_the_run(tmp_path: Path) -> None:
    """The preset says how often to look, too."""
    dqn = ["train", "MountainCar-v0", "--algorithm", "dqn", "--timesteps", "64", "--out"]
    assert onward(*dqn, str(tmp_path / "preset")) == 0
    assert onward(*dqn, str(tmp_path / "asked"), "--eval-every", "50", "--threshold", "-150") == 0
    runs = [Folder(tmp_path / name / "MountainCar-v0-dqn-seed0").read() for name in ("preset", "asked")]
    assert runs[0].eval_every not in (None, 50)
    assert (runs[1].eval_every, runs[1].threshold, runs[1].preset) == (50, -150.0, "ours")


def test_a_run_is_judged_in_the_environment_that_it_was_trained_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Episodes of ten steps at most, in variants too; a policy alone does not know, and can be told."""
    arguments = ["train", "CartPole-v1", "--algorithm", "ppo", *SMALL, "--timesteps", "256"]
    assert onward(*arguments, "--env-set", "max_episode_steps=9", "--out", str(tmp_path)) == 0
    folder = tmp_path / "CartPole-v1-ppo-seed0"
    assert onward("export", str(folder), "--out", str(tmp_path / "alone"), "--no-onnx") == 0

    def lengths(*more: str) -> set[float]:
        capsys.readouterr()
        assert onward("eval", *more, "--episodes", "4", "--json") == 0
        (judged,) = json.loads(capsys.readouterr().out)["policies"]
        return {score["length"] for score in (judged["clean"], judged["noise"], *judged["transfer"])}

    assert max(lengths(str(folder)) | lengths(str(folder / "policy"))) <= 9
    assert max(lengths(str(tmp_path / "alone"))) > 9
    assert max(lengths(str(tmp_path / "alone"), "--env-set", "max_episode_steps=7")) <= 7


def test_a_damaged_state_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["CartPole-v1", "--algorithm", "ppo", *SMALL, "--timesteps", "128", "--out", str(tmp_path)]
    assert onward("train", *arguments) == 0
    folder = tmp_path / "CartPole-v1-ppo-seed0"
    state = Folder(folder).state
    state.write_bytes(state.read_bytes()[:-5])
    capsys.readouterr()
    assert onward("resume", str(folder), "--timesteps", "256") == 2
    error = capsys.readouterr().err
    assert "is damaged (cut off or changed)" in error
    assert error.strip().count("\n") == 0
    assert onward("resume", str(tmp_path)) == 2
    assert "holds no run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("summary.json", "goes on without its summary.json: summary.json cannot be read"),
        ("metrics.csv", "metrics.csv is damaged"),
        ("config.json", "config.json cannot be read"),
    ],
)
def test_a_damaged_file_of_a_run_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, sentence: str
) -> None:
    arguments = ["CartPole-v1", "--algorithm", "ppo", *SMALL, "--timesteps", "128", "--out", str(tmp_path)]
    assert onward("train", *arguments) == 0
    folder = tmp_path / "CartPole-v1-ppo-seed0"
    (folder / file).write_text("step,return\n1,one\n")
    capsys.readouterr()
    assert onward("resume", str(folder), "--timesteps", "256") == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.strip().count("\n") == 0


def test_what_is_no_folder_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    small = ["train", "CartPole-v1", "--algorithm", "ppo", *SMALL, "--timesteps", "128"]
    for out in ("file", "file/below"):
        assert onward(*small, "--out", str(tmp_path / out)) == 2
        assert "cannot be made (Not a directory): give one that may" in capsys.readouterr().err
    assert onward(*small, "--out", str(tmp_path)) == 0
    policy = str(tmp_path / "CartPole-v1-ppo-seed0")
    capsys.readouterr()
    assert onward("export", policy, "--out", str(tmp_path / "file")) == 2
    assert "cannot be made (File exists)" in capsys.readouterr().err
    assert onward("eval", policy, "--threshold", "nan", "--episodes", "2") == 2
    assert "The threshold of success is nan: give a finite number" in capsys.readouterr().err


def test_a_race_that_no_side_can_run_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert onward("compare", "Pendulum-v1", "--algorithm", "dqn", "--timesteps", "100") == 2
    assert "dqn cannot learn Pendulum-v1, which takes box actions" in capsys.readouterr().err
    assert onward("compare", "CartPole-v1", "--threshold", "nan") == 2
    assert "give --threshold, a finite number" in capsys.readouterr().err


def test_several_seeds_run_in_processes_of_their_own(
    tmp_path: Path, pictures: None, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["CartPole-v1", "--algorithm", "ppo", *SMALL, "--timesteps", "256", "--seeds", "2"]
    assert onward("train", *arguments, "--out", str(tmp_path)) == 0
    for seed in (0, 1):
        assert json.loads((tmp_path / f"CartPole-v1-ppo-seed{seed}" / "summary.json").read_text())["end"]
    assert (tmp_path / "CartPole-v1-ppo-curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_seed_that_fails_does_not_hide_what_came_of_the_others(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = ["CartPole-v1", "--algorithm", "ppo", *SMALL, "--timesteps", "256", "--seeds", "2"]
    held = Folder(tmp_path / "CartPole-v1-ppo-seed1")
    with held.lock(new=True):
        assert onward("train", *arguments, "--out", str(tmp_path)) == 2
    told = capfd.readouterr()
    assert "seed 0: not solved" in told.out
    assert f"{held.path} is being trained in by another process" in told.err


def test_one_process_at_a_time_trains_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["CartPole-v1", "--algorithm", "ppo", *SMALL, "--timesteps", "256"]
    assert onward("train", *arguments, "--out", str(tmp_path)) == 0
    folder = Folder(tmp_path / "CartPole-v1-ppo-seed0")
    before = folder.state.read_bytes()
    with folder.lock(new=False):
        assert onward("resume", str(folder.path), "--timesteps", "512") == 2
    assert "is being trained in by another process: wait for it" in capsys.readouterr().err
    assert folder.state.read_bytes() == before and folder.read().timesteps == 256
    assert onward("resume", str(folder.path), "--timesteps", "512") == 0


def test_a_state_of_before_updates_were_counted_is_gone_on_with(tmp_path: Path) -> None:
    arguments = ["CartPole-v1", "--algorithm", "ppo", *SMALL, "--timesteps", "128"]
    assert onward("train", *arguments, "--out", str(tmp_path)) == 0
    folder = Folder(tmp_path / "CartPole-v1-ppo-seed0")
    state = checkpoint.load(folder.state)
    del state["updates"]
    checkpoint.save(folder.state, state)
    assert onward("resume", str(folder.path), "--timesteps", "256") == 0


def test_a_lock_file_that_cannot_be_had_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["CartPole-v1", "--algorithm", "ppo", *SMALL, "--timesteps", "128"]
    lock = tmp_path / "CartPole-v1-ppo-seed0" / ".lock"
    lock.mkdir(parents=True)
    assert onward("train", *arguments, "--out", str(tmp_path)) == 2
    told = capsys.readouterr().err
    assert f"The lock file {lock} cannot be had (Is a directory)" in told and told.count("\n") == 1


def test_a_run_that_ends_before_its_first_update_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["CartPole-v1", "--algorithm", "ppo", *SMALL, "--timesteps", "64"]
    assert onward("train", *arguments, "--out", str(tmp_path)) == 0
    assert "seed 0: nothing was learned: ppo came to no update within 64 steps." in capsys.readouterr().out
    assert onward("resume", str(tmp_path / "CartPole-v1-ppo-seed0"), "--timesteps", "128") == 0
    assert "nothing was learned" not in capsys.readouterr().out
    summary = json.loads((tmp_path / "CartPole-v1-ppo-seed0" / "summary.json").read_text())
    assert summary["updates"] == 1


@pytest.mark.parametrize(
    ("algorithm", "seeds", "number"),
    [("ppo", 1, signal.SIGINT), ("ppo", 1, signal.SIGTERM), ("a3c", 1, signal.SIGTERM),
     pytest.param("ppo", 2, signal.SIGINT, marks=pytest.mark.long),
     pytest.param("ppo", 2, signal.SIGTERM, marks=pytest.mark.long)],
)  # fmt: skip
def test_ctrl_c_and_sigterm_save_and_say_how_to_go_on(
    tmp_path: Path, algorithm: str, seeds: int, number: signal.Signals
) -> None:
    settings = SMALL if algorithm == "ppo" else ["--set", "workers=2"]
    command = [sys.executable, "-m", "onward.cli", "control", "train", "CartPole-v1", "--algorithm",
               algorithm, *settings, "--timesteps", "100000000", "--keep-going", "--seeds", str(seeds),
               "--processes", "2", "--eval-every", "100000000", "--out", str(tmp_path)]  # fmt: skip
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    folders = [tmp_path / f"CartPole-v1-{algorithm}-seed{seed}" for seed in range(seeds)]
    try:
        for folder in folders:
            _until_training(folder, process)
        os.killpg(process.pid, number)  # as a terminal does: to every process at once
        text, _ = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130, text
    for folder in folders:
        assert f"'onward control resume {folder}'" in text.replace(program(), "onward")
        assert Folder(folder).state.is_file()
    assert "Traceback" not in text


def _until_training(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until the log file is there: then signals are held."""
    end = time.monotonic() + 240
    while not list(folder.glob("events*")):
        assert process.poll() is None, process.stdout and process.stdout.read()
        assert time.monotonic() < end, "the run did not start"
        time.sleep(0.05)
    time.sleep(0.5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ([], ["CartPole-v1", "ppo", "td3"]),
        (["ppo"], ["gae_lambda", "Largest distance of a ratio from 1 before it is clipped."]),
        (["LunarLander-v3"], ["dqn zoo", "target_every=250"]),
    ],
)
def test_list_teaches(capsys: pytest.CaptureFixture[str], name: list[str], expected: list[str]) -> None:
    assert onward("list", *name, "--json") == 0
    text = capsys.readouterr().out
    json.loads(text)
    assert [word for word in expected if word not in text] == []


def test_list_of_something_unknown_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert onward("list", "Chess-v0") == 2
    assert "neither an algorithm nor a preset for 'Chess-v0'" in capsys.readouterr().err


def test_the_live_line_tells_return_speed_and_where_time_goes() -> None:
    row = {
        "step": 10.0, "return_mean": 21.34, "episodes": 1200.0, "steps_per_second": 10234.5,
        "share_env": 0.25, "share_act": 0.25, "share_update": 0.4, "share_evaluate": 0.05,
    }  # fmt: skip
    assert told(row, 480.0) == (
        "return 21.3 · greedy 480.0 · 1,200 episodes · 10,234 steps/s · "
        "env 25% act 25% update 40% evaluate 5%"
    )


def test_what_came_out_is_said_with_the_solve_episode() -> None:
    summary = {
        "seed": 1, "steps": 64896, "updates": 32, "seconds": 8.0, "steps_per_second": 8112.0, "end": "solved",
        "threshold": 475.0, "solved": {"episode": 294, "step": 64896, "seconds": 7.5},
        "final": {"episodes": 100, "return": 500.0, "std": 0.0, "success": 1.0},
        "streams": {"cost": 12.25},
        "evaluation": {"share": 0.148, "limit": 0.15, "left_out": 3, "shortened": 1},
    }  # fmt: skip
    first, second, cost, evaluations = outcome(summary, Path("runs/x"))
    assert cost == "  cost per episode: 12.25 at the end"
    assert evaluations == (
        "  evaluations took 15% of the time; for a limit of 15% (--eval-share) "
        "3 were left out and 1 shortened."
    )
    assert (
        first == "seed 1: solved at episode 294 (step 64,896, 7.5 s); 64,896 steps in 8.0 s, 8,112 a second."
    )
    assert second.endswith("return 500.0 ± 0.0, success 100%: runs/x/policy")


def test_an_id_without_version_is_the_newest_one_with_its_preset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], recwarn: pytest.WarningsRecorder
) -> None:
    done = onward("train", "CartPole", "--algorithm", "ppo", "--timesteps", "64", *SMALL[:-4],
                  "--out", str(tmp_path))  # fmt: skip
    said = capsys.readouterr()
    assert done == 0
    assert "CartPole has no version: CartPole-v1, the newest, is taken.\n" in said.err
    assert json.loads((tmp_path / "CartPole-v1-ppo-seed0" / "config.json").read_text())["preset"] == "ours"
    assert [str(warning.message) for warning in recwarn if "version" in str(warning.message)] == []


def test_the_package_of_an_environment_that_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    env = "MiniGrid-DoorKey-5x5-v0"
    run = f"run {install_command('minigrid')}"
    sentence = f"{env} comes from the package minigrid, which is not installed: {run}.\n"
    assert onward("train", env, "--algorithm", "ppo", "--out", str(tmp_path)) == 2
    assert capsys.readouterr().err == sentence
    assert onward("list", env) == 0
    assert capsys.readouterr().err == sentence


def test_a_folder_of_runs_names_the_runs_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "CartPole-v1-ppo-seed0" / "policy"
    policy.mkdir(parents=True)
    (policy / "policy.json").write_text("{}")
    assert onward("eval", str(tmp_path)) == 2
    assert f"{tmp_path} holds run folders: give one or several of {policy.parent}." in capsys.readouterr().err


LIFT = """
import gymnasium, numpy as np
from gymnasium import spaces
class Lift(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)
    steps = 0
    def __init__(self, fails_at=None):
        self.fails_at = fails_at
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}
    def step(self, action):
        Lift.steps += 1
        if Lift.steps == self.fails_at:
            raise OSError("the door is open")
        return np.zeros(1, np.float32), float(action), False, False, {"success": bool(action)}
"""


@pytest.fixture
def lift(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Module of an endless task, in the current folder."""
    monkeypatch.chdir(tmp_path)
    name = f"lift_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(LIFT)
    return name


def test_a_check_prints_findings_with_remedies(lift: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert onward("check", f"{lift}:Lift") == 1
    printed = " ".join(capsys.readouterr().out.split())
    assert "error" in printed
    assert "max_episode_steps" in printed
    assert (
        onward("check", f"{lift}:Lift", "--env-set", "max_episode_steps=30", "--steps", "40", "--json") == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert [one["what"] for one in found["findings"]] == ["info reports success at the end of an episode"]
    assert onward("check", "CartPole-v1") == 0
    assert "CartPole-v1: nothing to correct after 200 random steps." in capsys.readouterr().out


def test_an_endless_task_of_the_current_folder_is_refused_and_with_a_limit_it_trains(
    lift: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", f"{lift}:Lift", "--algorithm", "ppo", *SMALL, "--timesteps", "256"]
    assert onward(*arguments) == 2
    assert "give a limit with --env-set max_episode_steps=1000" in capsys.readouterr().err
    assert not Path("runs").exists()
    assert onward(*arguments, "--env-set", "max_episode_steps=10") == 0
    summary = json.loads(Path(f"runs/{lift}-Lift-ppo-seed0/summary.json").read_text())
    assert summary["final"]["success"] is not None
    assert onward("eval", f"runs/{lift}-Lift-ppo-seed0", "--episodes", "4") == 0
    assert "success: info['success'] of the last step" in " ".join(capsys.readouterr().out.split())


def test_an_environment_that_fails_leaves_a_state_to_go_on_from(
    lift: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", f"{lift}:Lift", "--algorithm", "ppo", *SMALL, "--timesteps", "256"]
    arguments += ["--env-set", "max_episode_steps=10", "--env-set", "fails_at=150", "--eval-every", "1000"]
    assert onward(*arguments) == 2
    error = capsys.readouterr().err
    assert f"step raised OSError: the door is open; correct it at {lift}.py:16." in error
    folder = f"runs/{lift}-Lift-ppo-seed0"
    assert f"onward control resume {folder}'. The traceback is in {folder}/environment-error.txt" in error
    assert onward("resume", folder) == 0
    assert json.loads(Path(f"{folder}/summary.json").read_text())["end"] == "finished"
