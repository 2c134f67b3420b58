"""Stored trajectories in the forms that other libraries read: JSON lines, Parquet, chat messages, pairs.

The conversions are pure. What is exported is what the warehouse holds, so it is redacted text only.
"""
