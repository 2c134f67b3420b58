"""``onward rubrics`` as a user types it. Reference points stand for models, so figures are known."""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from chat_server import ChatServer, text
from commands import run_text

from onward.cli.rubrics import stop_asked
from onward.rubrics.tasks import make_task

TOY = (
    'families=["expense_audit"]', "seeds_per_family=2", "tasks_per_step=2", "group_size=4", "questions=1",
    "eval_tasks=2", "eval_every=1", "warm_start.demonstrations=32", "warm_start.steps=3", "size.hidden=32",
    "size.heads=2", "size.intermediate=64",
)  # fmt: skip
_LOADED = """
import sys
from onward.cli import main
try:
    main(sys.argv[1:])
finally:
    print([name for name in ("torch", "onward.redaction", "onward.bus", "nats") if name in sys.modules])
"""
"""A command, and which slow modules it has loaded."""


def settings(*assignments: str) -> list[str]:
    return [word for one in assignments for word in ("--set", one)]


def test_a_rubric_is_written_and_explained_with_a_page(tmp_path: Path) -> None:
    shown = run_text(tmp_path, "rubrics", "generate", "travel_itinerary/1", "--writer", "baseline:template")
    assert shown.returncode == 0 and "Has each action a next step?" in shown.stdout
    said = run_text(
        tmp_path, "rubrics", "generate", "travel_itinerary/1", "--writer", "baseline:full_oracle", "--json"
    )
    (entry,) = json.loads(said.stdout)["rubrics"]
    task = make_task("travel_itinerary", 1)
    assert entry["task"] == "travel_itinerary/1" and entry["brief"] == task.brief
    (tmp_path / "r.json").write_text(said.stdout)
    done = run_text(tmp_path, "rubrics", "explain", "r.json", "--page", "r.html", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # The oracle's weights are the truth, rounded: every criterion separates, and the terms add up.
    for one in found["criteria"]:
        assert sorted(one["holds"] + one["fails"]) == list(range(1, 13)) and len(one["holds"]) == 6
        assert one["share"] == pytest.approx(one["true_share"], abs=0.05) and one["gap"] > 0
    assert found["missing"] == {}
    assert sum(found["reward"]["terms"].values()) == pytest.approx(found["reward"]["total"])
    truth = [sum(w for c, w in zip(task.active, task.weights, strict=True) if str(c) in one["satisfied"])
             for one in found["outputs"]]  # fmt: skip
    assert [one["truth"] for one in found["outputs"]] == pytest.approx(truth)
    page = (tmp_path / "r.html").read_text()
    assert page.count("<details>") == 12 and "Output 12: this rubric 0.00, truth 0.00" in page
    text_shown = run_text(tmp_path, "rubrics", "explain", "r.json")
    assert "next_step_present" in text_shown.stdout and "(alignment)" in text_shown.stdout


def test_a_rubric_of_ones_own_that_counts_what_the_truth_does_not(tmp_path: Path) -> None:
    task = make_task("travel_itinerary", 1)
    useless = [check for check, weight in zip(task.active, task.weights, strict=True) if weight == 0][:3]
    criteria = [{"check": one.name, "arg": one.arg, "weight": 2} for one in useless]
    given = json.dumps({"criteria": criteria})
    done = run_text(tmp_path, "rubrics", "explain", "-", "travel_itinerary/1", "--json", given=given)
    found = json.loads(done.stdout)
    assert [one["true_share"] for one in found["criteria"]] == [0, 0, 0]
    assert sum(found["missing"].values()) == pytest.approx(1)
    assert found["reward"]["measures"]["f1"] == 0


def test_explain_writes_the_rubric_of_a_task_itself(tmp_path: Path) -> None:
    words = ("rubrics", "explain", "travel_itinerary/1", "--writer", "baseline:full_oracle", "--json")
    found = json.loads(run_text(tmp_path, *words, "--page", "page.html").stdout)
    task = make_task("travel_itinerary", 1)
    named = {one["check"] for one in found["criteria"]}
    assert named <= {str(check) for check in task.active} and found["reward"]["measures"]["f1"] > 0.9
    assert "baseline:full_oracle" in (tmp_path / "page.html").read_text()
    two = run_text(tmp_path, *words[:3], "expense_audit/1", *words[3:])
    assert two.returncode == 2 and "leave expense_audit/1 out" in two.stderr


def test_eval_has_figures_reference_points_and_controls(tmp_path: Path) -> None:
    words = ("rubrics", "eval", "baseline:full_oracle", "--seeds", "2", "--split", "held_out_families")
    done = run_text(tmp_path, *words, "--json")
    facts = json.loads(done.stdout)["splits"]["held_out_families"]
    assert facts["episodes"] == 16 and facts["invalid"] == 0 and facts["degenerate"] == 0
    assert facts["skill"] > 0.95 and facts["interval"]["low"] > 0.95
    assert facts["skill"] == pytest.approx(facts["reference_points"]["full_oracle"]["skill"])
    assert facts["controls"]["shuffled_tasks"]["skill"] < facts["skill"] - 0.3
    assert facts["cost"]["completion_tokens"] == 0 and facts["cost"]["dollars"] is None
    shown = run_text(tmp_path, *words)
    assert "held_out_families" in shown.stdout and "keywords of the brief" in shown.stdout


@pytest.mark.parametrize(
    ("a", "b", "code", "verdict"),
    [
        ("baseline:full_oracle", "baseline:random", 0, "a"),
        ("baseline:random", "baseline:full_oracle", 1, "b"),
        ("baseline:template", "baseline:template", 3, "undecided"),
    ],
)
def test_compare_says_which_is_better_by_its_exit_code(
    tmp_path: Path, a: str, b: str, code: int, verdict: str
) -> None:
    done = run_text(tmp_path, "rubrics", "compare", "--a", a, "--b", b, "--seeds", "1", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["verdict"]) == (code, verdict)
    gap = found["difference"]
    assert gap["mean"] == pytest.approx(found["a"]["skill"] - found["b"]["skill"])
    assert gap["low"] <= gap["mean"] <= gap["high"]


def test_a_model_on_a_server_is_compared_with_its_cost(tmp_path: Path) -> None:
    """Each episode is two requests of 5 + 5 tokens: at 1 and 3 dollars a million, 40 dollars a million."""

    def script(body: dict[str, Any]) -> dict[str, Any]:
        form = body["response_format"]["json_schema"]
        if form["name"] == "Question":
            return text('{"ask": "nothing"}')
        kinds = [one["properties"] for one in form["schema"]["$defs"].values()][:3]
        return text(json.dumps({"criteria": [
            {"check": one["check"]["const"], "weight": 1,
             "arg": one["arg"].get("const", one["arg"].get("enum", [""])[0])} for one in kinds
        ]}))  # fmt: skip

    with ChatServer(script).running() as server:
        done = run_text(
            tmp_path, "rubrics", "compare", "--a", f"openai:m1@{server.url}", "--b", "baseline:full_oracle",
            "--seeds", "1", "--price-a", "1,3", "--json", OPENAI_API_KEY="",
        )  # fmt: skip
    found = json.loads(done.stdout)
    assert done.returncode == 1 and found["a"]["invalid"] == 0 and len(server.requests) == 16
    assert found["a"]["cost"]["requests"] == 16
    assert found["a"]["cost"]["dollars"] == pytest.approx(8 * 2 * 20e-6)


def test_train_goes_on_with_its_folder_and_its_writer_is_used(tmp_path: Path) -> None:
    words = ("rubrics", "train", "--out", "run", "--steps", "2", *settings(*TOY))
    done = run_text(tmp_path, *words, "--json")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["event"] for one in events] == [
        "demonstrations", *["warm_start"] * 3, "step", "validation", "step", "validation", "ended",
    ]  # fmt: skip
    assert (tmp_path / "run" / "curves.png").is_file()
    again = run_text(tmp_path, "rubrics", "train", "--out", "run")
    assert again.returncode == 0 and "onward rubrics eval run" in again.stdout
    other = run_text(tmp_path, "rubrics", "train", "--out", "run", "--steps", "9")
    assert other.returncode == 2 and "another plan" in other.stderr
    written = run_text(tmp_path, "rubrics", "generate", "expense_audit/5", "--writer", "run", "--json")
    assert json.loads(written.stdout)["rubrics"][0]["rubric"]["criteria"]


def test_ctrl_c_asks_for_a_stop_and_the_second_one_ends() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stop_asked() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("generate", "travel_itinerary", "--writer", "baseline:ransom"), "did you mean random?"),
        (("train", "--set", "group_sise=1"), "did you mean group_size?"),
    ],
)
def test_what_is_wrong_is_said_before_anything_slow_is_loaded(
    tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    command = [sys.executable, "-c", _LOADED, "rubrics", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert said in done.stderr and done.stdout == "[]\n"


def test_a_file_with_a_list_is_no_rubric(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("[1, 2]")
    done = run_text(tmp_path, "rubrics", "explain", "list.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("list.json is no rubric: give an object with criteria")


def test_a_run_is_added_only_where_something_ran(tmp_path: Path) -> None:
    for part in ("writer", "base"):
        (tmp_path / "run" / part).mkdir(parents=True)
        (tmp_path / "run" / part / "writer.json").write_text('{"base": null}')
    done = run_text(tmp_path, "rubrics", "add", "run")
    assert done.returncode == 2 and done.stderr.startswith("Nothing ever ran on onward-data")
    assert [one.name for one in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("train", "--out", "closed/run"), "The run in closed/run cannot be read (Permission denied)"),
        (("generate", "travel_itinerary", "--writer", "closed"), "The writer closed cannot be read (Permis"),
        (("eval", "local:closed"), "The writer closed cannot be read (Permission denied)"),
    ],
)
def test_a_closed_folder_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    (tmp_path / "closed").mkdir()
    stat = Path.stat

    def refused(path: Path, **options: Any) -> Any:  # as for a user who is not root
        if "closed" in path.parts[:-1]:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(Path, "stat", refused)
    done = run_text(tmp_path, "rubrics", *words)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("generate", "travel_itineray", "--writer", "baseline:random"), "did you mean 'travel_itinerary'?"),
        (("generate", "travel_itinerary/x", "--writer", "baseline:random"), "give FAMILY/SEED"),
        (("generate", "travel_itinerary", "--writer", "baseline:ransom"), "did you mean random?"),
        (("generate", "travel_itinerary", "--writer", "nowhere"), "There is no rubric writer 'nowhere'"),
        (("eval", "baseline:random", "--split", "new_seed"), "did you mean new_seeds?"),
        (("eval", "baseline:random", "--seeds", "1"), "--no-controls"),
        (("eval", "baseline:random", "--price", "7"), "give IN,OUT"),
        (("explain", "none.json"), "cannot be read"),
        (("releases",), "Nothing ever ran on onward-data: start it with 'onward up'"),
        (("add", "."), "has no writer/writer.json"),
        (("train", "--set", "nope=1"), "no such setting, there are model, algorithm"),
        (("explain", "-"), "is no JSON"),
        (("train", "--set", "group_sise=3"), "did you mean group_size?"),
        (("train", "--set", "group_size"), "give NAME=VALUE"),
        (("train", "--set", "group_size=two"), "give a whole number"),
        (("train", "--set", "warm_start.step=3"), "did you mean warm_start.steps?"),
        (("train", "--set", "warm_start=3"), "give one of its settings, such as warm_start.demonstrations,"),
        (("train", "--algorithm", "ppo"), "needs a critic"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = run_text(tmp_path, "rubrics", *words)
    assert (done.returncode, done.stdout) == (2, "") and said in done.stderr
    assert list(tmp_path.iterdir()) == []
