"""What `onward train` says of its held-out tasks at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.cli.train_display import handed_out, verdict


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [(0.28, 0.22, True), (0.3, 0.3, True), (0.3, 0.31, False), (None, 0.3, False), (0.3, None, False)],
)
def test_a_policy_that_is_not_better_is_called_so(before, after, worse):
    assert ("not better than before" in verdict(before, after)) is worse


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (0, "Handed out in run/checkpoint: the start, since no later policy was better, which has the best "
            "held-out success (0.438, the highest of 4 evaluations). The one after the last step, 12, is in "
            "run/last."),
        (6, "Handed out in run/checkpoint: the policy after step 6, which has the best held-out success"),
        (12, "Handed out: the policy after the last step, 12, which has the best held-out success (0.438, "
             "the highest of 4 evaluations)."),
    ],
)  # fmt: skip
def test_the_result_says_which_policy_it_is_and_why(step: int, words: str) -> None:
    told = {"step": step, "of": 12, "by": "held-out success", "figure": 0.4375, "evaluations": 4}
    assert handed_out(told, Path("run"), "checkpoint").startswith(words)
