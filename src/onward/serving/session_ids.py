"""Which session a call belongs to: the unit that a release is judged by.

Know before changing: the same caller must get the same id for every call of one piece of work, or its
calls are assigned to arms one by one.
"""

from __future__ import annotations

import hashlib

from fastapi import Request

from onward.httpbase import Caller
from onward.ids import check_id, is_id
from onward.serving import openai


def session_of(request: Request, chat: openai.ChatRequest, caller: Caller) -> str:
    """Header ``Onward-Session``, else ``user``, else a hash of API key and first user message."""
    header = request.headers.get("onward-session")
    if header:
        return check_id(header, "The header Onward-Session")
    if chat.user is not None:
        return chat.user if is_id(chat.user) else "u-" + _short_hash(chat.user)
    return "h-" + _short_hash(f"{caller.key_hash}\x1f{chat.first_user_message}")


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
