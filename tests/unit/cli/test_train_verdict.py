"""What `onward train` says of its held-out tasks at the end."""

from __future__ import annotations

import pytest

from onward.cli.train_display import verdict


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [(0.28, 0.22, True), (0.3, 0.3, True), (0.3, 0.31, False), (None, 0.3, False), (0.3, None, False)],
)
def test_a_policy_that_is_not_better_is_called_so(before, after, worse):
    assert ("not better than before" in verdict(before, after)) is worse
