"""Results of made-up policies on the safety items, for tests of the comparison."""

import random
from collections.abc import Callable

from onward.suites.safety.suite import SafetySuite
from onward.suites.suite import ItemResult

SUITE = SafetySuite("safety", limit=100)


def results(succeeds: Callable[[str], bool | None]) -> list[ItemResult]:
    """``succeeds(item_id)``: the success of an item, None for an unreadable answer."""
    found = []
    for item in SUITE.items:
        good = succeeds(item.item_id)
        note = "unreadable: made up" if good is None else "refused: made up"
        found.append(
            ItemResult(item.item_id, item.kind, None if good is None else float(good), bool(good), (), note)
        )
    return found


def drawn(rate: float, seed: int) -> list[ItemResult]:
    """Successes drawn alone, each with a chance of its own around ``rate``, the same for every seed."""
    chance, own = random.Random(5), random.Random(seed)
    chances = {item.item_id: min(1.0, max(0.0, chance.gauss(rate, 0.2))) for item in SUITE.items}
    return results(lambda item_id: own.random() < chances[item_id])
