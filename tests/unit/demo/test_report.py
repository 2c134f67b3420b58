"""The tables of the demonstration on narrow terminals."""

from __future__ import annotations

import pytest
from rich.console import Console

from onward.demo import report
from onward.demo.result import Cycle, Result

REASON = "E all 31.2 crossed 22.2 after 61 sessions at 10%"


@pytest.mark.parametrize("width", [80, 110])
def test_no_name_and_no_decision_is_cut_on_a_narrow_terminal(width: int) -> None:
    cycle = Cycle(
        number=4,
        trajectories=1024,
        mean_outcome=0.41,
        mean_raw_total=0.52,
        validation_success=0.61,
        validation_current=0.55,
        candidate="agent-zero-rl-v12",
        decision="rolled_back",
        reason=REASON,
        sessions={"candidate": 120, "current": 344},
        e_values={"error": 1.02, "reward": 12_345.0, "all": 12_345.0},
        sabotaged=True,
    )
    result = Result.model_construct(cycles=[cycle])
    for table in (report._cycles(result), report._evidence(result)):
        console = Console(width=width)
        with console.capture() as captured:
            console.print(table)
        text = captured.get()
        assert "…" not in text
        assert "agent-zero-rl-v12" in text
        assert max(map(len, text.splitlines())) <= width
    cycles = Console(width=width)
    with cycles.capture() as captured:
        cycles.print(report._cycles(result))
    words = captured.get().replace("│", " ").split()
    assert " ".join(["rolled_back:", *REASON.split()]) in " ".join(words).replace("(sabotage) ", "")
