"""Progress bars on terminals of 80, 100 and 160 columns: every column is there, no line is too long."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from onward.progress import Bars, clock, shortened

CANARY = "errors 1.0% vs 2.1% · E 1.30 · 61 sessions · 40 turns a session · 2,000 tokens a turn"


def terminal(width: int) -> Console:
    return Console(width=width, height=24, force_terminal=True, color_system=None, file=io.StringIO())


def drawn(width: int, title: str, note: str) -> str:
    """A bar that is half done after 83 seconds."""
    now = [0.0]
    console = terminal(width)
    bars = Bars(console, title_width=24, now=lambda: now[0])
    bar = bars.add_bar(title, 4_000)
    for now[0], done in ((0.0, 1), (40.0, 1_000), (83.0, 2_000)):
        bar.update(done, note=note)
    with console.capture() as captured:
        console.print(bars.drawn([bar]))
    return captured.get().rstrip("\n")


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (
            80,
            "Cycle 3: v3 at 25%       ━━━━     errors 1.0% vs 2.1% · E 1.30 …  1:23 1:23 left",
        ),
        (
            100,
            "Cycle 3: v3 at 25%       ━━━━━━╸       errors 1.0% vs 2.1% · E 1.30 · 61 sessions …"
            "   1:23 1:23 left",
        ),
        (
            160,
            "Cycle 3: v3 at 25%       ━━━━━━━━━━━━━━               "
            "errors 1.0% vs 2.1% · E 1.30 · 61 sessions · 40 turns a session · 2,000 tokens a turn      "
            " 1:23 1:23 left",
        ),
    ],
)
def test_title_bar_note_time_spent_and_time_left_are_on_one_line(width: int, line: str) -> None:
    assert drawn(width, "Cycle 3: v3 at 25%", CANARY) == line
    assert len(line) == width


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_a_long_title_and_a_long_note_never_make_a_line_wrap_or_a_column_vanish(width: int) -> None:
    line = drawn(width, "Cycle 12: " + "a candidate with a long name " * 6, "a note of one part " * 20)
    assert "\n" not in line
    assert len(line) == width
    assert line.startswith("Cycle 12:")
    assert line.endswith(" 1:23 1:23 left")
    assert line.count("…") == 2


def test_a_note_loses_whole_parts_before_it_loses_letters() -> None:
    assert (
        shortened("return 134.2 · greedy 200.0 · 5 episodes", 40)
        == "return 134.2 · greedy 200.0 · 5 episodes"
    )
    assert shortened("return 134.2 · greedy 200.0 · 5 episodes", 39) == "return 134.2 · greedy 200.0 …"
    assert shortened("return 134.2 · greedy 200.0 · 5 episodes", 20) == "return 134.2 …"
    assert shortened("return 134.2", 8) == "return…"
    assert shortened("return", 0) == ""


def test_times_are_as_short_as_they_can_be() -> None:
    assert [clock(seconds) for seconds in (0.4, 59.9, 60, 754, 3600, 37_283)] == [
        "0:00", "0:59", "1:00", "12:34", "1:00:00", "10:21:23",
    ]  # fmt: skip


def test_time_left_is_taken_from_the_mean_speed_since_the_first_step_and_runs_down_between_updates() -> None:
    now = [0.0]
    bars = Bars(terminal(80), now=lambda: now[0])
    resumed = bars.add_bar("grpo", 100, completed=40)
    for now[0], done in ((10.0, 45), (11.0, 46)):
        resumed.update(done)
        assert resumed.left is None
    now[0] = 20.0
    resumed.update(50)  # five steps since the first, in 10 s: the fifty others take 100 s
    assert resumed.left == pytest.approx(100.0)
    now[0] = 30.0
    assert resumed.left == pytest.approx(90.0)
    resumed.finish()
    assert resumed.left is None
    now[0] = 99.0
    assert resumed.elapsed == pytest.approx(30.0)


def live(console: Console, work: Callable[[Bars], None]) -> str:
    assert isinstance(console.file, io.StringIO)
    with Bars(console) as bars:
        work(bars)
    return console.file.getvalue()


def test_a_finished_line_stays_on_the_terminal_and_one_that_was_interrupted_too() -> None:
    def work(bars: Bars) -> None:
        bars.add_bar("first", 3).finish()
        for number in range(40):  # more than the terminal has lines
            bars.add_bar(f"stage {number}").finish()
        bars.add_bar("last", 3).update(1, note="cut short")

    text = live(terminal(80), work)
    assert [text.count(name) >= 1 for name in ("first", "stage 0 ", "stage 39 ", "cut short")] == [True] * 4


def test_without_a_terminal_there_is_a_line_every_ten_seconds_and_one_at_the_end() -> None:
    now = [0.0]
    out = io.StringIO()
    with Bars(Console(width=80, file=out), now=lambda: now[0]) as bars:
        bar = bars.add_bar("seed 3", 1000)
        for second in range(21):
            now[0] = float(second)
            bar.update(10 * second + 10, note=f"return {second}")
        bar.finish(full=False)
    assert out.getvalue().splitlines() == [
        "seed 3 10/1,000 return 0",
        "seed 3 110/1,000 return 10 (1:29 left)",  # 100 in 10 s, 890 to go
        "seed 3 210/1,000 return 20 (1:19 left)",
    ]


def test_without_a_terminal_a_fitted_line_loses_the_end_of_its_note_and_not_its_time() -> None:
    now = [0.0]
    out = io.StringIO()
    with Bars(Console(width=80, file=out), fitted=True, now=lambda: now[0]) as bars:
        bar = bars.add_bar("Cycle 1: v1 at 10%", 9)
        for now[0], done in ((0.0, 1), (5.0, 2), (10.0, 3)):
            bar.update(done, note="errors 1.2% vs 0.9% · E 0.23 · 113 sessions · and one more fact")
        bar.finish(full=False)
    line = out.getvalue().splitlines()[-1]
    assert line == "Cycle 1: v1 at 10% 3/9 errors 1.2% vs 0.9% · E 0.23 · 113 sessions … (0:30 left)"
    assert len(line) == 80


def test_a_slow_start_is_no_pace_and_counts_are_whole_and_stand_once() -> None:
    """80 s of loading before the first of 300 steps were once shown as more than six hours left."""
    now = [0.0]
    out = io.StringIO()
    with Bars(Console(width=80, file=out), now=lambda: now[0]) as bars:
        bar = bars.add_bar("sft", 300, counted=True)
        for now[0], done in ((80.0, 1), (90.0, 2.5), (100.0, 5)):
            bar.update(done, note="loss 1.0")
        bar.finish(full=False)
    assert out.getvalue().splitlines() == [
        "sft 1/300 loss 1.0",
        "sft 2/300 loss 1.0",
        "sft 5/300 loss 1.0 (24:35 left)",  # 4 steps in 20 s, 295 to go
    ]
    console = terminal(80)
    with console.capture() as captured:
        console.print(bars.drawn([bar]))
    assert captured.get().count("5/300 · loss 1.0") == 1


def test_a_quiet_command_prints_nothing() -> None:
    for console in (terminal(80), Console(file=io.StringIO())):
        with Bars(console, quiet=True) as bars:
            bars.add_bar("seed 3", 10).update(5, note="return 1")
        assert isinstance(console.file, io.StringIO)
        assert console.file.getvalue() == ""
