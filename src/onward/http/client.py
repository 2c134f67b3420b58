"""Calls of Onward's own HTTP services by commands and tools: one JSON document in, one out.

Invariants: an error repeats the sentence of the service, and never a header or a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from onward.errors import ConflictError, NotFoundError, OnwardError, hide_login

CALL_SECONDS = 30.0
_KINDS: dict[int, type[OnwardError]] = {404: NotFoundError, 409: ConflictError}


@dataclass(frozen=True)
class Address:
    """Address and key of one service."""

    url: str
    key: str | None = field(default=None, repr=False)
    setting: str = ""
    """Name of the setting that gave the address, for messages; empty for the loop of a data folder."""
    key_setting: str = ""
    """Name of the setting or variable that gave, or should give, the key."""

    async def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        query: Mapping[str, str] | None = None,
        seconds: float = CALL_SECONDS,
    ) -> dict[str, Any]:
        """Sends one request and returns the JSON object of the answer.

        Raises NotFoundError for 404, ConflictError for 409 and OnwardError for every other answer that is
        not one, each with the sentence of the service where it has one.
        """
        import httpx  # takes a tenth of a second, and most commands need none of it

        shown = hide_login(self.url)
        headers = {} if self.key is None else {"Authorization": f"Bearer {self.key}"}
        try:
            async with httpx.AsyncClient(base_url=self.url, timeout=seconds, trust_env=False) as client:
                answer = await client.request(method, path, json=body, params=query, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            advice = f"check {self.setting}" if self.setting else "is the loop up ('onward status')?"
            raise OnwardError(f"{shown} does not answer ({type(error).__name__}): {advice}.") from None
        try:
            found = answer.json()
        except ValueError:
            found = None
        if answer.status_code < 300 and isinstance(found, dict):
            return found
        said = found.get("error") if isinstance(found, dict) else None
        message = said.get("message") if isinstance(said, dict) else None
        if message and answer.status_code in (401, 403) and self.key_setting:
            message = f"{shown} refused the key of {self.key_setting}: {message}"
        kind = _KINDS.get(answer.status_code, OnwardError)
        raise kind(
            message or f"{shown} answered with status {answer.status_code}: is it a service of Onward?"
        )
