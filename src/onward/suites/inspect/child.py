"""The process that imports Inspect and runs one task: ``python -m onward.suites.inspect.child``.

``describe REQUEST`` prints one event with size and digest. ``run REQUEST`` prints the items' names, each
result as its sample ends, and ``done``. What cannot run is ``refused`` with a code. The endpoint's address
and key come in the environment, where Inspect looks for them, never in an argument.
"""

# Inspect is installed in an environment of its own, if at all.
# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from onward.processes import die_with_parent, own_output
from onward.suites.inspect.outcome import item, item_id

OWN = "onward.suites.tasks.inspect_tasks"
"""Module with the tasks that Onward ships, named ``onward/NAME``."""
_RETRIES = 2
_CALL_SECONDS = 300

Report = Callable[..., None]


class Refused(Exception):
    """Raised when the task cannot run; becomes the last event."""

    def __init__(self, code: str, **facts: Any) -> None:
        super().__init__(code)
        self.facts = {"code": code, **facts}


def main() -> None:
    die_with_parent()
    write = own_output()

    def report(event: str, **facts: Any) -> None:
        write(event=event, **facts)

    mode, request = sys.argv[1], json.loads(sys.argv[2])
    try:
        importlib.import_module("inspect_ai")
    except ModuleNotFoundError:
        report("refused", code="extra")
        return
    try:
        task = find(request["task"])
        if mode == "describe":
            report("described", **describe(task, request))
        else:
            run(task, request, report)
    except Refused as refusal:
        report("refused", **refusal.facts)


def find(name: str) -> Any:
    """Returns the task of that name, made. Raises Refused."""
    from inspect_ai import Task
    from inspect_ai._util.entrypoints import ensure_entry_points
    from inspect_ai._util.registry import registry_create, registry_find, registry_info

    importlib.import_module(OWN)
    if ":" in name:
        made = _of_module(name)
    else:
        ensure_entry_points()
        known = sorted(registry_info(one).name for one in registry_find(lambda info: info.type == "task"))
        matching = [one for one in known if one == name or one.partition("/")[2] == name]
        if len(matching) != 1:
            raise Refused("unknown", known=known)
        try:
            made = registry_create("task", matching[0])
        except Exception as error:
            raise Refused("broken", why=f"{type(error).__name__}: {error}") from error
    if not isinstance(made, Task):
        raise Refused("broken", why=f"it is {type(made).__name__}, not a Task")
    return made


def _of_module(name: str) -> Any:
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise Refused("unknown", known=[]) from error
    except Exception as error:
        raise Refused("broken", why=f"{type(error).__name__}: {error}") from error


def _samples(task: Any, request: dict[str, Any]) -> list[Any]:
    """Returns the samples that are run, each with a name as Inspect gives it."""
    samples = list(task.dataset)[: request["limit"]]
    for index, sample in enumerate(samples, 1):
        if sample.id is None:
            sample.id = index
    return samples


def describe(task: Any, request: dict[str, Any]) -> dict[str, Any]:
    """Returns size and digest. The digest covers the items, the code of the task's package and Inspect."""
    import inspect_ai
    from inspect_ai._util.registry import registry_info

    samples = _samples(task, request)
    hasher = hashlib.sha256(f"inspect-ai {inspect_ai.__version__}\n{request['task']}\n".encode())
    for sample in samples:
        parts = [sample.id, sample.input, sample.target, sample.choices, sample.metadata]
        hasher.update(json.dumps(parts, sort_keys=True, default=str).encode())
    for scorer in task.scorer or []:
        hasher.update(registry_info(scorer).name.encode())
        source = inspect.getsourcefile(scorer)
        if source is not None:
            with open(source, "rb") as code:
                hasher.update(code.read())
    return {"size": len(samples) * (task.epochs or 1), "digest": hasher.hexdigest()}


def run(task: Any, request: dict[str, Any], report: Report) -> None:
    """Runs the task and reports each sample as it ends."""
    from inspect_ai import eval as evaluate
    from inspect_ai.hooks import Hooks, SampleEnd, hooks

    kind = str(task.name)

    class Progress(Hooks):
        async def on_sample_end(self, data: SampleEnd) -> None:
            report(**item(data.sample, kind))

    hooks("onward_progress", "Reports each sample.")(Progress)
    samples = _samples(task, request)
    epochs = range(1, (task.epochs or 1) + 1)
    report("started", items=[item_id(sample.id, epoch) for epoch in epochs for sample in samples])
    logs = evaluate(
        task,
        model=f"openai-api/onward-eval/{request['model']}",
        log_dir=os.path.join(request["folder"], "inspect"),
        log_format="json",
        limit=request["limit"],
        display="none",
        fail_on_error=False,
        max_samples=request["at_once"],
        max_connections=request["at_once"],
        max_retries=_RETRIES,
        timeout=_CALL_SECONDS,
        max_tokens=request["max_tokens"],
        temperature=1.0,
        seed=request["seed"],
    )
    status = logs[0].status
    if status != "success":
        raise Refused("broken", why=str(logs[0].error.message if logs[0].error else status))
    report("done")


if __name__ == "__main__":
    main()
