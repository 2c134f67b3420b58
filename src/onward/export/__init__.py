"""Exports stored trajectories in forms that other libraries read: JSON lines, Parquet, chat messages, pairs.

The conversions are pure. They read the warehouse, so an export holds redacted text only.
"""
