"""``onward training start``: a training job from a file, as ``POST /training/start`` takes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from onward import host
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands
from onward.cli.output import AsJson, print_json, print_text
from onward.clock import SystemClock
from onward.config import Settings
from onward.contracts import decode_document, to_document
from onward.errors import ConfigError, ContractError
from onward.http.client import Address
from onward.telemetry.audit import current_user
from onward.training import intake
from onward.training.role.job_table import JobTable
from onward.training.role.status import status_of

training_app = Commands(
    help="""Training jobs of the service: start one by hand. 'onward jobs' follows it.

    onward training start -f config.json
    """
)
app.add_typer(training_app, name="training")


@training_app.command()
def start(
    request: Annotated[
        Path,
        typer.Option("-f", "--file", help="JSON: a request of any kind of job, or a training_config alone."),
    ],
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Start a training job from a file. An id, the time and your name are added where they are missing.

    With AGENTGYM_RL_URL the request goes to that service, with AGENTGYM_RL_API_KEY as its key.

    onward training start -f config.json

    A small file: {"algorithm": "reinforce", "base_model": "smollm2", "hyperparameters": {},
    "dataset": {"source": "clickhouse", "sample_size": 500}}.

    A control job has 'environment' at the top level, a job of a rubric writer has kind 'rubrics':
    docs/training-service.md.
    """
    settings = load_settings(file, data_dir)
    document = read_request(request)
    url = settings.external.agentgym_rl_url
    status = run_async(_post(url, settings, document) if url else _publish(settings, document))
    if as_json:
        print_json(status)
        return
    metadata = status.get("metadata") or {}
    named = f" (job #{metadata['number']})" if metadata.get("number") else ""
    job_id = status["training_job_id"]
    note = f" {metadata['note']}" if metadata.get("note") else ""
    print_text(
        f"Job {job_id}{named} is {status['status']}.{note} Follow it with 'onward jobs watch {job_id}'."
    )


def read_request(path: Path) -> dict[str, Any]:
    """Reads a request. Raises ConfigError for a file that holds none."""
    try:
        document = decode_document(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}): give a file with a request.") from None
    except ContractError as error:
        raise ConfigError(f"{path} is no request. {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is no request: give one JSON object.")
    return document


async def _publish(settings: Settings, document: dict[str, Any]) -> dict[str, Any]:
    async with host.attached(settings) as (bus, _):
        clock = SystemClock()
        done = await intake.submit(bus, clock, document, requester=current_user())
        record = done.taken()
        if record is None:
            advice = await intake.advice_for_waiting(bus, done.request.training_job_id)
            return to_document(done.waiting(advice))
        positions = await JobTable(bus.bucket("rl_jobs"), clock).positions()
        return to_document(status_of(record, settings, positions.get(record.job_id)))


async def _post(url: str, settings: Settings, document: dict[str, Any]) -> dict[str, Any]:
    key = settings.external.agentgym_rl_api_key
    service = Address(url, None if key is None else key.get_secret_value(), "AGENTGYM_RL_URL")
    return await service.call("POST", "/training/start", document)
