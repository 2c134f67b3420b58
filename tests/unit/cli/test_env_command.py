"""``onward env``: what a person sees, and one sentence for what cannot be done."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from docs_blocks import run_command
from environment_served import served_environment

from onward.envs import registry


@pytest.fixture
def served() -> Iterator[str]:
    """The address of a maze, served from another thread."""
    with served_environment(registry.find("maze")) as url:
        yield url


def test_list_tells_name_tasks_horizon_and_panel_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    code, output = run_command("onward env list --no-measure")
    assert code == 0
    for name in registry.BUILT_IN:
        environment = registry.find(name)
        (line,) = [line for line in output.splitlines() if line.startswith(f"{name} ")]
        assert environment.panel_hash()[:12] in line and f" {environment.horizon} " in line


def test_list_as_json_has_the_measured_rates() -> None:
    code, output = run_command("onward env list --json")
    rows = {row["name"]: row for row in json.loads(output)}
    assert code == 0 and set(rows) == set(registry.BUILT_IN)
    assert all(row["reference"] == 1.0 and row["random"] <= 0.25 for row in rows.values())
    assert rows["maze"]["panel_hash"] == registry.find("maze").panel_hash()


def test_play_by_the_reference_shows_the_conversation_and_the_verdict() -> None:
    code, output = run_command("onward env play maze --task 1 --policy reference")
    assert code == 0
    assert "[system] You are in a maze." in output and "[assistant] right" in output
    assert output.splitlines()[-1] == "maze-test-0-1: solved, reward 1 after 6 turns (done)."


def test_play_of_a_whole_panel_tells_the_success_rate() -> None:
    code, output = run_command("onward env play wordle --policy reference --split validation --seed 2")
    assert code == 0
    assert output.startswith("wordle: 75 episodes, 0 unscored; success 1.000, turns 3.")


def test_a_person_plays_until_the_input_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["up", "fly"])

    def read(prompt: str) -> str:
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", read)
    code, output = run_command("onward env play maze")
    assert code == 0
    assert "'fly' is no move: answer with up, down, left or right." in output
    assert output.splitlines()[-1] == "maze-test-0-0: not solved, reward 0 after 2 turns (stopped)."


def test_play_on_a_server(served: str) -> None:
    code, output = run_command(f"onward env play maze --url {served} --policy reference --task 2")
    assert code == 0 and output.splitlines()[-1].startswith("maze-test-0-2: solved, reward 1")
    own = "onward.envs.maze:MazeEnvironment"
    code, output = run_command(f"onward env play {own} --url {served} --policy random --task 0")
    assert code == 0 and output.splitlines()[-1].startswith("maze-test-0-0: ")
    code, output = run_command(f"onward env play wordle --url {served} --policy reference")
    assert (code, output.strip()) == (2, f"The server at {served} serves maze, not wordle: give its name.")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("play mace", "There is no environment 'mace': choose one of maze, wordle, crafting, desk"),
        ("play maze --policy clever", "--policy is 'clever': give reference or random"),
        ("play maze --task 100", "--task is 100, but the panel has 100 tasks: give 0 to 99."),
        ("play maze --split dev", "maze has no split 'dev': choose one of train, validation, test."),
        ("play maze --url maze", "--url is 'maze': give the address of a server, http://HOST:PORT."),
        ("serve maze --host 0.0.0.0", "http.host is '0.0.0.0', which other machines can reach"),
        ("serve maze --split dev", "maze has no split 'dev'"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(words: str, sentence: str) -> None:
    code, output = run_command(f"onward env {words}")
    assert code == 2
    assert output.startswith(sentence) and len(output.splitlines()) == 1


def test_a_server_that_is_away_is_one_sentence() -> None:
    code, output = run_command("onward env play maze --url http://127.0.0.1:9")
    assert code == 2
    assert output.strip() == "The environment server at 127.0.0.1:9 cannot be reached (ConnectError)."
