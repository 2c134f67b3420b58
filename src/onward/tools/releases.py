"""Tools on releases. What gives a model traffic waits for a person; what takes traffic away acts at once.

Invariants: no tool approves, promotes or resumes. An agent that could would release its own model.
"""

from __future__ import annotations

from typing import Any

from onward.clock import SystemClock
from onward.errors import ConfigError, ConflictError, NotFoundError
from onward.release.commands import send_command
from onward.release.record import ReleaseRecord, Releases
from onward.release.restore import request_restore
from onward.release.wording import what_happened
from onward.tools.arguments import DeployToTensorzero, Release
from onward.tools.overview import check_model
from onward.tools.results import NOTE
from onward.tools.toolbox import Toolbox

_FACTS = (
    "state",
    "started_at",
    "closed_at",
    "decision",
    "reason",
    "reason_code",
    "sessions",
    "e_values",
    "approval",
)


async def deploy_to_tensorzero(box: Toolbox, arguments: DeployToTensorzero) -> dict[str, Any]:
    """Registers a checkpoint as a model and asks for its release, which waits for a person's approval."""
    name = check_model(arguments.model_id)
    gateway = box.service.gateway()
    body = {"model_id": name, "checkpoint_path": arguments.checkpoint_path}
    try:
        registered = await gateway.call("POST", "/admin/models", body)
    except ConflictError as error:
        if f"as {name}:" not in str(error):  # else this very adapter is stored under this very name
            raise
        registered = {"state": "stored already"}
    started = await _start(box, name)
    return {
        **started,
        "registered": registered.get("state"),
        "adapter_digest": registered.get("adapter_digest"),
        "rollout_strategy": f"{arguments.rollout_strategy} was asked for; the measured improvement decides",
    }


async def release(box: Toolbox, arguments: Release) -> dict[str, Any]:
    """Shows or changes releases."""
    if arguments.action in ("list", "show"):
        return await _shown(box, arguments)
    if arguments.action == "start":
        if arguments.model_id is None:
            raise ConfigError("release with action 'start' needs model_id: the stored model to release.")
        return await _start(box, check_model(arguments.model_id))
    if arguments.action == "rollback":
        return await _rollback(box, arguments)
    async with box.service.bus() as bus:
        await send_command(bus, arguments.action, arguments.model_id, clock=SystemClock())
    return {"sent": arguments.action, "next": "call release with action 'show' to see what came of it"}


async def _start(box: Toolbox, name: str) -> dict[str, Any]:
    body = {"model_id": name, "traffic_percentage": 100, "require_approval": True}
    found = await box.service.gateway().call("PUT", "/admin/traffic", body)
    return {
        "model_id": name,
        "release_id": found.get("release_id"),
        "state": found.get("state"),
        "traffic_percentage": found.get("traffic_percentage"),
        "approval": f"after its validation a person decides: 'onward releases approve {name} --by WHO "
        f"--reason WHY'",
    }


async def _rollback(box: Toolbox, arguments: Release) -> dict[str, Any]:
    if not arguments.reason or not arguments.reason.strip():
        raise ConfigError("release with action 'rollback' needs reason: say why in one sentence.")
    reason = box.redactor.document({"reason": arguments.reason.strip()}).document["reason"]
    async with box.service.bus() as bus:
        record = await request_restore(bus, arguments.model_id, str(reason), clock=SystemClock())
    return {
        "release_id": record.release_id,
        "taken_back": record.candidate.model_id,
        "restored": record.current.model_id,
        "next": "call release with action 'show' to see when every gateway has confirmed it",
    }


async def _shown(box: Toolbox, arguments: Release) -> dict[str, Any]:
    async with box.service.bus() as bus:
        records = await Releases(bus, SystemClock()).all()
    if arguments.model_id is not None:
        records = [record for record in records if record.has_name(arguments.model_id)]
        if not records:
            raise NotFoundError(
                f"There is no release of {arguments.model_id[:80]!r}: action 'list' shows them."
            )
    newest = records[::-1]
    if arguments.action == "list":
        items = [_in_short(record) for record in newest[arguments.offset :]]
        return {"total": len(newest), "note": NOTE, "items": items}
    if not newest:
        return {"note": "Nothing was released yet."}
    record = newest[0]
    facts = {name: value for name in _FACTS if (value := getattr(record, name)) is not None}
    return {**_in_short(record), **facts, "validation": _validation(record), "history": record.history[-10:]}


def _in_short(record: ReleaseRecord) -> dict[str, Any]:
    return {
        "release_id": record.release_id,
        "model_id": record.candidate.model_id,
        "beside": record.current.model_id,
        "state": str(record.state),
        "sentence": what_happened(record),
    }


def _validation(record: ReleaseRecord) -> dict[str, Any] | None:
    found = record.validation
    if found is None:
        return None
    return {name: found.get(name) for name in ("verdict", "improvement", "passed", "current", "candidate")}
