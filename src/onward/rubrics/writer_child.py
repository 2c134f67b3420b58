"""The process of a rubric writer that is a model: ``python -m onward.rubrics.writer_child``.

Requests come as JSON lines on standard input, and answers go out on standard output, in order. The first
request that names a writer loads it, and a further one another writer; if that fails, the one before stays.
One thread answers probes at once, so that long work does not look like a hang.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from onward.errors import OnwardError
from onward.memory import is_out_of_memory
from onward.processes import die_with_parent, end_first_for_memory, own_output

if TYPE_CHECKING:  # much to import before the first probe
    from onward.rubrics.language import Rubric
    from onward.rubrics.policy.evaluation import Plays

Requests = queue.SimpleQueue[dict[str, Any]]


def main() -> None:
    die_with_parent()
    end_first_for_memory()
    write, requests, desk = own_output(), Requests(), Desk()
    threading.Thread(target=receive, args=(requests, write), name="requests", daemon=True).start()
    while True:
        request = requests.get()
        write(id=request["id"], **desk.answer(request))


def receive(requests: Requests, write: Callable[..., None]) -> None:
    """Passes requests on, and answers probes itself. Ends the process when its input ends."""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "writer" in request:
            requests.put(request)
        else:
            write(id=request["id"])
    os._exit(0)


class Desk:
    """Answers requests with the writer that they name."""

    def __init__(self) -> None:
        self._name = ""
        self._player: Plays | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns ``rubric``, the canonical text; or ``error``, a sentence, with ``invalid`` true if the
        writer's text was no rubric."""
        from onward.rubrics.language import InvalidRubric, serialise

        name = request["writer"]
        try:
            return {"rubric": serialise(self._written(request))}
        except InvalidRubric as error:
            return {"error": str(error), "invalid": True}
        except OnwardError as error:
            return {"error": str(error)}
        except Exception as error:
            traceback.print_exc()
            if is_out_of_memory(error):
                return {"error": f"The memory of this machine is too small for the rubric writer {name}."}
            return {"error": f"The rubric writer {name} failed ({type(error).__name__}: {error})."}

    def _written(self, request: dict[str, Any]) -> Rubric:
        import numpy as np

        from onward.rubrics.check import Check
        from onward.rubrics.tasks import RubricTask
        from onward.rubrics.writers import open_writer, rubric_by

        if self._player is None or self._name != request["writer"]:
            self._player = open_writer(request["writer"]).player
            self._name = request["writer"]
        checks = tuple(Check(name, arg) for name, arg in request["checks"])
        return rubric_by(
            self._player, RubricTask("", 0, request["brief"], checks, np.zeros(len(checks)), {}, ())
        )


if __name__ == "__main__":
    main()
