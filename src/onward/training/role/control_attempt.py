"""One attempt at a control job: a request of ``agent.rl.training.control.v1``, run as a job child.

Its result, a policy for an environment, is no model that could be released: it has no commit, and its files
lie under ``control/<job>/<attempt>/`` in the object store.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from onward import extras
from onward.config import Settings
from onward.contracts import encode
from onward.contracts.codec import validate
from onward.contracts.training import ControlRequest
from onward.errors import ContractError, MissingExtraError, TrainingError
from onward.files import write_whole
from onward.training.job import control
from onward.training.role.attempt import Attempt, folder_of

_ENVIRONMENT = re.compile(r"[A-Za-z0-9_-]{1,64}(/[A-Za-z0-9_-]{1,64})?")
"""An id in a registry. ``module:id`` would import code that a message names."""


def refuse_impossible(asked: ControlRequest, settings: Settings) -> None:
    """Raises TrainingError("DATA") for an environment that a message may not name, and where control policies
    are not installed."""
    if (
        _ENVIRONMENT.fullmatch(asked.environment) is None
        and asked.environment not in settings.training.environments
    ):
        raise TrainingError(
            "DATA",
            "The environment is not one that a message may name: give the id of a registered one, or let the "
            "operator list it in training.environments.",
        )
    try:
        extras.require("control", "gymnasium", "A job for a control policy")
    except MissingExtraError as error:
        raise TrainingError("DATA", str(error)) from None


class UploadingAttempt(Attempt):
    """An attempt whose result is a folder in the object store, and no checkpoint to release."""

    async def _upload(self, result: Path, where: str) -> None:
        for path in sorted(result.rglob("*")):
            if path.is_file():
                await self.ctx.objects.put(f"{where}/{path.relative_to(result).as_posix()}", path)

    @staticmethod
    def _stored(done: dict[str, Any], where: str) -> dict[str, Any]:
        """Returns the child's last event with the place of the result."""
        return {
            **done,
            "metrics": {**done["metrics"], "policy": where},
            "artifacts": {"final_checkpoint": where},
        }


class ControlAttempt(UploadingAttempt):
    MODULE = "onward.training.job.control"

    async def run_control(self) -> dict[str, Any]:
        """Returns the child's last event, with the place of the policy. Raises TrainingError, ObjectError."""
        record = self._lease.record
        await self._announcer.announce(record)
        try:
            asked = validate(record.request, ControlRequest)
        except ContractError as error:
            raise TrainingError("DATA", f"The request in the job's record cannot be read: {error}") from None
        refuse_impossible(asked, self.ctx.settings)
        folder = folder_of(self.ctx, record.job_id)
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / control.SPEC, encode(asked))
        done = await self._compute(folder, {"samples": None, "excluded": {}})
        where = f"control/{record.job_id}/{record.attempt}"
        await self._upload(folder / control.RUN / "policy", where)
        return self._stored(done, where)
