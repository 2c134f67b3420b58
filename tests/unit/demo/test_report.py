"""The end of a demonstration on a terminal: the table, why a candidate failed, and the finding."""

from __future__ import annotations

import io

import pytest
from demo_results import REASON, cycle, planted, rejected, result
from rich.console import Console

from onward.demo import report
from onward.demo.display import Stages
from onward.demo.fleet import Tally
from onward.demo.result import FailingAnswer, Rates, Result


def shown(found: Result, width: int = 80) -> list[str]:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    report.show(found, console, ("Picture: demo-output/curves.png",))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_table_has_a_line_for_each_candidate_with_rates_beside_the_evidence() -> None:
    lines = shown(result(cycle(1), rejected(2), planted(3)), 100)
    assert lines[:8] == [
        "Each pair: current → candidate; taken back when E reaches 22.2",
        "candidate         validation   errors       outcome         E  decision",
        "─" * 74,
        "agent-zero-rl-v1  0.30 → 0.54  21% → 2.5%   0.30 → 0.55  0.23  promoted",
        "agent-zero-rl-v2  0.30 → 0.60  -            -               -  rejected",
        "agent-zero-rl-v3  -            0.8% → 100%  0.54 → 0.00  999+  rolled back",
        "",
        f"agent-zero-rl-v2 rejected: {REASON}.",
    ]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_no_line_is_longer_than_the_terminal_and_no_id_is_cut(width: int) -> None:
    names = ["agent-zero-rl-v12", "agent-zero-rl-v13", "agent-zero-rl-v14"]
    cycles = [
        one.model_copy(update={"candidate": name})
        for one, name in zip((cycle(1), rejected(2), planted(3)), names, strict=True)
    ]
    lines = shown(result(*cycles), width)
    assert max(map(len, lines)) <= width
    assert [sum(line.startswith(name) for line in lines) for name in names] == [1, 2, 2]


def test_a_long_name_is_not_cut() -> None:
    name = "assistant-for-the-purchasing-department-of-the-northern-branch-v3"
    lines = shown(result(cycle(1, candidate=name)))
    assert any(name in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_control_characters_of_a_failing_answer_are_written_out() -> None:
    failed = rejected(1).model_copy(update={"failing": [FailingAnswer(check_id="sum", answer="\x1b[2Jgone")]})
    assert "  sum: \\x1b[2Jgone" in shown(result(failed))


def test_a_rejection_says_why_in_numbers_and_shows_two_failing_answers_of_one_line_each() -> None:
    lines = shown(result(rejected(1), final_success=0.3), 100)
    at = lines.index(f"agent-zero-rl-v1 rejected: {REASON}.")
    assert lines[at + 1] == '  lookup: unknown"}}'
    assert lines[at + 2].startswith('  note: text": "a very long answer and so on')
    assert lines[at + 2].endswith("…")
    assert len(lines[at + 2]) <= 100


def test_checks_that_neither_model_passes_are_told_as_showing_nothing() -> None:
    words = " ".join(shown(result(cycle(1), rejected(2))))
    assert "Of 20 harmful requests the candidate declined 0 and the current model 0: that" in words


def test_a_rollback_says_at_which_share_and_how_long_it_took() -> None:
    assert report.ended(planted()) == (
        "agent-zero-rl-v3 rolled back at 25% of traffic: high error rate; "
        "without traffic 4.1 s after the evidence."
    )


def test_the_output_ends_in_the_finding() -> None:
    lines = shown(result(cycle(1), cycle(2), cycle(3)))
    assert " ".join(lines[-2:]).strip() == (
        "Success on held-out tasks rose from 0.30 to 0.76 (+0.46) by reinforcement learning alone; "
        "3 of 3 candidates were promoted."
    )
    assert len(lines) <= 20


def test_the_printed_rise_is_the_difference_of_the_printed_rates() -> None:
    """.3049 and .7651 are printed as .30 and .77, whose difference is .47 and not .46."""
    found = result(cycle(1), base_success=0.3049, final_success=0.7651)
    assert "from 0.30 to 0.77 (+0.47)" in report.finding(found)


@pytest.mark.parametrize(
    ("tasks", "successes", "note"), [(0, 0, "0 tasks"), (19, 19, "19 tasks"), (20, 9, "success 0.45")]
)
def test_a_cycle_shows_no_rate_of_success_from_a_handful_of_tasks(
    tasks: int, successes: int, note: str
) -> None:
    assert Tally(tasks, successes).note == note


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            result(rejected(1), rejected(2), final_success=0.3),
            "Nothing was learned: none of 2 candidates was promoted (agent-zero-rl-v2 rejected: 12 of 20 "
            "requests answered in the right form, current 19 of 20, p 0.008), so "
            "success on held-out tasks stayed at 0.30.",
        ),
        (
            result(cycle(1), rejected(2), final_success=0.34),
            # 60 and 68 of 200; by hand from Wilson's (0.2407, 0.3668) and (0.2779, 0.4081)
            "No gain was shown: success on held-out tasks went from 0.30 to 0.34 (+0.04), which chance "
            "explains (95 % interval -0.05 to +0.13); 1 of 2 candidates was promoted.",
        ),
        (
            result(cycle(1), final_success=0.1),
            "Success on held-out tasks fell from 0.30 to 0.10 (-0.20), "
            "although 1 of 1 candidate was promoted.",
        ),
        (
            result(cycle(1), planted(2)),
            "Success on held-out tasks rose from 0.30 to 0.76 (+0.46) by reinforcement learning alone; "
            "1 of 1 candidate was promoted; the planted model was rolled back.",
        ),
        (
            result(rejected(1), planted(2).model_copy(update={"decision": "promoted"}), final_success=0.02),
            "Nothing was learned: none of 1 candidate was promoted (agent-zero-rl-v1 rejected: 12 of 20 "
            "requests answered in the right form, current 19 of 20, p 0.008), and "
            "success on held-out tasks went from 0.30 to 0.02 (-0.28) "
            "with the planted model; the planted model was not rolled back.",
        ),
        (
            result(cycle(1), planted(2).model_copy(update={"decision": "promoted"}), lost=2, duplicates=1),
            "Success on held-out tasks rose from 0.30 to 0.76 (+0.46) by reinforcement learning alone; "
            "1 of 1 candidate was promoted; the planted model was not rolled back; "
            "2 trajectories were lost and 1 stored twice.",
        ),
    ],
)
def test_the_finding_is_honest(found: Result, sentence: str) -> None:
    assert report.finding(found) == sentence


def test_a_running_release_shows_error_rates_beside_the_evidence() -> None:
    rates = {"candidate": Rates(error_rate=0.12), "current": Rates(error_rate=0.021)}
    note = report.watched(rates, {"all": 1.3}, {"candidate": 61})
    assert note == "errors 12% vs 2.1% · E 1.30 · 61 sessions"
    assert report.watched({}, {}, {}) == "E 1.00 · 0 sessions"


def test_stages_keep_their_times_and_their_lines() -> None:
    console = Console(width=80, height=24, force_terminal=True, color_system=None, file=io.StringIO())
    stages = Stages(console)
    with stages:
        with stages.stage("collect", "Cycle 1: agents at work", total=256) as stage:
            stage.update(256, note="256 scored · success 0.30")
        with stages.stage("collect", "Cycle 2: agents at work", total=256):
            pass
    assert list(stages.seconds) == ["collect"]
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "Cycle 1: agents at work  ━━━━━━━━ 256 scored · success 0.30 " in text
