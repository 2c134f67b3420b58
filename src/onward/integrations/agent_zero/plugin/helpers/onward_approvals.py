"""Approvals: a step that matters waits until a person has agreed to it in the web interface, once.

Standard library alone. An approval belongs to one chat and one tool with one set of arguments: anything
else needs another one. It is used up by the call, and it expires. A person sees the arguments whole: a call
that is too long to be read is refused.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
import time
import types
import unicodedata
import uuid
from typing import Any

STORE = "_onward_agent_zero_approvals"
SECONDS = 1800.0
MOST = 50
MOST_OF_CHAT = 10
"""Steps of one chat that may wait: more of them would only hide what matters."""
LONGEST = 4000
"""Characters of the arguments that a person can be asked to read."""
STEPS: dict[str, tuple[str, frozenset[str]]] = {
    "start_training": ("train", frozenset()),
    "control_train": ("train", frozenset()),
    "publish_nats": ("train", frozenset()),
    "deploy_to_tensorzero": ("release", frozenset()),
    "release": ("release", frozenset({"start"})),
}
"""Tool → its group, and the actions that matter; no action means every call. Looking, holding, aborting and
taking a model back never wait."""
_lock = threading.Lock()


def gate(name: str, arguments: dict[str, Any], context: Any, groups: str) -> dict[str, Any] | None:
    """Returns None if the call may go on, else what the agent is answered. ``groups``: words out of train and
    release; a step of another group needs no approval."""
    group, actions = STEPS.get(name, ("", frozenset()))
    if not group or group not in groups.replace(",", " ").split():
        return None
    if actions and arguments.get("action") not in actions:
        return None
    chat = str(getattr(context, "id", ""))
    key = _key(chat, name, arguments)
    shown = readable(arguments)
    if len(shown) > LONGEST:
        why = f"A person cannot approve {name} with {len(shown)} characters: give at most {LONGEST}."
        return {"refused": why}
    with _lock:
        entries = _entries()
        entry = next((one for one in entries.values() if one["key"] == key), None)
        if entry is not None and entry["state"] == "approved":
            del entries[entry["id"]]
            return None
        if entry is not None and entry["state"] == "refused":
            del entries[entry["id"]]
            return {"refused": f"A person refused this call of {name}. Report that, and do not try again."}
        if entry is None:
            of_chat = [one for one in entries.values() if one["chat"] == chat and one["state"] == "waiting"]
            if len(of_chat) >= MOST_OF_CHAT:
                why = f"{len(of_chat)} steps of this chat wait for a person: report that and stop."
                return {"refused": why}
            entry = _add(entries, name, shown, key, chat)
    return {
        "approval_needed": entry["id"],
        "message": f"A person must approve this call of {name} on Onward's page. Report that and stop; after "
        "the approval make the same call again, with the same arguments.",
    }


def waiting() -> list[dict[str, Any]]:
    """Returns the steps that wait for a person, oldest first."""
    with _lock:
        return [
            {name: one[name] for name in ("id", "tool", "arguments", "chat")}
            for one in _entries().values()
            if one["state"] == "waiting"
        ]


def decide(approval_id: str, approved: bool) -> bool:
    """Approves or refuses a step; returns False if it does not wait any more."""
    with _lock:
        entry = _entries().get(approval_id)
        if entry is None or entry["state"] != "waiting":
            return False
        entry["state"] = "approved" if approved else "refused"
        return True


def readable(arguments: dict[str, Any]) -> str:
    """Returns the arguments as a person sees them: whole, in order of their names, without characters that
    are invisible or turn the direction of the text."""
    text = json.dumps(arguments, ensure_ascii=False, sort_keys=True)
    return "".join(
        f"\\u{ord(each):04x}" if unicodedata.category(each) in ("Cc", "Cf", "Cs", "Zl", "Zp") else each
        for each in text
    )


def _add(entries: dict[str, dict[str, Any]], name: str, shown: str, key: str, chat: str) -> dict[str, Any]:
    entry = {
        "id": str(uuid.uuid4()),
        "key": key,
        "tool": name,
        "arguments": shown,
        "chat": chat,
        "state": "waiting",
        "until": time.monotonic() + SECONDS,
    }
    while len(entries) >= MOST:
        del entries[next(iter(entries))]
    entries[entry["id"]] = entry
    return entry


def _entries() -> dict[str, dict[str, Any]]:
    """Returns the entries that have not expired. They survive a reload of this module."""
    store: Any = sys.modules.setdefault(STORE, types.ModuleType(STORE))
    now = time.monotonic()
    store.entries = {key: one for key, one in getattr(store, "entries", {}).items() if one["until"] > now}
    return store.entries


def _key(chat: str, name: str, arguments: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps([chat, name, arguments], sort_keys=True).encode()).hexdigest()
