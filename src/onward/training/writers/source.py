"""The released rubric writer, for what scores trajectories and for commands."""

from __future__ import annotations

from pathlib import Path

from onward.bus import Bus, load_entry
from onward.config import Settings
from onward.contracts.buckets import ReleasedWriter
from onward.errors import BusError
from onward.training.writers.files import WriterFiles
from onward.warehouse import Objects


class StoredWriters:
    """Reads the pointer, and fetches the files that it names. ``rubrics.trajectories.WriterSource``."""

    def __init__(self, objects: Objects, settings: Settings, bus: Bus | None = None) -> None:
        self._bus, self._files = bus, WriterFiles(objects, settings)
        self._read: tuple[bytes, ReleasedWriter | None] = (b"", None)
        """Value that was read last, and what it says."""

    def read_from(self, bus: Bus) -> None:
        """Sets the connection: a service checks its rubrics before it has one."""
        self._bus = bus

    async def released(self) -> ReleasedWriter | None:
        """Returns the pointer; None if no writer is released. Raises BusError."""
        if self._bus is None:
            raise BusError("The record of rubric writers is not open yet: try again.")
        bucket = self._bus.bucket(ReleasedWriter.BUCKET)
        entry = await bucket.get(ReleasedWriter.KEY)
        if entry is None:
            return None
        if self._read[0] != entry.value:
            found = await load_entry(bucket, ReleasedWriter, entry)
            if not found.readable:
                return found.document
            self._read = entry.value, found.document
        return self._read[1]

    async def folder(self, writer: ReleasedWriter) -> Path:
        """Returns the folder with its files. Raises TamperedError, ObjectError."""
        return await self._files.fetch(writer)
