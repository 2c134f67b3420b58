"""Runs that begin with the message of an earlier one. Pure.

The id of a task follows from the message that began it. After a restart Agent Zero does not know that it has
answered a message before; the worker does.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from onward.integrations.agent_zero.plugin.helpers.recording import NAMESPACE


def renamed(opened: Mapping[str, Any], ended: float | None) -> Mapping[str, Any]:
    """Returns the begin of a task, under a new id if a task of its id had ``ended`` before.

    The begin of one task that comes twice, to two workers, gets the same id: its end comes after its begin.
    """
    task = str(opened["t"])
    if ended is None or ended > opened["at"]:
        return opened
    name = str(uuid.uuid5(NAMESPACE, f"{task}\x1f{opened['at']}"))
    return {**opened, "t": name, "root": name if opened["root"] == task else opened["root"]}
