"""Derives the session of a call: the unit by which a release is judged.

Invariants: the same caller must get the same id for every call of one piece of work; otherwise its calls are
assigned to arms one by one. This holds on every gateway and after a restart, because the id follows from the
request and from the key that signs records, which all gateways of one loop share. Without the key no one can
find the user of an id by trying values.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from onward.capture.opt_out import user_hash
from onward.http.app import Caller
from onward.ids import check_id, is_id
from onward.serving.protocol import openai


@dataclass(frozen=True)
class Session:
    id: str
    is_named: bool
    """True if the client named the session."""


def session_of(request: Request, chat: openai.ChatRequest, caller: Caller, key: bytes) -> Session:
    """Returns header ``Onward-Session``, else ``user``, else a hash of API key and first user message. A
    ``user`` that is a valid id is used unchanged; any other is replaced by its keyed hash."""
    header = request.headers.get("onward-session")
    if header:
        return Session(check_id(header, "The header Onward-Session"), True)
    if chat.user is not None:
        return Session(chat.user if is_id(chat.user) else "u-" + user_hash(chat.user, key), True)
    return Session("h-" + user_hash(f"{caller.key_hash}\x1f{chat.first_user_message}", key), False)
