"""Bad input at the command line: one sentence on stderr, exit code 2, no traceback, nothing made."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_text
from peft_folders import write_base

from onward import __version__, errors, extras
from onward.cli import output
from onward.errors import MissingExtraError

pytestmark = pytest.mark.slow

FREE_PORTS = "[http]\ngateway_port = 0\napi_port = 0\n"
"""Another program may have the usual ones."""


def assert_one_sentence(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_version(tmp_path: Path) -> None:
    assert run_text(tmp_path, "--version").stdout == f"onward {__version__}\n"


def test_a_process_of_its_own_ends_with_one_sentence_as_well(tmp_path: Path) -> None:
    (tmp_path / "onward.toml").write_text("[training]\ntreshold = 3\n")
    done = subprocess.run(
        [sys.executable, "-m", "onward.cli", "up"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert_one_sentence(done, "Unknown setting 'training.treshold'")


def test_an_unknown_model_names_the_known_ones(tmp_path: Path) -> None:
    done = run_text(tmp_path, "demo", "--model", "nope")
    assert_one_sentence(done, "There is no model 'nope' on this machine: ")
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_key_in_the_settings_names_it(tmp_path: Path) -> None:
    (tmp_path / "onward.toml").write_text("[training]\ntreshold = 3\n")
    assert_one_sentence(run_text(tmp_path, "up"), "Unknown setting 'training.treshold'")


def test_an_unknown_algorithm_names_the_known_ones(tmp_path: Path) -> None:
    done = run_text(tmp_path, "up", RL_ALGORITHM="sarsa")
    assert_one_sentence(done, "'ppo', 'dpo', 'rloo', 'grpo' or 'reinforce'")


def test_a_busy_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (tmp_path / "onward.toml").write_text(f"[nats]\nport = {port}\n{FREE_PORTS}")
        write_base(tmp_path / "base")
        done = run_text(tmp_path, "up", RL_BASE_MODEL=str(tmp_path / "base"))
    assert_one_sentence(done, f"127.0.0.1:{port}")


def test_an_address_that_cannot_be_served_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (tmp_path / "onward.toml").write_text(f"[http]\ngateway_port = {port}\n")
        assert_one_sentence(
            run_text(tmp_path, "up"), f"The gateway (http.gateway_port) cannot listen on 127.0.0.1:{port}"
        )
    (tmp_path / "onward.toml").write_text('[http]\nhost = "0.0.0.0"\n')
    assert_one_sentence(run_text(tmp_path, "up"), "http.keys")
    assert not (tmp_path / "nats").exists()


def test_nothing_running_says_what_to_do(tmp_path: Path) -> None:
    assert_one_sentence(run_text(tmp_path, "status"), "start it with 'onward up'")


def test_an_unknown_role_names_the_known_ones(tmp_path: Path) -> None:
    assert_one_sentence(run_text(tmp_path, "run", "colector"), "expected one of collector")


def test_a_missing_extra_is_named_with_a_command_that_works_from_the_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clone = tmp_path / "clone"
    (clone / ".venv" / "bin").mkdir(parents=True)
    (clone / ".venv" / "bin" / "pip").touch()
    (clone / "pyproject.toml").touch()
    monkeypatch.setattr(sys, "executable", str(clone / ".venv" / "bin" / "python"))
    monkeypatch.setattr(errors, "__file__", str(clone / "src" / "onward" / "errors.py"))
    monkeypatch.chdir(clone)
    assert errors.install_command("[lm]") == ".venv/bin/pip install -e '.[lm]'"
    assert errors.install_command("minigrid") == ".venv/bin/pip install minigrid"
    monkeypatch.chdir(tmp_path)
    assert errors.install_command("[lm]") == "clone/.venv/bin/pip install -e 'clone[lm]'"
    (clone / "pyproject.toml").unlink()  # as after an installation from a wheel
    (clone / ".venv" / "bin" / "pip").unlink()
    assert errors.install_command("[lm]") == "clone/.venv/bin/python -m pip install -e '.[lm]'"
    with pytest.raises(MissingExtraError, match=r"run clone/.venv/bin/python -m pip install -e '.\[lm\]'\."):
        extras.require("lm", "a_module_that_nobody_has", "The engine")


def test_commands_in_a_sentence_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "onward").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    sentence = "Nothing runs on onward-data: start it with 'onward up', or run `onward models pull x`."
    assert errors.runnable(sentence) == (
        "Nothing runs on onward-data: start it with '.venv/bin/onward up', "
        "or run `.venv/bin/onward models pull x`."
    )
    (tmp_path / "onward").touch(mode=0o755)  # a shell finds it by its name
    assert errors.runnable(sentence) == sentence


def test_the_command_line_prints_commands_that_can_be_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sentences, titles of tables, and what a table says while it is empty."""
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "onward").touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / ".venv" / "bin" / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    table = output.Table("id", title="Releases ('onward releases show' says more)")
    table.add_row("r1")
    output.print_text(
        "Learning is paused ('onward resume').", table, output.Table("id", empty="see 'onward up'")
    )
    said = capsys.readouterr().out
    assert said.count("'.venv/bin/onward ") == 3 and "'onward " not in said


def test_advice_about_a_folder_names_the_data_folder_inside_it(tmp_path: Path) -> None:
    assert errors.folder_advice(tmp_path) == "name its folder with --dir"
    for name in ("tiny-seed0-001", "tiny-seed0-002"):
        (tmp_path / name / "nats").mkdir(parents=True)
    newest = tmp_path / "tiny-seed0-002"
    assert errors.folder_advice(tmp_path) == f"name its folder with --dir ({newest} is one)"


@pytest.mark.parametrize(
    "command",
    [
        "up --dir {}",
        "demo --dir {}",
        "demo --json {}/figures.json",
        "train --algorithm sft --env maze --steps 1 --demonstrations 8 --out {}",
        "contracts export {}",
        "control train CartPole-v1 --algorithm ppo --out {}",
    ],
)
def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path, command: str) -> None:
    file = tmp_path / "file"
    file.touch()
    done = run_text(tmp_path, *(word.format(file) for word in command.split()))
    assert_one_sentence(done, f"The folder {file}")
    assert "cannot be made" in done.stderr
    assert "give one that may be written to." in done.stderr
    assert list(tmp_path.iterdir()) == [file]


def test_the_demonstration_refuses_a_json_file_that_it_could_not_write_in_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "figures.json"
    folder.mkdir()
    done = run_text(tmp_path, "demo", "--json", str(folder))
    assert_one_sentence(done, f"The file {folder} cannot be written")
    assert list(tmp_path.iterdir()) == [folder]
