"""The warehouse for queries (ClickHouse, embedded or a server), and the object store for whole files.

A recorder with an object store uses ``Objects`` alone, so each name is loaded on first access.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onward.lazy import attributes

if TYPE_CHECKING:
    from onward.warehouse.client import Warehouse, connect
    from onward.warehouse.embedded import EmbeddedWarehouse
    from onward.warehouse.objects import Objects

__all__ = ["EmbeddedWarehouse", "Objects", "Warehouse", "connect"]
__getattr__ = attributes(
    __name__,
    {
        "onward.warehouse.client": "Warehouse connect",
        "onward.warehouse.embedded": "EmbeddedWarehouse",
        "onward.warehouse.objects": "Objects",
    },
)
