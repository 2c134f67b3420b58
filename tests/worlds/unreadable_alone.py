"""What a fake bus has for values that cannot be read: nothing stands in for them; their keys are noted."""

from __future__ import annotations

from typing import Any


class NoStandIns:
    def __init__(self) -> None:
        self.keys: list[str] = []

    async def find_stand_in(self, bucket: Any, kind: Any, entry: Any, error: Exception, check: Any) -> None:
        self.keys.append(entry.key)
