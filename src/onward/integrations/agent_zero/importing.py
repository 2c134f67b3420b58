"""Reads Agent Zero's chat files into trajectories: work from before the plugin, or of another installation.

Read are ``usr/chats/<chat>/chat.json``, the file that the page exports, ``<chat>.json`` of version 0.8, and
histories as a list of ``{"type": "human" | "ai", "content"}`` from before it. Long results that the history
refers to are read from ``messages`` beside the file.

A chat file is less than what the plugin records. It has no time of a message, no model, no reasoning, and
none of the messages that were compressed away; ``metadata.lost`` names these. Ids are those that the plugin
gives, so a task that was recorded is not imported again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onward.bus.outbox import Outbox
from onward.errors import ConfigError, ConflictError, ContractError
from onward.integrations.agent_zero.histories import Entry, entries_of, text_of, tools_of
from onward.integrations.agent_zero.plugin.helpers.recording import task_id
from onward.integrations.agent_zero.worker import action
from onward.integrations.agent_zero.worker.assembly import Assembly
from onward.integrations.agent_zero.worker.fitting import fit

if TYPE_CHECKING:
    from onward.capture.recorder import Recorder

LOST = ("message_times", "model", "reasoning", "prompts")
"""Facts that no chat file has."""
NAME = "chat.json"
_ENDED = "the chat file ends before the task does"
_MAX_BYTES = 512 << 20
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,128}")
_JOB = re.compile(r'"context_id":\s*"([A-Za-z0-9_-]{1,128})"')
"""Chat of a parallel job, in the text of its result."""
_CALLS = ("tool_calls", "calls", "items")
"""Names under which the tool ``parallel`` takes its calls."""


@dataclass
class Run:
    """One task of one agent: a message that began it, and what followed."""

    number: int
    first: Entry
    chat: str = ""
    above: str = ""
    """Chat of its superior: its own, or in newer versions another."""
    entries: list[Entry] = field(default_factory=list)
    id: str = ""
    turns: list[dict[str, Any]] = field(default_factory=list)


def chat_files(path: Path) -> list[Path]:
    """Returns the chat files at ``path``: a file, a chat's folder, the folder of all chats, or Agent Zero's
    own. Raises ConfigError if there is none."""
    if path.is_file():
        return [path]
    for folder in (path / "usr" / "chats", path / "tmp" / "chats", path):
        found = [folder / NAME] if (folder / NAME).is_file() else sorted(folder.glob(f"*/{NAME}"))
        found += [one for one in sorted(folder.glob("*.json")) if one.name != NAME] if folder.is_dir() else []
        if found:
            return found
    raise ConfigError(
        f"There is no chat file in {path}: give a {NAME}, a folder of chats, or the folder of Agent Zero."
    )


def read_chat(path: Path, **facts: Any) -> list[dict[str, Any]]:
    """Returns the trajectories of one chat file, in the order of the agents and of their tasks. ``facts`` are
    those of ``Assembly.document``. Raises ConfigError for a file that is no chat of Agent Zero."""
    chat = _load(path)
    name = _name(path, chat)
    family = _family(path, chat)
    runs = [run for run in family if run.chat == name]
    parents = _parents(family)
    began, ended = _time(chat.get("created_at")), _time(chat.get("last_message"))
    began = began or ended or 0.0
    made = []
    for run in runs:
        opened = {
            "t": run.id,
            "root": _root(run, parents),
            "at": began,
            "chat": name,
            "kind": chat.get("type") or "user",
            "agent": run.number,
            "profile": "",
            "parent": parents.get(run.id),
            "message": run.first.id,
            "content": run.first.content,
        }
        assembly = Assembly(opened)
        for turn in run.turns:
            assembly.add({**turn, "at": began})
        is_whole = bool(run.turns) and any(call["tool"] == "response" for call in run.turns[-1]["calls"])
        status = "success" if is_whole else "aborted"
        closed: dict[str, Any] = {"at": max(began, ended or began), "status": status}
        if not is_whole:
            closed["error"] = _ENDED
        document, _ = assembly.document(closed, facts)
        document["metadata"]["capture"] = {"source": "agent_zero_chat", "closed": "import"}
        document["metadata"]["lost"] = list(LOST)
        made.append(document)
    return made


def _name(path: Path, chat: Mapping[str, Any]) -> str:
    return str(chat.get("id") or (path.parent.name if path.name == NAME else path.stem))


def _family(path: Path, chat: dict[str, Any]) -> list[Run]:
    """Returns the tasks of a chat, of its subordinates' chats beside it, and of all above it."""
    runs = _runs_of(path, chat)
    found = {_name(path, chat): runs}
    below = {name for run in runs for turn in run.turns for call in turn["calls"] for name in call["chats"]}
    above = [_above(chat)]
    for name in chain(sorted(below), above):  # ``above`` grows meanwhile
        file = path.parent.parent / name / NAME
        if path.name != NAME or name in found or not _PLAIN.fullmatch(name) or not file.is_file():
            continue
        found[name] = []
        try:
            other = _load(file)
        except ConfigError:
            continue  # it is reported where it is read for itself
        found[name] = _runs_of(file, other)
        if name not in below:
            above.append(_above(other))
    return [run for runs in found.values() for run in runs]


def _above(chat: Mapping[str, Any]) -> str:
    """Returns the chat of the superior, which newer versions name; empty for none."""
    output = chat.get("output_data")
    return str(output.get("parent_context_id") or "") if isinstance(output, Mapping) else ""


def _runs_of(path: Path, chat: Mapping[str, Any]) -> list[Run]:
    name = _name(path, chat)
    runs: list[Run] = []
    for agent in chat["agents"]:
        runs += _runs(int(agent.get("number") or 0), entries_of(agent.get("history"), path.parent))
    for run in runs:
        run.chat, run.above = name, _above(chat) or name
        run.id = task_id("\x1f".join(map(str, (name, run.number, run.first.id))))
        run.turns = list(_turns(run))
    return runs


def _load(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path} has more than {_MAX_BYTES >> 20} MiB: split it.")
        chat = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is no JSON: give a {NAME} of Agent Zero.") from None
    if not isinstance(chat, dict) or not isinstance(chat.get("agents"), list):
        raise ConfigError(f"{path} is no chat of Agent Zero: it has no list 'agents'.")
    if not all(isinstance(agent, dict) for agent in chat["agents"]):
        raise ConfigError(f"{path} is no chat of Agent Zero: 'agents' must be a list of objects.")
    return chat


def _runs(number: int, entries: Sequence[Entry]) -> Iterator[Run]:
    """Splits a history at the messages that begin a task. A message of the user before the agent has given
    its final answer is an intervention, under whichever name it was stored."""
    run: Run | None = None
    is_over = True
    for entry in entries:
        begins = not entry.is_model and _is_request(entry.content) and (is_over or run is None)
        if begins:
            if run is not None:
                yield run
            run, is_over = Run(number, entry), False
        elif run is not None:
            run.entries.append(entry)
        if entry.is_model:
            is_over = entry.is_final or any(tool == "response" for tool, _ in tools_of(entry))
    if run is not None:
        yield run


def _is_request(content: Any) -> bool:
    if isinstance(content, Mapping):
        return "user_message" in content
    return isinstance(content, str) and bool(content)


def _turns(run: Run) -> Iterator[dict[str, Any]]:
    """Yields a turn for each answer of the model, in the form of the plugin's events."""
    new: list[tuple[str, Any]] = [("user", _shown(run.first.content))]
    turn: dict[str, Any] | None = None
    number = 0
    for entry in run.entries:
        if entry.is_model:
            if turn is not None:
                yield turn
            number += 1
            turn = _answered(number, entry, new)
            new = []
            continue
        new.append(("user", _shown(entry.content)))
        if turn is not None:
            _add_result(turn, entry.content)
    if turn is not None:
        yield turn


def _answered(number: int, entry: Entry, new: list[tuple[str, Any]]) -> dict[str, Any]:
    turn: dict[str, Any] = {
        "n": number,
        "new": new,
        "response": text_of(entry.content),
        "messages": [entry.id],
        "calls": [],
    }
    if entry.reasoning:
        turn["reasoning"] = entry.reasoning
    for tool, args in tools_of(entry):
        call: dict[str, Any] = {"tool": tool, "args": args, "chats": []}
        if tool == "response":
            told = args.get("text", args.get("message")) if isinstance(args, Mapping) else None
            call["result"] = str(told or "")
        turn["calls"].append(call)
    return turn


def _add_result(turn: dict[str, Any], content: Any) -> None:
    """Adds what followed an answer to its turn: a result, a warning, or a word of the user."""
    if not isinstance(content, Mapping):
        waiting = [call for call in turn["calls"] if "result" not in call]
        if waiting:
            waiting[0]["result"] = text_of(content)
        return
    if "tool_result" in content:
        for call in turn["calls"]:
            if "result" not in call:
                call["result"] = text_of(content["tool_result"])
                call["chats"] = _JOB.findall(call["result"])
                if isinstance(content.get("context_id"), str):
                    call["chats"].append(content["context_id"])
                return
    for name, kind in (("system_warning", "warnings"), ("user_intervention", "interventions")):
        if name in content:
            turn.setdefault(kind, []).append(text_of(content[name]))
            if kind == "warnings":
                turn["calls"] = [call for call in turn["calls"] if "result" in call]


def _parents(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Returns the turn that called each subordinate: the call with the same message, each taken once."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        asked = str(_request_text(run.first.content) or "").strip()
        calls = (
            (above, turn["n"], call)
            for above in runs
            if above.number == run.number - 1 and above.chat == run.above
            for turn in above.turns
            for call in turn["calls"]
        )
        for above, number, call in calls:
            given = _delegated(call)
            is_other = bool(call["chats"]) and run.chat not in call["chats"]
            if not is_other and asked in given and len(call.get("subordinates", ())) < len(given):
                call.setdefault("subordinates", []).append(run.id)
                found[run.id] = [above.id, number]
                break
    return found


def _delegated(call: Mapping[str, Any]) -> list[str]:
    """Returns the messages that a call gives to subordinates, alone or among parallel ones."""
    args = call.get("args")
    if not isinstance(args, Mapping):
        return []
    if call["tool"] in action.DELEGATIONS:
        return [str(args.get("message") or "").strip()]
    listed = next((args[name] for name in _CALLS if isinstance(args.get(name), list)), [])
    inner = [
        {"tool": one["tool_name"], "args": one.get("tool_args")}
        for one in listed
        if isinstance(one, Mapping) and one.get("tool_name") in action.DELEGATIONS
    ]
    return [message for one in inner for message in _delegated(one)]


def _root(run: Run, parents: Mapping[str, Sequence[Any]]) -> str:
    name = run.id
    while name in parents:
        name = str(parents[name][0])
    return name


def _request_text(content: Any) -> Any:
    return content.get("user_message") if isinstance(content, Mapping) else content


def _shown(content: Any) -> Any:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _time(text: Any) -> float:
    """Returns Unix seconds of an ISO time; 0 for none."""
    try:
        when = datetime.fromisoformat(str(text))
    except ValueError:
        return 0.0
    return max(0.0, (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp())


@dataclass(frozen=True)
class Report:
    """Counts of an import."""

    files: int = 0
    imported: int = 0
    known: int = 0
    """Recorded by the plugin, or imported before."""
    held: int = 0
    """Redaction or the contract refused them: they are stored encrypted beside the outbox."""
    opted_out: int = 0
    unreadable: tuple[str, ...] = ()
    """The sentences about files that are no chats."""


def import_chats(paths: Sequence[Path], recorder: Recorder, **facts: Any) -> Report:
    """Redacts and records the tasks of all chat files at ``paths``. A file that cannot be read is reported,
    and the others are read. Raises ConfigError for a path without any, OutboxFullError, BusError."""
    files = [file for path in paths for file in chat_files(path)]
    unreadable: list[str] = []
    known = 0
    before = recorder.stats()
    for file in files:
        try:
            documents = read_chat(file, **facts)
        except ConfigError as error:
            unreadable.append(str(error))
            continue
        recorded = _recorded_by_plugin(file)
        for document in documents:
            if document["trajectory_id"] in recorded:
                known += 1
                continue
            fit(document, has_store=recorder.has_store)
            try:
                recorder.accept(document)
            except ConflictError:
                known += 1
            except ContractError:
                pass  # held, and counted so
    after = recorder.stats()
    return Report(
        files=len(files),
        imported=after.recorded - before.recorded,
        known=known,
        held=after.held - before.held,
        opted_out=after.opted_out - before.opted_out,
        unreadable=tuple(unreadable),
    )


def _recorded_by_plugin(file: Path) -> frozenset[str]:
    """Returns the trajectories that the plugin of this Agent Zero has recorded in the last 30 days."""
    if len(file.parents) < 4:
        return frozenset()
    box = file.parents[3] / "usr" / "plugins" / "onward" / "data" / "outbox.db"
    if not box.is_file():
        return frozenset()
    outbox = Outbox(box)
    try:
        return frozenset(receipt.msg_id for receipt in outbox.receipts())
    finally:
        outbox.close()
