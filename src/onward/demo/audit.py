"""Were trajectories lost or stored twice? A process of its own: ``python -m onward.demo.audit``.

It compares the ids that the outbox accepted (its receipts) with the ids that the warehouse's public
view shows. It imports nothing of the loop but the outbox reader, and knows nothing of what the loop
believes. The sets are those of Jepsen's set checker: lost = accepted − stored,
unexpected = stored − accepted, duplicates = ids that the view shows more than once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from onward.bus.outbox import Outbox


@dataclass(frozen=True)
class Verdict:
    accepted: int
    stored: int
    lost: list[str]
    duplicates: list[str]
    unexpected: list[str]


def compare(accepted: Iterable[str], stored: Iterable[str]) -> Verdict:
    """``accepted``: ids that a producer was told are safe. ``stored``: ids as the view shows them."""
    promised, seen = set(accepted), Counter(stored)
    return Verdict(
        accepted=len(promised),
        stored=len(seen),
        lost=sorted(promised - seen.keys()),
        duplicates=sorted(name for name, count in seen.items() if count > 1),
        unexpected=sorted(seen.keys() - promised),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--outbox", type=Path, action="append", required=True)
    parser.add_argument("--stored", type=Path, required=True, help="one id a line, as read from the view")
    arguments = parser.parse_args()
    accepted = [receipt.msg_id for path in arguments.outbox for receipt in Outbox(path).receipts()]
    verdict = compare(accepted, arguments.stored.read_text().split())
    json.dump(asdict(verdict), sys.stdout)
    return 1 if verdict.lost or verdict.duplicates else 0


if __name__ == "__main__":
    sys.exit(main())
