"""``onward rescore`` where nothing runs: help, times, one sentence for what cannot be done.
(With a service: docs/rescoring.md, and tests/integration/test_reward_rescore.py.)"""

from datetime import UTC, datetime, timedelta

import pytest
from docs_blocks import run_command

from onward.cli.rescore import _summary
from onward.clock import ManualClock
from onward.contracts.buckets import RescoreProgress, RescoreRequest
from onward.moments import parse_time


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_help_shows_an_example(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    code, text = run_command("onward rescore --help")
    assert code == 0 and "onward rescore --since 7d --component code_quality" in text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("--since yesterday", "'yesterday' is no time: give an age such as 7d"),
        ("--since 999999w", "'999999w' is longer ago than dates reach"),
        ("--since ''", "'' is no time: give an age such as 7d"),
        ("--component speed", "There is no component 'speed': expected one of accuracy, code_quality"),
        ("--stop --limit 3", "--stop stands alone"),
        ("--since 7d", "Nothing ever ran on onward-data: start it with 'onward up'"),
    ],
)
def test_bad_input_is_one_sentence(given, said):
    code, text = run_command(f"onward rescore {given}")
    assert (code, said in text, len(text.strip().splitlines())) == (2, True, 1), text


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("90m", timedelta(minutes=90)),
        ("12h", timedelta(hours=12)),
        ("7d", timedelta(days=7)),
        ("2w", timedelta(days=14)),
    ],
)
def test_ages_count_back_from_now(text, ago):
    clock = ManualClock()
    assert parse_time(text, "--since", clock) == clock.now() - ago


def test_a_time_without_a_zone_is_utc():
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_time("2026-01-31T12:00:00", "--since", ManualClock()) == noon
    assert parse_time("2026-01-31T13:00:00+01:00", "--since", ManualClock()) == noon


def test_the_summary_says_what_came_of_it():
    request = RescoreRequest(
        run_id="r",
        since="1970-01-01T00:00:00.000Z",
        component=None,
        limit=None,
        dry_run=True,
        requested_at="2026-01-01T00:00:00.000Z",
    )
    done = RescoreProgress(
        run_id="r",
        total=9,
        seen=9,
        counts={"changed": 4, "unchanged": 3, "unscored": 1, "waiting": 1},
        finished=True,
    )
    assert _summary(request, done) == (
        "Of 9 trajectories, 4 would get a new reward, 3 stay as they are, 1 have no valid score. "
        "1 wait for their first reward."
    )
