"""Audit of lost and duplicate trajectories, as a separate process: ``python -m onward.demo.audit``.

It compares the ids that the outbox accepted (its receipts) with the ids in the warehouse's public
view. It does not use the state of the loop. The sets are those of Jepsen's set checker:
lost = accepted − stored, unexpected = stored − accepted, duplicates = ids shown more than once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from onward import config, warehouse
from onward.bus.outbox import Outbox


@dataclass(frozen=True)
class Verdict:
    accepted: int
    stored: int
    lost: list[str]
    duplicates: list[str]
    unexpected: list[str]


def compare(accepted: Iterable[str], stored: Iterable[str]) -> Verdict:
    """Compares ``accepted``, the ids confirmed to a producer, with ``stored``, the ids in the view."""
    promised, seen = set(accepted), Counter(stored)
    return Verdict(
        accepted=len(promised),
        stored=len(seen),
        lost=sorted(promised - seen.keys()),
        duplicates=sorted(name for name, count in seen.items() if count > 1),
        unexpected=sorted(seen.keys() - promised),
    )


async def audit(outboxes: Iterable[Path], data_dir: Path, wait_seconds: float) -> Verdict:
    """Compares now; if an id is missing, compares again until ``wait_seconds`` have passed."""
    accepted = [receipt.msg_id for path in outboxes for receipt in Outbox(path).receipts()]
    view = await warehouse.connect(config.load(environ={}, overrides={"data_dir": data_dir}))
    deadline = time.monotonic() + wait_seconds
    try:
        while True:
            rows = await view.query("SELECT trajectory_id FROM trajectories_v")
            verdict = compare(accepted, (row["trajectory_id"] for row in rows))
            if not verdict.lost or time.monotonic() > deadline:
                return verdict
            await asyncio.sleep(0.5)
    finally:
        await view.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--outbox", type=Path, action="append", required=True, help="a producer's outbox file"
    )
    parser.add_argument("--data-dir", type=Path, required=True, help="data folder of the running loop")
    parser.add_argument(
        "--wait", type=float, default=0.0, help="seconds to wait for what is still on its way"
    )
    arguments = parser.parse_args()
    verdict = asyncio.run(audit(arguments.outbox, arguments.data_dir, arguments.wait))
    json.dump(asdict(verdict), sys.stdout)
    return 1 if verdict.lost or verdict.duplicates else 0


if __name__ == "__main__":
    sys.exit(main())
