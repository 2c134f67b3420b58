"""Releases of rubric writers: files, rule, record, and the source that scorers read."""

from onward.training.writers.files import WriterFiles
from onward.training.writers.record import Writers
from onward.training.writers.source import StoredWriters

__all__ = ["StoredWriters", "WriterFiles", "Writers"]
