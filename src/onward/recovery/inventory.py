"""Record of the rows of a table, in the object store and so apart from the warehouse: ids per day.

A pass compares a count and a hash of each day, and reads the ids of a day only where these differ. What was
recorded and is no longer there is lost, and stays listed until it is stored again or an operator accepts it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from onward.errors import NotFoundError
from onward.telemetry import logs
from onward.warehouse import Objects, Warehouse, recovery_queries

_log = logs.get("recovery")

PREFIX = "recovery"


@dataclass
class Lost:
    """Rows and messages that nothing can bring back: ids of rows with their day, and ranges of messages that
    made no row."""

    rows: dict[str, str] = field(default_factory=dict)
    messages: list[list[int]] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.rows) + sum(high - low + 1 for low, high in self.messages)


class Inventory:
    """The record of one table."""

    def __init__(self, objects: Objects, warehouse: Warehouse, table: str) -> None:
        self._objects, self._warehouse, self._table = objects, warehouse, table
        self._at = f"{PREFIX}/{table}"

    async def missing(self) -> dict[str, str]:
        """Returns id → day of the recorded rows that are not there. Raises ObjectError, WarehouseError."""
        recorded, present = await self._recorded(), await self._present()
        gone: dict[str, str] = {}
        for day, mark in recorded.items():
            if present.get(day) != mark:
                try:
                    before = (await self._objects.get(f"{self._at}/{day}")).decode().split("\n")
                except (NotFoundError, UnicodeDecodeError):
                    _log.warning("a record of rows is gone or damaged", table=self._table, day=day)
                    continue  # ``update`` writes it again, of the rows that are there
                there = set(await recovery_queries.keys_of_day(self._warehouse, self._table, day))
                gone |= {key: day for key in before if key and key not in there}
        return gone

    async def update(self) -> None:
        """Records the rows that are there now. Raises ObjectError, WarehouseError."""
        recorded, present = await self._recorded(), await self._present()
        for day, mark in present.items():
            if recorded.get(day) != mark:
                keys = await recovery_queries.keys_of_day(self._warehouse, self._table, day)
                await self._objects.put(f"{self._at}/{day}", "\n".join(keys).encode())
        if recorded != present:
            await self._objects.put(f"{self._at}/days.json", json.dumps(present).encode())
        for day in recorded.keys() - present.keys():
            await self._objects.delete(f"{self._at}/{day}")

    async def lost(self) -> Lost:
        """Returns what is listed as lost."""
        return await self.listed(self._objects, self._table)

    @staticmethod
    async def listed(objects: Objects, table: str) -> Lost:
        """Returns what is listed as lost of a table."""
        found = await _read(objects, f"{PREFIX}/{table}/lost.json")
        return Lost(found.get("rows", {}), found.get("messages", []))

    async def list_lost(self, lost: Lost) -> None:
        """Replaces the list of what is lost."""
        document = {"rows": lost.rows, "messages": lost.messages}
        await self._objects.put(f"{self._at}/lost.json", json.dumps(document).encode())

    async def _present(self) -> dict[str, list[Any]]:
        days = await recovery_queries.days(self._warehouse, self._table)
        return {day: [count, digest] for day, (count, digest) in days.items()}

    async def _recorded(self) -> dict[str, list[Any]]:
        return await _read(self._objects, f"{self._at}/days.json")


async def _read(objects: Objects, key: str) -> dict[str, Any]:
    """Returns a document; an empty one if it does not exist or is damaged."""
    try:
        document = json.loads(await objects.get(key))
    except (NotFoundError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
