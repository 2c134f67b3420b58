"""The trajectory that these tests share."""

from chained_trajectory import trajectory

__all__ = ["trajectory"]
