"""A data folder with one stored dataset of three rows, as a job leaves it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from job_world import write_lines

from onward.contracts import TrainingRequest
from onward.contracts.examples import TRAINING_REQUEST
from onward.training.data import dataset, snapshots
from onward.training.data.admission import AdmissionRules
from onward.training.data.sources import Reading, Wanted
from onward.warehouse import Objects


def stored_dataset(data_dir: Path, **request: Any) -> str:
    """Stores the dataset in ``data_dir``; returns its id. ``request`` changes fields of the request."""
    asked = TrainingRequest.model_validate({**TRAINING_REQUEST, **request})
    work = data_dir / "work"
    work.mkdir(parents=True)
    write_lines(work, [1.0, 0.0, 1.0])
    lines = [json.loads(line) for line in (work / dataset.FILE).read_text().splitlines()]
    made = dataset.write(lines, work, Counter(too_long=2))
    members = tuple({**one, "identity": f"v1:{one['sha256']}", "sequence": 9} for one in made.members)
    wanted = Wanted(asked.training_config.dataset, ("d" * 64,), most=10)
    description = snapshots.describe(
        asked,
        wanted,
        Reading(place={"first": 1, "last": 9}),
        AdmissionRules({"d" * 64: 0}, None),
        None,
        replace(made, members=members),
        redaction="v1",
    )
    objects = Objects.open(data_dir / "objects")
    return asyncio.run(snapshots.store(objects, description, made.path))
