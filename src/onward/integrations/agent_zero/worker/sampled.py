"""The gateway's records of sampled tokens: fetched by the name of the task, and given to its turns.

LiteLLM passes on the text of an answer alone. So a record is found by its text, in order. A task from which
something was left out gets none: the redactor must see as text whatever the token ids contain.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from onward.integrations.agent_zero.plugin.helpers.drafts import OMITTED
from onward.telemetry import logs

SECONDS = 2.0
"""Limit of each step of a request."""
TOTAL_SECONDS = 10.0
"""Limit of a whole answer. The task is stored without its records, if they do not arrive until then."""
MOST_BYTES = 64 << 20
TRIES = 2
_log = logs.get("agent_zero")


def fetch(gateway_url: str, api_key: str | None, task: str) -> list[dict[str, Any]]:
    """Returns the records of a task; none if the gateway cannot be asked: the task is stored without."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    url = f"{gateway_url.rstrip('/')}/v1/records/{task}"
    for _ in range(TRIES):
        try:
            with httpx.stream("GET", url, headers=headers, timeout=SECONDS, trust_env=False) as answer:
                told = json.loads(_body(answer.iter_bytes())) if answer.status_code == 200 else {}
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            _log.warning("the records of a task could not be fetched", reason=type(error).__name__)
            continue
        found = told.get("records") if isinstance(told, dict) else None
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return []


def _body(pieces: Iterator[bytes]) -> bytes:
    """Raises ValueError for an answer that does not come to an end."""
    until, found = time.monotonic() + TOTAL_SECONDS, bytearray()
    for piece in pieces:
        found += piece
        if len(found) > MOST_BYTES or time.monotonic() > until:
            raise ValueError
    return bytes(found)


def add_record(turn: dict[str, Any], records: list[dict[str, Any]]) -> None:
    """Gives a turn the first record with its text, and takes it from the list."""
    text = str(turn["action"].get("raw_response") or "").strip()
    for place, record in enumerate(records):
        if (
            text
            and str(record.get("text") or "").strip() == text
            and isinstance(record.get("sampling"), dict)
        ):
            turn["action"]["raw_response"] = record["text"]
            turn["action"]["sampling"] = record["sampling"]
            turn["action"]["served_by"] = {name: record.get(name) for name in ("model", "release")}
            del records[place]
            return


def describe(document: dict[str, Any]) -> None:
    """Moves model, release and temperature of the records to the metadata. Removes the records of a task from
    which something was left out."""
    served: Mapping[str, Any] = {}
    incomplete = json.dumps(OMITTED) in json.dumps(document["turns"])
    for turn in document["turns"]:
        served = turn["action"].pop("served_by", served)
        if incomplete:
            turn["action"].pop("sampling", None)
        elif isinstance(turn["action"].get("sampling"), Mapping):
            temperature = turn["action"]["sampling"].get("temperature")
            if isinstance(temperature, (int, float)) and temperature <= 2:
                document["metadata"]["temperature"] = temperature
    if served.get("model"):
        document["metadata"]["model"] = str(served["model"])
    if isinstance(served.get("release"), Mapping):
        document["metadata"]["release"] = dict(served["release"])
