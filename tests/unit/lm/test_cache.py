"""The prefix store: the longest beginning is found, sessions replace themselves, memory stays bounded."""

from __future__ import annotations

import numpy as np
import torch

from onward.lm.cache import PrefixStore, shared


def ids(*values: int) -> np.ndarray:
    return np.asarray(values, dtype=np.int64)


def entry(n: int) -> torch.Tensor:
    return torch.zeros(1, 2, 1, n, 4)  # 32 bytes a token


def test_the_longest_beginning_is_found() -> None:
    store = PrefixStore(1 << 20)
    system = list(range(16))
    store.put(ids(*system, *range(100, 110)), None, entry(26))
    store.put(ids(*system, *range(200, 230)), None, entry(46))
    found, length = store.find(ids(*system, *range(200, 217), 7, 8), None)
    assert length == 33 and found is not None and len(found.ids) == 46
    found, length = store.find(ids(*system, 1, 2, 3), None)
    assert length == 16 and found is not None
    assert store.find(ids(9, *system), None) == (None, 0)


def test_prefixes_of_other_weights_are_never_found() -> None:
    store, weights, other = PrefixStore(1 << 20), object(), object()
    store.put(ids(*range(16)), weights, entry(16))
    assert store.find(ids(*range(20)), other) == (None, 0)
    assert store.find(ids(*range(20)), weights)[1] == 16
    store.keep_only([other])
    assert len(store) == 0 and store.used == 0


def test_a_session_that_goes_on_keeps_one_entry() -> None:
    store = PrefixStore(1 << 20)
    for n in (16, 40, 64):
        store.put(ids(*range(n)), None, entry(n))
    store.put(ids(*range(30)), None, entry(30))  # already contained
    assert len(store) == 1 and store.used == 64 * 32


def test_memory_stays_within_the_limit_and_the_oldest_leaves() -> None:
    store = PrefixStore(3 * 16 * 32)
    for start in (0, 1000, 2000):
        store.put(ids(*range(start, start + 16)), None, entry(16))
    store.find(ids(*range(0, 20)), None)  # used just now
    store.put(ids(*range(3000, 3016)), None, entry(16))
    assert store.used <= store.limit
    assert store.find(ids(*range(0, 20)), None)[1] == 16
    assert store.find(ids(*range(1000, 1020)), None)[1] == 0
    store.put(ids(*range(5000, 5100)), None, entry(100))  # larger than the store itself
    assert store.find(ids(*range(5000, 5100)), None)[1] == 0


def test_shared_counts_exactly() -> None:
    assert [shared(ids(1, 2, 3), b) for b in (ids(1, 2, 4), ids(1, 2, 3, 9), ids(2), ids())] == [2, 3, 0, 0]
