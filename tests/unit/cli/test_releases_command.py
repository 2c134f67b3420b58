"""``onward releases``: what is printed of a record.

With a real store: tests/integration/test_release_stream.py.
"""

import json
import re
from pathlib import Path

import pytest
from docs_blocks import ROOT, run_command

from onward.cli import releases
from onward.cli.output import print_text
from onward.cli.releases import list_table, show_release
from onward.files import locked
from onward.release.evidence.rates import ArmRates
from onward.release.plan import State
from onward.release.record import Model, ReleaseRecord
from onward.release.wording import verdict_words, why_not_released

JOB = "9b1f6f5e-4a57-4c33-9d3e-6e4ad9a1c006"
RELEASE = "36e7bd33-7039-5c2f-a0c9-af8a4624a9ce"
DIGEST = "0123456789abcdef" * 4


def _fact(passed: dict[str, int], current: dict[str, int], **more: object) -> dict:
    return {
        "passed": sum(passed.values()), "of": 20, "current": sum(current.values()), "better": 0,
        "by_check": {
            name: {"candidate": passed[name], "current": current[name], "of": 4} for name in passed
        },
        "failing": [], **more,
    }  # fmt: skip


def rejected() -> ReleaseRecord:
    """A candidate that does more tasks and loses its form: 8 answers lost, none won, p = 1/256."""
    refusal = dict.fromkeys(("password", "spying", "forgery", "break_in", "vandalism"), 0)
    summary = {
        "suite": "desk", "limit": -0.05, "tasks": 100, "candidate": 0.61, "current": 0.55,
        "difference": 0.06, "low": -0.02, "high": 0.14,
        "by_kind": {"lookup": {"candidate": 0.7, "current": 0.6}, "sum": {"candidate": 0.52, "current": 0.5}},
        "checks": {
            "refusal": _fact(refusal, refusal, ok=True, verdict="not shown", p=1.0),
            "format": _fact(
                {"greeting": 4, "sum": 4, "lookup": 1, "day": 3, "note": 0},
                {"greeting": 4, "sum": 4, "lookup": 4, "day": 4, "note": 4},
                ok=False, verdict="failed", p=1 / 256,
                failing=[
                    {"check_id": "lookup", "answer": 'unknown"}}'},
                    {"check_id": "note", "answer": 'text": "unknown"}}'},
                ],
            ),
        },
        "safety": "failed",
    }  # fmt: skip
    validation = {"summary": summary, "not_run": ["toxicity", "jailbreak"]}
    reason = why_not_released(validation)
    model = Model(model_id="agent-zero-rl-v2", adapter_digest=DIGEST, object_prefix="p", training_job_id=JOB)
    begun, ended = "2026-01-05T18:00:00.000Z", "2026-01-05T18:00:41.000Z"
    return ReleaseRecord(
        release_id=RELEASE, job_id=JOB, epoch=1, state=State.REJECTED, created_at=begun, updated_at=ended,
        candidate=model, current=model.model_copy(update={"model_id": "agent-zero-rl-v1"}),
        validation=validation, closed_at=ended, decision="rejected", reason=reason,
        history=[
            {"at": begun, "state": "proposed", "step": 0, "why": f"job {JOB} committed epoch 1"},
            {"at": ended, "state": "rejected", "step": 0, "why": reason},
        ],
    )  # fmt: skip


def taken_back() -> ReleaseRecord:
    record = rejected()
    return record.model_copy(
        update={
            "state": State.ROLLED_BACK,
            "reason": "the error gate crossed",
            "rates": {
                "candidate": ArmRates(
                    sessions=40, errors=3, error_rate=0.075, outcomes=36, mean_outcome=0.31
                ),
                "current": ArmRates(
                    sessions=160, errors=1, error_rate=1 / 160, outcomes=9, mean_outcome=0.75
                ),
            },
            "e_values": {"error": 60.0, "reward": 2.5, "feedback": 1.0, "all": 23.0, "support": 0.56},
            "evidence": {"rules": {"alpha": 0.045}},
        }
    )


def shown(capsys: pytest.CaptureFixture[str], record: ReleaseRecord) -> str:
    show_release(record)
    return "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_page_shows_what_is_printed_of_a_rejected_candidate(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "release-evidence.md").read_text(encoding="utf-8")
    found = re.search(r"## Looking at a release\n.*?```text\n(.*?)```", page, re.S)
    assert found is not None
    output = shown(capsys, rejected())
    parts = [part.strip() for part in found[1].split("…\n") if part.strip()]
    assert len(parts) == 5 and all(part in output for part in parts)


def test_why_a_candidate_was_rejected_stands_first_in_numbers_with_two_failing_answers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = shown(capsys, rejected())
    first = " ".join(output.split("\n\n")[0].split())
    assert first == (
        "agent-zero-rl-v2 was rejected: 12 of 20 requests answered in the right form, current 20 of 20, "
        "p 0.004."
    )
    assert re.search(r'format +lookup +unknown"}}', output)
    assert re.search(r'format +note +text": "unknown"}}', output)
    assert re.search(r"format +lookup +1 of 4 +4 of 4", output)
    assert re.search(r"refusal +all +0 of 20 +0 of 20 +1.000 +not shown", output)


def test_a_failed_validation_names_the_check_that_failed_beside_suites_that_passed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    record = rejected()
    summary = (record.validation or {})["summary"]
    desk = {"role": "benchmark", "verdict": "passed", "unscored": {"items": 0}, "judged": "", "tasks": 100}
    validation = {"verdict": "failed", "summary": {**summary, "suites": {"desk": desk}}}
    output = shown(capsys, record.model_copy(update={"validation": validation}))
    assert "Validation: failed, by the check of format." in output
    both = {**validation, "summary": {**summary, "suites": {"desk": {**desk, "verdict": "failed"}}}}
    output = shown(capsys, record.model_copy(update={"validation": both}))
    assert "Validation: failed, by the suite desk and the check of format." in output
    assert verdict_words({"verdict": "passed", "summary": {"checks": {}}}) == "passed"


def test_no_line_is_wider_than_the_terminal_and_no_id_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    for record in (rejected(), taken_back()):
        lines = shown(capsys, record).splitlines()
        assert max(len(line) for line in lines if not line.endswith(".")) <= 80  # a terminal wraps sentences
        for name in (RELEASE, JOB, DIGEST, "agent-zero-rl-v2", "agent-zero-rl-v1"):
            assert any(name in line for line in lines), name


def test_rates_stand_beside_e_values(capsys: pytest.CaptureFixture[str]) -> None:
    output = shown(capsys, taken_back())
    assert re.search(r"error +failed sessions +3 of 40 \(7.5 %\) +1 of 160 \(0.6 %\) +60\n", output)
    assert re.search(r"reward +mean outcome +0.31 in 36 +0.75 in 9 +2.5\n", output)
    assert re.search(r"feedback +negative feedback +none judged yet +none judged yet +1\n", output)
    words = " ".join(output.split())
    assert re.search(r"Decisive is E of all: evidence against \S+ of 22.2 needed, ", words)
    assert "A candidate is taken back at 22.2." in words and "no other row decides alone" in words
    assert "E that it is not worse, by its outcomes: 0.56; shown from 10 on." in output


def test_raw_totals_are_named_where_they_are_judged_and_the_rule_that_decides(capsys) -> None:
    record = taken_back()
    rates = {
        arm: one.model_copy(update={"raw_totals": one.outcomes, "mean_raw_total": mean})
        for (arm, one), mean in zip(sorted(record.rates.items()), (0.41, 0.63), strict=True)
    }
    evidence = {
        "rules": {"alpha": 0.045, "threshold_ms": 300_000, "consecutive": 3, "least_sessions": 20},
        "threshold": {"strikes": {"error": 2}},
    }
    output = shown(capsys, record.model_copy(update={"rates": rates, "evidence": evidence}))
    outcomes = [f"{record.rates[arm].mean_outcome:.2f}" for arm in ("candidate", "current")]
    row = rf"reward +mean outcome, raw total +{outcomes[0]}, 0.41 in 36 +{outcomes[1]}, 0.63 in 9 +2.5\n"
    assert re.search(row, output)
    words = " ".join(output.split())
    assert "Decisive are the limits of the threshold rule, not E: 3 checks in a row" in words
    assert "Broken so far: error 2. A window with fewer than 20 sessions" in words


def test_what_a_model_said_moves_no_cursor_and_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    record = rejected()
    assert record.validation is not None
    checks = record.validation["summary"]["checks"]
    checks["format"]["failing"][0]["answer"] = "\x1b[2J[red]gone[/red]\r\n"
    record = record.model_copy(update={"reason": "no gateway can load it (\x1b[31m)"})
    output = shown(capsys, record)
    assert "\x1b" not in output and r"\x1b[2J[red]gone[/red]\r\n" in output
    assert r"no gateway can load it (\x1b[31m)" in output


def test_the_list_has_each_release_and_says_when_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    print_text(list_table([rejected(), taken_back()]))
    output = " ".join(capsys.readouterr().out.split())
    assert "agent-zero-rl-v2 2026-01-05 18:00:00 rejected" in output
    assert "rolled_back the error gate crossed" in output
    unproved = taken_back().model_copy(update={"validation": {"verdict": "not validated"}})
    print_text(list_table([unproved]))
    assert "validation: not validated; the error gate crossed" in " ".join(capsys.readouterr().out.split())
    print_text(list_table([]))
    assert capsys.readouterr().out == "No release yet.\n"


def test_a_release_is_found_by_its_id_and_by_its_candidate_and_json_reads_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = rejected().model_copy(update={"release_id": "r-old"})

    async def records(*_: object) -> list[ReleaseRecord]:
        return [older, taken_back()]

    monkeypatch.setattr(releases, "_records", records)
    for words, expected in (("", RELEASE), (" r-old", "r-old"), (" agent-zero-rl-v2", RELEASE)):
        code, output = run_command(f"onward releases show{words} --json")
        assert code == 0 and json.loads(output)["release_id"] == expected
    document = json.loads(run_command("onward releases show --json")[1])
    assert document["sentence"] == (
        "agent-zero-rl-v2 was taken back to agent-zero-rl-v1: the error gate crossed."
    )
    assert document["rates"]["candidate"]["error_rate"] == 0.075 and "evidence" not in document
    assert [one["release_id"] for one in json.loads(run_command("onward releases list --json")[1])] == [
        RELEASE, "r-old",
    ]  # fmt: skip
    assert json.loads(run_command("onward releases list --limit 1 --json")[1])[0]["release_id"] == RELEASE
    output = run_command("onward releases show agent-zero-rl-v2")[1]
    assert "Before it, release r-old: agent-zero-rl-v2 was rejected: 12 of 20 requests answered" in output
    code, output = run_command("onward releases show v9")
    assert code == 2 and output.startswith("There is no release 'v9': expected the id of a release")


def test_the_former_name_works_and_names_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[object, ...]] = []
    monkeypatch.setattr(releases, "_tell", lambda *words: told.append(words))
    for name in ("abort", "promote", "hold", "resume"):
        code, output = run_command(f"onward release {name} --release r-1")
        assert code == 0 and f"'onward release {name}' is now 'onward releases {name}'" in output
        assert run_command(f"onward releases {name} r-1") == (0, "")
    assert [words[:2] for words in told[::2]] == [words[:2] for words in told[1::2]]
    assert told[0][:2] == ("abort", "r-1")


def test_where_nothing_ever_ran_one_sentence_says_so(tmp_path: Path) -> None:
    code, output = run_command(f"onward releases list --dir {tmp_path / 'none'}")
    assert (code, len(output.splitlines())) == (2, 1) and output.startswith("Nothing ever ran on ")
    assert not (tmp_path / "none").exists()


def test_while_it_starts_no_sentence_says_that_nothing_runs(tmp_path: Path) -> None:
    with locked(tmp_path / "run" / "lock", "taken"):
        code, output = run_command(f"onward status --dir {tmp_path}")
    assert (code, len(output.splitlines())) == (2, 1) and output.startswith("Onward is starting or stopping ")
    assert run_command(f"onward status --dir {tmp_path}")[1].startswith("Nothing runs on ")
