"""``onward rewards`` where no service runs: scores of files, and one sentence for what cannot be done.
(With a service: tests/integration/test_reward_explain.py.)"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_text
from docs_blocks import run_command

from onward.capture.collecting.trajectory_row import enrich
from onward.config import load
from onward.contracts import Reward, Trajectory, validate
from onward.contracts.examples import TRAJECTORY
from onward.redaction import PLAIN
from onward.reward import State, score

SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3
SETTINGS = load(environ={}).reward


def document(name: str = "t1", **outcome) -> dict:
    metadata = {**TRAJECTORY["metadata"], "outcome": {"status": "completed_successfully", **outcome}}
    return {**json.loads(json.dumps(TRAJECTORY)), "trajectory_id": name, "metadata": metadata}


def unjudged(name: str) -> dict:
    """As the gateway records it when nobody says how it ended."""
    metadata = {"model": "m", "capture": {"source": "gateway"}}
    return {**document(name), "metadata": metadata}


def rewards_score(
    folder: Path, *arguments: str, given: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return run_text(folder, "rewards", "score", *arguments, given=given, **environment)


def lines(output: str) -> list[dict]:
    return [json.loads(line) for line in output.splitlines()]


def test_json_lines_each_by_itself_and_a_bad_one_by_its_number(tmp_path: Path) -> None:
    bad = json.dumps({**document("t3"), "surprise": SECRET})
    given = "\n".join(
        [json.dumps(document("t1")), "", f'{{"key": "{SECRET}"', json.dumps(unjudged("t2")), bad]
    )
    (tmp_path / "a.jsonl").write_text(given)
    done = rewards_score(tmp_path, "a.jsonl")
    assert done.returncode == 2
    first, second = lines(done.stdout)
    assert list(first) == ["trajectory_id", "components", "total_reward"]
    assert first["trajectory_id"] == "t1"
    for part in first["components"].values():
        assert set(part) == {"score", "weight", "reasoning"}
    whole = sum(part["weight"] for part in first["components"].values())
    total = sum(part["weight"] * part["score"] for part in first["components"].values())
    assert (whole, total) == (pytest.approx(1.0), pytest.approx(first["total_reward"], abs=1e-12))
    assert second == {
        "trajectory_id": "t2",
        "unscored": {"reason": "no_outcome", "detail": second["unscored"]["detail"]},
    }
    assert done.stderr.splitlines() == [
        "line 3: The message is not JSON.",
        done.stderr.splitlines()[1],
    ]
    assert done.stderr.splitlines()[1].startswith("line 5: Trajectory has 1 unknown field(s)")
    assert SECRET not in done.stdout + done.stderr
    assert rewards_score(tmp_path, "-", given=given).stdout == done.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "a.jsonl"], "nothing is written"


def test_the_hand_worked_total_of_a_partial_completion(tmp_path: Path) -> None:
    """Completion .5 + .5·.6 = .8 and the neutral .5: (.4·.8 + .25·.5)/.65, nothing else applies."""
    (tmp_path / "a.json").write_text(
        json.dumps(document(status="partial_completion", completion_percentage=0.6), indent=2)
    )
    code, output = run_command(f"onward rewards score {tmp_path / 'a.json'}")
    assert code == 0
    (found,) = lines(output)
    assert found["components"]["task_completion"]["score"] == pytest.approx(0.8)
    assert found["components"]["task_completion"]["weight"] == pytest.approx(0.4 / 0.65)
    assert found["total_reward"] == pytest.approx((0.4 * 0.8 + 0.25 * 0.5) / 0.65)


def test_the_numbers_are_those_of_the_service_on_what_it_stores(tmp_path: Path) -> None:
    raw = document()
    raw["turns"][0]["observation"]["content"] = f"my key is {SECRET}"
    stored = validate(enrich(PLAIN.trajectory(raw).document), Trajectory)
    reward = score(stored, State(1000), settings=SETTINGS, timestamp=stored.end_timestamp)
    assert isinstance(reward, Reward)
    (tmp_path / "a.jsonl").write_text(json.dumps(raw))
    code, output = run_command(f"onward rewards score {tmp_path / 'a.jsonl'}")
    (found,) = lines(output)
    assert (code, found["total_reward"]) == (0, reward.metadata.raw_total)
    assert {name: part["score"] for name, part in found["components"].items()} == {
        name: part.score for name, part in reward.reward_components.items()
    }
    assert SECRET not in output


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (json.dumps([document("a"), document("b")]), "x.json"),
        (json.dumps([document("a"), document("b")], indent=1), "x.json"),
        (json.dumps([document("a"), document("b")], indent=1), "x"),
        (json.dumps(document("a")) + "\r\n\r\n" + json.dumps(document("b")) + "\r\n", "x"),
        ("\ufeff" + json.dumps(document("a")) + "\n" + json.dumps(document("b")), "x.jsonl"),
        ("\n\n" + json.dumps(document("a")) + "\n" + json.dumps([document("b")]), "x.txt"),
    ],
    ids=["list", "indented", "no suffix", "CRLF", "byte order mark", "mixed"],
)
def test_a_list_or_lines_in_any_usual_form(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    code, output = run_command(f"onward rewards score {tmp_path / name}")
    assert (code, [found["trajectory_id"] for found in lines(output)]) == (0, ["a", "b"])


def test_items_of_a_list_are_named_by_their_place(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps([document("a"), 7, {"trajectory_id": SECRET}, document("b")]))
    code, output = run_command(f"onward rewards score {tmp_path / 'x.json'}")
    first, second, third, last = output.splitlines()
    assert (code, json.loads(first)["trajectory_id"], json.loads(last)["trajectory_id"]) == (2, "a", "b")
    assert second == "item 2: It is no trajectory but another JSON value: give one object for each."
    assert third.startswith("item 3: ")
    assert SECRET not in output


def test_a_broken_first_line_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "x").write_text('{"a": 1\n' + json.dumps(document("b")) + "\n")
    code, output = run_command(f"onward rewards score {tmp_path / 'x'}")
    assert code == 2
    assert output.splitlines()[0] == "line 1: The message is not JSON."
    assert json.loads(output.splitlines()[1])["trajectory_id"] == "b"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (b"\x00\x01", "x is no trajectory, JSON list or JSON lines: The message is not JSON."),
        (b"[" * 100_000, "The message nests deeper than 33 levels."),
        (b'{"a":' * 100_000, "The message nests deeper than 33 levels."),
        (b'{"a": 1e999}\n', "line 1: A number is NaN, infinite or too large"),
        (b"{\"a\": 1, \"a\": 2}\n", "line 1: An object of the message has the same key twice"),
        (b'{"a": 1}\n"\xff"\n', "line 2: The message is not UTF-8 text."),
    ],
)  # fmt: skip
def test_hostile_input_is_told_and_never_a_traceback(tmp_path: Path, given: bytes, words: str) -> None:
    (tmp_path / "x").write_bytes(given)
    code, output = run_command(f"onward rewards score {tmp_path / 'x'}")
    assert code == 2 and words in output
    assert not any(line.startswith("{") for line in output.splitlines())


def test_a_reader_that_leaves_early_is_no_defect(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text((json.dumps(document()) + "\n") * 300)
    command = f"{sys.executable} -m onward.cli rewards score a.jsonl | head -n 1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    assert len(done.stdout.splitlines()) == 1
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr


def test_an_id_that_is_a_secret_is_not_printed(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(document(SECRET)))
    code, output = run_command(f"onward rewards score {tmp_path / 'x.jsonl'}")
    assert code == 2
    assert output.startswith("line 1: ") and SECRET not in output


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("onward rewards score missing.jsonl", "missing.jsonl cannot be read: No such file or directory."),
        ("onward rewards score .", "cannot be read: Is a directory."),
        ("onward rewards score words.txt", "words.txt is no trajectory, JSON list or JSON lines"),
        ("onward rewards explain t1", "Nothing ever ran on onward-data: start it with 'onward up'"),
        ("onward rewards explain a/b", "Trajectory id 'a/b' is not usable: give 1 to 128 letters"),
        ("onward rewards simulate --weights task_completion=1", "Nothing ever ran on onward-data"),
        (
            "onward rewards simulate --weights task_completion=.5",
            "The weights sum to 0.5: they must sum to 1",
        ),
        ("onward rewards simulate --weights speed=1", "'speed=1' is not a weight"),
        ("onward rewards explain t1 --url nowhere", "nowhere does not answer (UnsupportedProtocol)"),
        ("onward rewards explain t1 --url http://127.0.0.1:9", "http://127.0.0.1:9 does not answer"),
    ],
)
def test_what_cannot_be_done_is_one_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.txt").write_text(f"just words and {SECRET}\n")
    code, output = run_command(command)
    assert code == 2
    assert words in output and SECRET not in output
    assert len(output.strip().splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["words.txt"]


def test_a_file_without_trajectories_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("\n\n")
    assert run_command(f"onward rewards score {tmp_path / 'x.jsonl'}") == (0, "No trajectory was given.\n")


def test_code_is_looked_at_where_the_extra_is_installed(tmp_path: Path) -> None:
    """Sound Python in a tool's arguments: linter and security say 1, so (.4 + .15 + .25·.5)/.8."""
    pytest.importorskip("pylint", reason="run: pip install -e '.[code]'")
    pytest.importorskip("bandit", reason="run: pip install -e '.[code]'")
    item = document()
    code = '"""Adds."""\n\n\ndef add(one, other):\n    """Sum of both."""\n    return one + other\n'
    item["turns"][0]["action"] |= {"tool_name": "write_file", "tool_args": {"path": "a.py", "content": code}}
    (tmp_path / "x.jsonl").write_text(json.dumps(item))
    status, output = run_command(f"onward rewards score {tmp_path / 'x.jsonl'}")
    (found,) = lines(output)
    quality = found["components"]["code_quality"]
    assert (status, quality["score"], quality["weight"]) == (0, 1.0, pytest.approx(0.15 / 0.8))
    assert found["total_reward"] == pytest.approx((0.4 + 0.15 + 0.25 * 0.5) / 0.8)


def test_weights_come_from_the_settings(tmp_path: Path) -> None:
    (tmp_path / "onward.toml").write_text(
        "[reward]\ntask_completion = 0.5\nefficiency = 0.0\ncode_quality = 0.0\nuser_feedback = 0.5\n"
    )
    (tmp_path / "x.jsonl").write_text(json.dumps(document()))
    code, output = run_command(f"onward rewards score {tmp_path / 'x.jsonl'} -c {tmp_path / 'onward.toml'}")
    assert (code, lines(output)[0]["total_reward"]) == (0, pytest.approx(0.75))
    done = rewards_score(
        tmp_path, "x.jsonl",
        REWARD_WEIGHT_TASK_COMPLETION="1", REWARD_WEIGHT_USER_FEEDBACK="0",
    )  # fmt: skip
    assert lines(done.stdout)[0]["total_reward"] == pytest.approx(1.0)


def test_scoring_files_loads_no_heavy_part(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(document()))
    code = (
        "import sys, onward.cli\n"
        "try: onward.cli.main(['rewards', 'score', 'x.jsonl'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'chdb', 'fastapi') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert len(lines(done.stdout)) == 1
    assert done.stderr.strip().splitlines()[-1] == "[]"
