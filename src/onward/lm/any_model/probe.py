"""Tries how a network may be run: each way of running rows together against one row alone.

A way that gives other log-probs is not used. The tolerance follows the spread of the logits, so that a
network with small random weights, whose log-probs are all alike, is judged as strictly as a trained one.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from onward.errors import ConfigError
from onward.lm.any_model.cached import CachedRows
from onward.lm.any_model.network import Network

TOLERANCE = 1e-4
"""Largest difference of a log-prob in float32."""
TOLERANCE_HALF = 0.1
"""The same in a 16-bit format, where a matrix product depends on the size of the batch."""
_LEAST_SPREAD = 0.1
"""Below this spread of the logits a tighter tolerance would be within the error of float32."""
_LENGTHS = (9, 5)
_STEPS = 3
"""Tokens at the end of each row that are decoded with the cache."""


@dataclass(frozen=True)
class Trust:
    """Ways of running rows together that give the log-probs of each row alone."""

    batches: bool
    """Rows of one length, in one batch."""
    padding: bool
    """Rows of different lengths in one batch, padded on the right."""
    cache: bool
    """Tokens decoded one by one with the module's cache, for rows of one length."""
    padded_cache: bool
    """The same for prompts of different lengths, padded on the left."""
    notes: list[str] = field(default_factory=list)
    """Sentences about what is not used, for the log."""


@torch.no_grad()
def try_out(network: Network, vocab: int) -> Trust:
    """Returns the ways that ``network`` may be run in. Raises ConfigError for one that looks ahead."""
    rnd = random.Random(0)
    long, other = ([rnd.randrange(vocab) for _ in range(_LENGTHS[0])] for _ in range(2))
    short = [rnd.randrange(vocab) for _ in range(_LENGTHS[1])]
    alone = {id(row): network.logits([row])[0].float() for row in (long, other, short)}
    spread = min(1.0, max(_LEAST_SPREAD, float(alone[id(long)].std())))
    exact = network.module.dtype == torch.float32
    limit = spread * TOLERANCE if exact else TOLERANCE_HALF

    def same(logits: Tensor, row: list[int]) -> bool:
        expected = alone[id(row)][-len(logits) :]
        return _distance(logits, expected) <= limit

    beginning = network.logits([long[:-1]])[0]
    if _distance(beginning, alone[id(long)][:-1]) > max(limit, 10 * spread * TOLERANCE):
        raise ConfigError(
            f"{type(network.module).__name__} looks ahead: the probability of a token depends on the tokens "
            f"after it, so it cannot be sampled from."
        )

    def together(rows: list[list[int]]) -> Callable[[], bool]:
        def found() -> bool:
            logits = network.logits(rows)
            return all(same(one[: len(row)], row) for one, row in zip(logits, rows, strict=True))

        return found

    def decoded(rows: list[list[int]]) -> Callable[[], bool]:
        def found() -> bool:
            given = list(rows)
            cached = CachedRows(network)
            seen = [cached.begin([row[:-_STEPS] for row in rows])]
            for step in range(_STEPS):
                if step == 1:  # rows leave and change places while others go on
                    order = torch.arange(len(given) - 1, -1, -1, device=network.device)
                    cached.select(order)
                    seen, given = [one[order] for one in seen], given[::-1]
                tokens = torch.tensor([row[step - _STEPS] for row in given], device=network.device)
                seen.append(cached.advance(tokens))
            logits = torch.stack(seen, dim=1)
            return all(same(one, row) for one, row in zip(logits, given, strict=True))

        return found

    batches = _works(together([long, other, long]))
    padding = batches and _works(together([long, short]))
    cache = _works(decoded([long])) and (not batches or _works(decoded([long, other])))
    padded_cache = cache and padding and _works(decoded([long, short]))
    found = {
        "batches: each row is computed alone": batches,
        "padding: only rows of one length are computed together": padding,
        "its cache: each token computes its whole row again": cache,
        "a cache with padding: only prompts of one length are sampled together": padded_cache,
    }
    name = type(network.module).__name__
    notes = [f"{name} gives other log-probs with {what}." for what, good in found.items() if not good]
    return Trust(batches, padding, cache, padded_cache, notes)


def _distance(logits: Tensor, expected: Tensor) -> float:
    """Returns the largest difference of a log-prob over the vocabulary; infinite if one is not finite."""
    found = (logits.float().log_softmax(-1) - expected.float().log_softmax(-1)).abs().max()
    return float(found) if bool(found.isfinite()) else float("inf")


def _works(trial: Callable[[], bool]) -> bool:
    """Reports if ``trial`` succeeds; a module that raises on such inputs is not run in that way."""
    try:
        return trial()
    except Exception:  # whatever a module of others raises
        return False
