"""A rubric writer that ``onward rubrics train`` made: its way to a version that can be promoted.

It is judged by the comparison and the rule of a rubrics job, and is never released by itself.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from onward.bus import Bus
from onward.clock import Clock
from onward.config import Settings
from onward.contracts.buckets import ReleasedWriter, WriterVersion
from onward.errors import ConfigError, NotFoundError
from onward.files import read_json
from onward.telemetry import audit
from onward.training import checkpoints
from onward.training.writers.files import NO_BASE, WRITER, WriterFiles
from onward.training.writers.record import Writers
from onward.warehouse import Objects

PARTS = ("writer", "base")
"""Folders of a run that are needed: the writer, and its warm start to compare it with."""
FACTS = "writer.json"


class AddedWriter:
    """A verified copy of the writer in the folder of a run. A context manager: the copy is removed."""

    def __init__(self, run: Path) -> None:
        """Raises NotFoundError, ConfigError or TamperedError for a folder without a writer that can be
        stored."""
        refuse_incomplete(run)
        self._scratch = tempfile.TemporaryDirectory(prefix="onward-add-")
        self._folder, self._start = Path(self._scratch.name) / "writer", run / "base"
        try:
            _copy(run / "writer", self._folder)
            checkpoints.write_manifest(
                self._folder, job_id="added", epoch=1, base_digest=NO_BASE, form=WRITER
            )
            manifest = checkpoints.verify(self._folder, form=WRITER)
        except BaseException:
            self._scratch.cleanup()
            raise
        self.job_id = f"added-{manifest.adapter_digest[:12]}"
        """In place of a job: equal files are one version, which is judged again."""

    def __enter__(self) -> AddedWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._scratch.cleanup()

    def figures(self, released: ReleasedWriter | None, folder: Path | None) -> dict[str, Any]:
        """Returns the figures of a job's validation. ``folder``: files of the released writer. Takes a
        minute."""
        from onward.training.job.rubrics import compared  # loads torch when it is called

        other = None if released is None else {"version": released.version, "folder": str(folder)}
        return compared(self._folder, self._start, other)

    async def record(
        self, bus: Bus, objects: Objects, settings: Settings, clock: Clock, figures: dict[str, Any]
    ) -> WriterVersion:
        """Stores the files and records the version with the verdict of the rule. Raises ObjectError,
        BusError."""
        files = WriterFiles(objects, settings)
        facts = await files.store_judged(self._folder, self.job_id, 1, figures)
        await audit.record(bus, clock, "writer.added", writer=self.job_id, digest=facts["digest"])
        return await Writers(bus, clock).record(self.job_id, **facts)


def refuse_incomplete(run: Path) -> None:
    """Raises NotFoundError or ConfigError for a folder that is no finished run of a writer of its own."""
    if not run.is_dir():
        raise NotFoundError(f"There is no folder {run}: give the folder of a run of 'onward rubrics train'.")
    for part in PARTS:
        if not (run / part / FACTS).is_file():
            raise ConfigError(
                f"{run} has no {part}/{FACTS}: give a run that has ended. 'onward rubrics train "
                f"--out {run}' goes on with one that was stopped."
            )
    facts = read_json(run / "writer" / FACTS)
    if not isinstance(facts, dict) or facts.get("base") is not None:
        raise ConfigError(
            f"The writer in {run} is an adapter of a model on this machine, and a version has all files of "
            f"its writer: train one without --set model=FOLDER, or name the folder as writer in the settings."
        )


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for path in sorted(source.iterdir()):
        if path.name in (checkpoints.MANIFEST, checkpoints.SIGNATURE):
            continue
        if path.is_symlink() or not path.is_file():
            raise ConfigError(f"{path} is no plain file, and the folder of a writer has no other: remove it.")
        shutil.copyfile(path, target / path.name)


async def released_with_files(
    bus: Bus, objects: Objects, settings: Settings, clock: Clock
) -> tuple[ReleasedWriter | None, Path | None]:
    """Returns the released writer and the folder with its files; None, None if there is none. Raises
    TamperedError, ObjectError, BusError."""
    released = await Writers(bus, clock).released()
    if released is None:
        return None, None
    return released, await WriterFiles(objects, settings).fetch(released)
