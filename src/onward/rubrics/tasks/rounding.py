"""Rubrics from weights: the nearest rubric of three to seven criteria with whole weights from 1 to 5."""

from __future__ import annotations

import numpy as np

LEAST, MOST, HEAVIEST = 3, 7, 5
"""Criteria of a rubric, and the largest weight of one."""
_SCALES = np.linspace(0.6, HEAVIEST + 0.49, 50)
"""Values that the largest weight has before it is rounded."""


def rounded(weights: np.ndarray) -> np.ndarray:
    """Returns whole weights, 0 for a check that is left out, in the proportions nearest to ``weights``.

    The largest seven count. Fewer than three with a positive weight are filled up with the first others.
    """
    given = np.maximum(np.asarray(weights, dtype=np.float64), 0.0)
    given[np.argsort(-given, kind="stable")[MOST:]] = 0.0
    if np.count_nonzero(given) < LEAST:
        given[np.argsort(-given, kind="stable")[:LEAST]] += 1e-9
    target = given / given.sum()
    tried = np.round(_SCALES[:, None] * (given / given.max()))
    tried = tried[np.count_nonzero(tried, axis=1) >= LEAST]
    if not len(tried):
        return np.where(given > 0, np.where(given == given.max(), HEAVIEST, 1), 0).astype(np.int64)
    gaps = tried / tried.sum(axis=1, keepdims=True) - target
    return tried[int(np.argmin((gaps * gaps).sum(axis=1)))].astype(np.int64)


def normalised(weights: np.ndarray) -> np.ndarray:
    """Returns ``weights`` with sum 1."""
    return np.asarray(weights, dtype=np.float64) / np.sum(weights)
