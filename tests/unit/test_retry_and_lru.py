"""The back-off and the bounded mapping that everything shares."""

import pytest

from onward.lru import Lru
from onward.retry import Backoff


def test_pauses_double_up_to_the_longest_and_begin_again_after_a_success() -> None:
    backoff = Backoff(0.1, 0.5)
    assert [backoff.next() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    backoff.reset()
    assert backoff.pause == backoff.next() == 0.1


def test_jitter_shortens_a_pause_and_never_lengthens_it() -> None:
    backoff = Backoff(1.0, 1.0, jitter=0.5)
    pauses = [backoff.next() for _ in range(500)]
    assert min(pauses) >= 0.5 and max(pauses) <= 1.0
    assert sum(pauses) / 500 == pytest.approx(0.75, abs=0.05)  # uniform: ten deviations of the mean


def test_the_entry_unused_for_longest_is_evicted() -> None:
    known: Lru[str, int] = Lru(2)
    known["a"], known["b"] = 1, 2
    assert known["a"] == 1  # now b is the one unused for longest
    known["c"] = 3
    assert list(known) == ["a", "c"] and "b" not in known
    assert known.get("a") == 1 and known.get("b") is None
    known.setdefault("d", 4)
    assert dict(known) == {"a": 1, "d": 4}
    known["a"] = 5
    known["e"] = 6
    assert dict(known) == {"a": 5, "e": 6}
