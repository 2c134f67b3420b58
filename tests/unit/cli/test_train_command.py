"""``onward train``: a whole run as a person starts it, a stop and a resume, and sentences for bad input."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import any_networks
import pytest
from docs_blocks import run_command
from model_folders import good_model
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from onward.lm.tiny import build_tiny
from onward.serving.engines.registry import verify_adapter
from onward.training import checkpoints

pytestmark = pytest.mark.slow

PAIRS = [{"prompt": f"left or right {n % 3}", "chosen": "left", "rejected": "right"} for n in range(12)]


LINE = "onward train --algorithm dpo --data pairs.jsonl --epochs 12 --batch-rows 4"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which ``LINE --out run`` was run, and what it said."""
    folder = tmp_path_factory.mktemp("finished")
    _write_pairs(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("COLUMNS", "160")
        code, output = run_command(f"{LINE} --out run")
    assert code == 0, output
    return folder, output


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("COLUMNS", "160")
    _write_pairs(tmp_path)


def _write_pairs(folder: Path) -> None:
    (folder / "pairs.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in PAIRS))


def test_a_run_from_pairs_writes_an_adapter_that_peft_and_the_registry_load(
    finished: tuple[Path, str],
) -> None:
    run, output = finished[0] / "run", finished[1]
    assert "Training tiny with dpo" in output and "Done in" in output and "right way round 1.00" in output
    folder = run / "checkpoint"
    digest = checkpoints.verify(folder).adapter_digest
    assert verify_adapter(folder, digest).metrics["algorithm"] == "dpo"
    with open(run / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == list(range(1, 37))
    assert float(rows[-1]["margin"]) > float(rows[0]["margin"])
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    events = EventAccumulator(str(run))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/margin")] == [
        (int(row["step"]), pytest.approx(float(row["margin"]), abs=1e-6)) for row in rows
    ]

    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(run / "base")
    names = {name for name, _ in PeftModel.from_pretrained(base, str(folder)).named_parameters()}
    assert any("lora_A" in name for name in names)


def test_a_resumed_run_takes_no_new_numbers(finished: tuple[Path, str]) -> None:
    code, output = run_command(f"onward train --resume --out {finished[0] / 'run'} --lr 1")
    assert code == 2 and "--lr does nothing with --resume, where a run goes on as it began" in output


def test_a_second_run_into_the_same_folder_is_refused(finished: tuple[Path, str]) -> None:
    code, output = run_command(f"{LINE} --out {finished[0] / 'run'}")
    assert code == 2 and "holds a run already" in output


CTRL_C_AT_THE_FIRST_STEP = """
import os, signal, sys

if "onward.training.job.worker" in sys.orig_argv:
    write = sys.stdout.write

    def write_and_stop(text):
        write(text)
        if '"progress"' in text:
            sys.stdout.write = write
            heard, told = os.pipe()
            os.set_blocking(told, False)
            signal.set_wakeup_fd(told)
            os.kill(os.getppid(), signal.SIGINT)
            os.read(heard, 1)  # until the command has handed the stop on

    sys.stdout.write = write_and_stop
"""
"""For the training process: its command gets Ctrl-C after one step, however slow or fast the machine is."""


def test_ctrl_c_leaves_a_state_from_which_resume_goes_on_exactly(
    finished: tuple[Path, str], tmp_path: Path
) -> None:
    """The whole run and the stopped one end with the same adapter, and the table has every step once."""
    (tmp_path / "sitecustomize.py").write_text(CTRL_C_AT_THE_FIRST_STEP)
    command = [sys.executable, "-m", "onward.cli", *f"{LINE} --out cut --json".split()[1:]]
    search = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": search})
    told = [json.loads(text) for text in ran.stdout.splitlines()]
    assert ran.returncode == 130 and told[-1] == {"event": "stopped"}
    assert sum(event["event"] == "progress" for event in told) == 1

    code, output = run_command("onward train --resume --out cut")
    assert code == 0 and "Going on after step" in output, output
    whole, cut = (checkpoints.verify(folder / "checkpoint") for folder in (finished[0] / "run", Path("cut")))
    assert whole.adapter_digest == cut.adapter_digest
    with open(tmp_path / "cut" / "metrics.csv", newline="") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(1, 37))


def test_a_dry_run_tells_everything_and_writes_nothing(tmp_path: Path) -> None:
    code, output = run_command("onward train --algorithm dpo --data pairs.jsonl --lr 0.01 --dry-run --json")
    told = json.loads(output)
    assert code == 0 and told["spec"]["learning_rate"] == 0.01 and told["spec"]["algorithm"] == "dpo"
    memory = told["memory_bytes"]
    assert memory["total"] > memory["weights"] + memory["adapter"] and told["seconds"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pairs.jsonl"]
    code, output = run_command("onward train --algorithm reinforce_pp --env maze --steps 5 --dry-run")
    assert code == 0 and "with reinforce_plus_plus." in output
    code, output = run_command("onward train --algorithm rloo --env maze --steps 5 --dry-run")
    assert code == 0
    assert "Would train tiny" in output and "environment.steps" in output
    assert "Memory: about" in output and "Time: about" in output


def test_a_dry_run_knows_a_network_that_transformers_computes(tmp_path: Path, model: Path) -> None:
    """GPT-2: 2 blocks of 12 · 48² weights with biases and norms, 300 and 256 rows of 48 before them. By
    default the upper block is adapted: c_attn (48 + 144), c_proj (48 + 48, 192 + 48), c_fc (48 + 192)."""
    folder = any_networks.build("gpt2", tmp_path / "gpt2", model)
    line = f"onward train --algorithm dpo --data pairs.jsonl --model {folder} --lora-rank 4 --dry-run"
    code, output = run_command(f"{line} --json")
    told = json.loads(output)
    assert code == 0
    block = 12 * 48 * 48 + (3 + 1 + 4 + 1) * 48 + 4 * 48
    assert told["parameters"] == (300 + 256) * 48 + 2 * block + 2 * 48
    assert told["trained"] == 4 * (48 + 144 + 48 + 48 + 192 + 48 + 48 + 192)
    assert told["memory_bytes"]["total"] > told["memory_bytes"]["weights"] == 4 * told["parameters"]
    code, output = run_command(f"{line} --lora-targets q_proj")
    assert code == 2 and "choose targets among c_attn, c_fc, c_proj." in output


def test_tasks_of_the_data_are_held_out_and_the_end_says_what_was_found(tmp_path: Path) -> None:
    build_tiny(tmp_path / "base", ["a b c"] * 9, hidden=32, layers=1, heads=2, kv_heads=1, intermediate=64)
    attempts = [
        {
            "trajectory_id": f"t{n}", "session_id": "", "task_type": "a", "group_key": f"g{n}",
            "staleness": 0, "outcome": float(n % 2), "success": n % 2 == 1, "unparsable": False,
            "raw_total": float(n % 2),
            "calls": [{"generation_id": f"c{n}", "continues": None, "prompt_ids": [5, 6, 7 + n],
                       "token_ids": [9 + n % 2, 2], "logprobs": [-5.0, -5.0], "temperature": 1.0,
                       "top_p": 1.0, "top_k": None}],
        }
        for n in range(80)
    ]  # fmt: skip
    Path("work.jsonl").write_text("".join(json.dumps(one) + "\n" for one in attempts))
    code, output = run_command(
        "onward train --algorithm reinforce --model base --data work.jsonl --holdout 0.4 --lr 1e-4 --steps 2 "
        "--out run"
    )
    assert code == 0, output
    assert "Held-out tasks before: return 0." in output and "95 % 0." in output and "effective of" in output
    assert "which has the best held-out return, estimated off policy" in output
    told = checkpoints.verify(Path("run/checkpoint")).metrics["held_out"]
    assert told["before"]["tasks"] == told["after"]["tasks"] > 20


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("rloo --env maze --holdout 0.1", "give --held-out TASKS"),
        ("dpo --data pairs.jsonl --holdout 0.1 --eval pairs.jsonl", "leave --holdout out"),
        ("dpo --data pairs.jsonl --replay maze", "give --holdout SHARE"),
        ("dpo --data pairs.jsonl --eval-every 2", "does nothing without --eval or --holdout"),
        ("dpo --data pairs.jsonl --holdout 1", "--holdout is 1: give a number"),
    ],
)
def test_options_of_held_out_tasks_that_do_not_go_together_are_refused(options: str, said: str) -> None:
    code, output = run_command(f"onward train --algorithm {options} --dry-run")
    assert code == 2 and said in output


def _sampled(tmp_path: Path, **changes: Any) -> Path:
    record = {"generation_id": "g", "continues": None, "prompt_ids": [1], "token_ids": [2],
              "logprobs": [-1.0], "temperature": 1.0, "top_p": 1.0, "top_k": None,
              "finish_reason": "stop", "model_digest": "d", **changes}  # fmt: skip
    lines = []
    for n in range(4):
        turn = {"turn_id": 1, "observation": {"type": "user_message", "content": "?"},
                "action": {"type": "response", "raw_response": "!",
                           "sampling": {**record, "generation_id": f"g{n}"}}}  # fmt: skip
        lines.append(
            {
                "trajectory_id": f"t{n}", "session_id": "s", "start_timestamp": "2026-01-01T00:00:00Z",
                "turns": [turn], "task_context": {"task_id": "t", "group_id": f"g{n}"},
                "metadata": {"outcome": {"status": "completed_successfully" if n % 2 else "failed"}},
            }
        )  # fmt: skip
    path = tmp_path / "work.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return good_model(tmp_path_factory.mktemp("model") / "base")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--algorithm ppo --data pairs.jsonl", "train with dpo or sft, which need only text"),
        ("--algorithm ppo --data pairs.jsonl", "--behaviour recompute"),
        ("--algorithm rloo --env maze --group-size 1", "or use reinforce or ppo"),
        ("--algorithm rloo --data work.jsonl", "4 group_of_one"),
        ("--algorithm ppo --data top-p.jsonl", "sample with top_p 1"),
        ("--algorithm rloo --env labyrinth", "choose one of maze, wordle"),
        ("--algorithm rloo --env http://127.0.0.1:9", "cannot be reached"),
        ("--algorithm dpo --env maze", "plays nothing"),
        ("--algorithm magic --env maze", "There is no algorithm 'magic'"),
        ("--env maze", "No algorithm was given"),
        ("--algorithm ppo", "give either --data FILE or --env NAME"),
        ("--algorithm rloo --env maze --horizon 9,3", "rising numbers"),
        ("--algorithm rloo --env maze --episodes 10", "cannot be split into groups"),
        ("--algorithm dpo --data pairs.jsonl --model nowhere", "There is no model 'nowhere'"),
        ("--algorithm dpo --data pairs.jsonl --model .", "has no config.json"),
        ("--algorithm dpo --data pairs.jsonl --dtype int8", "The option dtype is wrong"),
        ("--algorithm dpo --data pairs.jsonl --start .", "holds no checkpoint"),
        ("--algorithm dpo --data pairs.jsonl --dense-rewards", "dpo cannot place"),
        ("--algorithm dpo --data none.jsonl", "There is no file none.jsonl: give JSON or JSON lines."),
        ("--algorithm dpo --data pairs.jsonl --lr -1", "--lr is -1: give a number greater than 0."),
        ("--algorithm dpo --data pairs.jsonl --lr 0 --dry-run", "--lr is 0: give a number greater than 0."),
        (
            "--algorithm dpo --data pairs.jsonl --lora-targets q_proj,w1 --dry-run",
            "An adapter on ['q_proj', 'w1'] is not possible: choose targets among q_proj, k_proj",
        ),
        ("--algorithm rloo --env maze --lora-targets w1 --dry-run", "An adapter on ['w1'] is not possible"),
        ("--algorithm ppo --env maze --clip 1", "--clip is 1: give a number greater than 0 and less than 1."),
        ("--algorithm dpo --data pairs.jsonl --gamma 0.9", "gamma does nothing in dpo"),
        ("--algorithm rloo --env maze --gae-lambda 0.9", "gae_lambda does nothing in rloo"),
        ("--algorithm reinforce --data work.jsonl --min-reward 0.5", "min_reward does nothing in reinforce"),
        ("--algorithm sft --data pairs.jsonl --behaviour recompute", "recompute does nothing in sft"),
        ("--algorithm dpo --data pairs.jsonl --horizon 4", "--horizon does nothing without --env"),
        ("--algorithm dpo --data pairs.jsonl --episodes 64", "--episodes does nothing without --env"),
        ("--algorithm sft --env maze --temperature 2", "--temperature does nothing in sft"),
        ("--algorithm rloo --env maze --return-from raw_total", "--return-from does nothing with --env"),
        ("--algorithm rloo --env maze --demonstrations 5", "--demonstrations does nothing but in sft"),
        ("--algorithm rloo --env maze --full --kl 0.1", "leave --kl or --full out"),
        ("--algorithm dpo --resume", "holds no run to go on with"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, model: Path, line: str, words: str) -> None:
    _sampled(tmp_path, top_p=0.9).rename(tmp_path / "top-p.jsonl")
    _sampled(tmp_path)
    given = "" if "--model" in line or "--env maze" in line else f"--model {model}"
    code, output = run_command(f"onward train {given} {line} --out run")
    assert code == 2 and words in output, output
    assert "Traceback" not in output and not (tmp_path / "run").exists()
    assert len([text for text in output.splitlines() if text.strip()]) == 1


def test_help_teaches_with_examples() -> None:
    code, output = run_command("onward train --help")
    assert code == 0 and "onward train --algorithm rloo --model warm/model --env maze" in output
    assert "--dry-run" in output
