"""One attempt at a rubrics job: a request of ``agent.rl.training.rubrics.v1``, run as a job child.

Its result is a rubric writer, with its comparison with the warm start on validation tasks. The writer's files
lie under ``rubrics/<job>/<attempt>/`` in the object store. It has no commit: a release takes adapters of the
base model, and this is a model of its own.
"""

from __future__ import annotations

from typing import Any

from onward.contracts import encode
from onward.contracts.codec import validate
from onward.contracts.training import RubricsRequest
from onward.errors import ConfigError, ContractError, TrainingError
from onward.files import write_whole
from onward.training.job import rubrics
from onward.training.role.attempt import folder_of
from onward.training.role.control_attempt import UploadingAttempt


def refuse_impossible(asked: RubricsRequest) -> None:
    """Raises TrainingError("DATA") for a request whose plan cannot be."""
    try:
        rubrics.plan_of(asked)
    except ConfigError as error:
        raise TrainingError("DATA", str(error)) from None


class RubricsAttempt(UploadingAttempt):
    MODULE = "onward.training.job.rubrics"

    async def run_rubrics(self) -> dict[str, Any]:
        """Returns the child's last event, with the place of the writer. Raises TrainingError, ObjectError."""
        record = self._lease.record
        await self._announcer.announce(record)
        try:
            asked = validate(record.request, RubricsRequest)
        except ContractError as error:
            raise TrainingError("DATA", f"The request in the job's record cannot be read: {error}") from None
        refuse_impossible(asked)
        folder = folder_of(self.ctx, record.job_id)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / rubrics.SPEC, encode(asked))
        done = await self._compute(folder, {"samples": None, "excluded": {}})
        where = f"rubrics/{record.job_id}/{record.attempt}"
        await self._upload(folder / rubrics.RUN / "writer", where)
        return self._stored(done, where)
