"""``onward trajectories show``: what a person sees of the parts that a plain success does not have."""

from __future__ import annotations

import pytest
from trajectory_store import trajectory

from onward.cli.trajectories import view


def test_failures_repeats_release_and_feedback_are_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    document = trajectory("t1")
    document["metadata"]["release"] = {"release_id": "release-3", "arm": "candidate", "weight": 0.1}
    first, second = document["turns"]
    first["result"] = {"success": False, "error": "division by zero", "execution_time_ms": 12.5}
    second["observation"] = {"type": "user_message", "content": {"same_as_turn": 1}}
    said = [
        {"ts": "2026-03-01T13:00:00.000Z", "kind": "explicit", "signal": "rating", "value": 0.5,
         "comment": "[red]half[/red] right"},
    ]  # fmt: skip
    why = {"reason": "no_outcome", "detail": ""}
    view({"trajectory": document, "reward": None, "unscored": why, "feedback": said})
    shown = " ".join(capsys.readouterr().out.split())
    for part in (
        "Turn 1 (12.5 ms)",
        "failed division by zero",
        "user message as in turn 1",
        "release release_id release-3, arm candidate, weight 0.1",
        "Unscored, which is not a zero: no_outcome.",
        "2026-03-01T13:00:00 explicit rating 0.5 [red]half[/red] right",
    ):
        assert part in shown, part
