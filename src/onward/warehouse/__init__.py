"""What is queried (ClickHouse, embedded or a server) and what is kept as files (the object store)."""

from onward.warehouse.client import Warehouse, connect
from onward.warehouse.embedded import EmbeddedWarehouse
from onward.warehouse.objects import Objects

__all__ = ["EmbeddedWarehouse", "Objects", "Warehouse", "connect"]
