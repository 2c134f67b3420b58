"""``onward trajectories`` and ``onward sft`` on a real warehouse, while it runs and while nothing does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from docs_blocks import run_command
from trajectory_store import DAY, reward, stored, trajectory

from onward.contracts import Reward, Trajectory, validate
from onward.export import records

UUID = "3f0c3ce4-0000-4000-8000-00000000000"
HOSTILE = "\x1b[31mred\x1b[0m [bold]loud[/bold] \u202ebackwards"


SAMPLED = {
    "generation_id": "g", "continues": None, "prompt_ids": [1], "token_ids": [2], "logprobs": [-1.0],
    "temperature": 1.0, "top_p": 1.0, "top_k": None, "finish_reason": "stop", "model_digest": "0f1e2d",
}  # fmt: skip


def many() -> list[dict]:
    failed = {"outcome": {"status": "failed"}}
    by_a_policy = trajectory(f"{UUID}2", hours=1, agent_id="other-agent", domain="coding")
    by_a_policy["turns"][1]["action"]["sampling"] = SAMPLED
    return [
        trajectory(f"{UUID}1", hours=0, group_id="g"),
        by_a_policy,
        trajectory(f"{UUID}3", hours=2, model="open-1", group_id="g", **failed, answer="No idea."),
        trajectory("unscored", hours=3, session_id="special", answer=HOSTILE),
        trajectory("odd", hours=4, task_id="it's {a:String} -- '; DROP TABLE trajectories", **failed),
        trajectory("low", hours=5, group_id="g"),
    ]


REWARDS = [
    reward(f"{UUID}1", 0.9),
    reward(f"{UUID}2", 0.8),
    reward(f"{UUID}3", 0.2, success=False),
    reward("odd", 0.1, success=False),
    reward("low", 0.6),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("store") / "data"
    with stored(folder, many(), REWARDS):
        yield folder


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def listed(data: Path, options: str) -> list[str]:
    code, output = run_command(f"onward trajectories list --json --dir {data} {options}")
    assert code == 0, output
    return [row["trajectory_id"].removeprefix(UUID) for row in json.loads(output)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", ["low", "odd", "unscored", "3", "2", "1"]),
        ("--limit 2", ["low", "odd"]),
        (f"--since {DAY.isoformat()} --until 2026-03-01T14:00:00", ["2", "1"]),
        ("--since 2026-03-01T14:00:00Z --until 2026-03-01T14:00:00.001Z", ["3"]),
        ("--since 1d", []),
        ("--agent other-agent", ["2"]),
        ("--domain coding", ["2"]),
        ("--model open-1", ["3"]),
        ("--model open", []),
        ("--model 0f1e2d", ["2"]),
        ("--session special", ["unscored"]),
        ("--min-reward 0.8", ["2", "1"]),
        ("--max-reward 0.2", ["odd", "3"]),
        ("--min-reward 0.2 --max-reward 0.6", ["low", "3"]),
        ("--outcome success", ["low", "unscored", "2", "1"]),
        ("--outcome failure", ["odd", "3"]),
        ("--outcome failed", ["odd", "3"]),
        ("--outcome abandoned", []),
        ("--outcome none", []),
        (f"--outcome success --task task-{UUID}1", ["1"]),
        ("--task \"it's {a:String} -- '; DROP TABLE trajectories\"", ["odd"]),
        ('--agent "\' OR 1=1 --"', []),
        ("--agent 'a\\nb' --limit 1", []),
    ],
)
def test_each_filter_chooses_what_it_says(data: Path, options: str, expected: list[str]) -> None:
    assert listed(data, options) == expected


def test_the_table_is_readable_at_80_columns_and_cuts_no_id(data: Path) -> None:
    code, output = run_command(f"onward trajectories list --dir {data}")
    lines = output.splitlines()
    assert code == 0 and max(map(len, lines)) <= 80
    assert [line.split() for line in lines[-3:-1]] == [
        [f"{UUID}2", "2026-03-01", "13:00", "2", "success", "0.8000"],
        [f"{UUID}1", "2026-03-01", "12:00", "2", "success", "0.9000"],
    ]
    assert lines[-1] == "6 of 6 that match, 6 are stored."
    assert any(line.split()[0] == "unscored" and line.split()[-1] == "-" for line in lines[2:-1])


def test_show_reads_turn_by_turn_and_takes_a_beginning_of_the_id(data: Path) -> None:
    code, output = run_command(f"onward trajectories show {UUID}1 --dir {data}")
    assert code == 0 and max(map(len, output.splitlines())) <= 80
    for part in ("Turn 1", "What is 17 times 23?", 'calculator({"expression": "17 * 23"})', "391",
                 "It is 391.", "raw_total 0.9000", "task_completion"):  # fmt: skip
        assert part in output, part
    code, output = run_command(f"onward trajectories show lo --dir {data} --json")
    document = json.loads(output)
    assert (code, document["trajectory"]["trajectory_id"]) == (0, "low")
    assert document["reward"]["metadata"]["raw_total"] == 0.6 and document["feedback"] == []
    code, output = run_command(f"onward trajectories show 3f0c --dir {data}")
    assert code == 2 and f"'3f0c' begins several ids: give more of one ({UUID}1, {UUID}2, {UUID}3)" in output
    code, output = run_command(f"onward trajectories show nothing --dir {data}")
    assert code == 2 and "No stored trajectory has an id that begins with 'nothing'" in output


def test_stored_text_is_shown_and_not_obeyed(data: Path) -> None:
    code, output = run_command(f"onward trajectories show unscored --dir {data}")
    assert code == 0 and "\x1b" not in output and "\u202e" not in output
    assert "\\x1b[31mred\\x1b[0m [bold]loud[/bold] \\u202ebackwards" in output
    assert "Unscored, which is not a zero" in output


def test_an_export_says_how_many_of_how_many_and_why_not_the_others(data: Path) -> None:
    command = (
        f"onward trajectories export --out work.jsonl --dir {data} --agent agent-zero-main --min-reward 0.5"
    )
    code, output = run_command(command)
    said = " ".join(output.split())
    assert code == 0, output
    assert said.endswith(
        "Wrote 2 of 6 trajectories to work.jsonl; left out: 1 of another agent, 1 unscored, 2 with a reward "
        "outside of the bounds."
    )
    lines = [json.loads(line) for line in Path("work.jsonl").read_text().splitlines()]
    assert [line["trajectory"]["trajectory_id"] for line in lines] == ["low", f"{UUID}1"]
    for line in lines:
        validate(line["trajectory"], Trajectory)
        validate(line["reward"], Reward)
    code, output = run_command(command)
    assert code == 2 and output.splitlines()[-1].startswith("work.jsonl exists already")
    code, output = run_command(f"{command} --force --limit 1 --json")
    assert code == 0 and json.loads(output)["left_out"]["limit"] == 1
    assert len(Path("work.jsonl").read_text().splitlines()) == 1
    assert [path.name for path in Path().iterdir()] == ["work.jsonl"]


def test_an_export_of_nothing_leaves_no_file(data: Path) -> None:
    code, output = run_command(f"onward trajectories export --out x.jsonl --dir {data} --agent nobody")
    assert code == 2 and list(Path().iterdir()) == []
    assert output.splitlines()[-1] == (
        "Nothing was written to x.jsonl: none of 6 trajectories; left out: 6 of another agent."
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("list --since yesterday", "'yesterday' is no time: give an age such as 7d or 12h"),
        ("list --since 1d --until 2d", "--since is not before --until"),
        ("list --outcome good", "There is no outcome 'good': give one of success, failure"),
        ("list --min-reward 0.9 --max-reward 0.1", "No reward is at least 0.9 and at most 0.1"),
        ("list --min-reward nan", "--min-reward nan is no reward"),
        ("export --out x --format csv", "There is no format 'csv': give one of jsonl, parquet, openai"),
        ("export --out x --margin 0.1", "--margin is for --format pairs"),
        ("export --out x --format pairs --return-from luck", "--return-from 'luck' is unknown"),
        ("export --out .", "exists already"),
        ("export --out . --force", "is a folder: give the name of a file"),
        ("export --out . --force --format datasets", "is no folder of 'datasets', so --force does not"),
        ("export --out /proc/x.jsonl", "The file /proc/x.jsonl cannot be written"),
        ("show a/b", "Trajectory id 'a/b' is not usable"),
        ("list", "Nothing ever ran on onward-data: start it with 'onward up', or name its folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_one_sentence(options: str, words: str) -> None:
    code, output = run_command(f"onward trajectories {options}")
    assert code == 2 and words in output and len(output.strip().splitlines()) == 1
    assert list(Path().iterdir()) == []


def test_demonstrations_are_what_succeeded_and_scored_well_each_once(data: Path) -> None:
    code, output = run_command(f"onward sft export --out demos.jsonl --dir {data}")
    said = " ".join(output.split())
    assert code == 0, output
    assert said.endswith(
        "Wrote 1 demonstration from 6 trajectories to demos.jsonl; left out: 2 with another outcome, "
        "1 unscored, 1 with a reward outside of the bounds, 1 the same as another."
    )
    code, output = run_command(f"onward sft export --out low.jsonl --min-reward 0.1 --dir {data} --json")
    assert json.loads(output)["left_out"] == {"outcome": 2, "unscored": 1, "duplicate": 2}


def test_pairs_are_made_within_groups_whatever_the_size_of_a_page(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"onward trajectories export --format pairs --dir {data}"
    code, output = run_command(f"{command} --out whole.jsonl")
    assert code == 0 and " ".join(output.split()).endswith(
        "Wrote 2 pairs of 3 of 6 trajectories to whole.jsonl; left out: 1 unscored, 2 without another "
        "attempt at the same task and prompt."
    )
    pairs = [json.loads(line) for line in Path("whole.jsonl").read_text().splitlines()]
    assert {(pair["chosen_id"], pair["rejected_id"]) for pair in pairs} == {
        (f"{UUID}1", f"{UUID}3"), ("low", f"{UUID}3"),
    }  # fmt: skip
    run_command(f"onward trajectories export --out order.jsonl --dir {data}")
    monkeypatch.setattr(records, "ID_PAGE", 2)
    run_command(f"{command} --out paged.jsonl")
    assert Path("paged.jsonl").read_bytes() == Path("whole.jsonl").read_bytes()
    run_command(f"onward trajectories export --out order.paged.jsonl --dir {data}")
    assert Path("order.paged.jsonl").read_bytes() == Path("order.jsonl").read_bytes()


def test_nothing_serves_and_the_same_is_listed_and_exported(data: Path, tmp_path: Path) -> None:
    """``data`` is beside a running warehouse in every test above; here the engine starts for one command."""
    folder = tmp_path / "data"
    with stored(folder, many(), REWARDS):
        pass
    assert run_command(f"onward trajectories list --dir {folder}") == run_command(
        f"onward trajectories list --dir {data}"
    )
    for name, where in (("resting", folder), ("running", data)):
        code, output = run_command(f"onward trajectories export --out {name}.jsonl --dir {where}")
        assert code == 0, output
    assert Path("resting.jsonl").read_bytes() == Path("running.jsonl").read_bytes()
    assert not (folder / "nats").exists()
