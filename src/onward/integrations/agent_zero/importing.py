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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from onward.bus.outbox import Outbox
from onward.errors import ConfigError, ConflictError, ContractError
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


@dataclass
class Entry:
    """One message of a history."""

    is_model: bool
    content: Any
    id: str


@dataclass
class Run:
    """One task of one agent: a message that began it, and what followed."""

    number: int
    first: Entry
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
    name = str(chat.get("id") or (path.parent.name if path.name == NAME else path.stem))
    runs: list[Run] = []
    for agent in chat["agents"]:
        runs += _runs(int(agent.get("number") or 0), _entries(agent.get("history"), path.parent))
    for run in runs:
        run.id = task_id("\x1f".join(map(str, (name, run.number, run.first.id))))
        run.turns = list(_turns(run))
    parents = _parents(runs)
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


def _entries(history: Any, folder: Path) -> list[Entry]:
    """Returns the messages of a history in order, in whichever form it was stored."""
    if isinstance(history, str):
        try:
            history = json.loads(history) if history.strip() else {}
        except ValueError:
            return []
    if isinstance(history, Mapping):
        found = list(_within(history))
    elif isinstance(history, list):
        found = [one for one in history if isinstance(one, Mapping)]
    else:
        return []
    entries = []
    for number, message in enumerate(found):
        is_model = bool(message["ai"]) if "ai" in message else message.get("type") in ("ai", "assistant")
        content = _whole(message.get("content", message.get("summary", "")), folder)
        entries.append(Entry(is_model, content, str(message.get("id") or f"message-{number}")))
    return entries


def _within(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yields the messages below a record of any kind: History, Bulk, Topic, Message. A topic that was
    summarised still has its messages."""
    if record.get("_cls") == "Message" or ("ai" in record and "content" in record):
        yield record
        return
    current = record.get("current")
    for name in ("bulks", "records", "topics", "messages"):
        for one in record.get(name) or ():
            if isinstance(one, Mapping):
                yield from _within(one)
    if isinstance(current, Mapping):
        yield from _within(current)


def _whole(content: Any, folder: Path) -> Any:
    """Returns a tool's result with the text of the file beside the chat, if it names one that is there. Only
    the file's name is used: the path is the host's own."""
    if not isinstance(content, Mapping) or not isinstance(content.get("file"), str):
        return content
    path = folder / "messages" / PurePath(content["file"]).name
    try:
        return {**content, "tool_result": path.read_text(encoding="utf-8", errors="replace")}
    except OSError:
        return content


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
            is_over = action.read(_text(entry.content)).get("tool_name") == "response"
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
    response = _text(entry.content)
    answer = action.read(response)
    turn: dict[str, Any] = {
        "n": number,
        "new": new,
        "response": response,
        "messages": [entry.id],
        "calls": [],
    }
    tool = answer.get("tool_name")
    if isinstance(tool, str) and tool:
        args = answer.get("tool_args")
        call: dict[str, Any] = {"tool": tool.partition(":")[0], "args": args}
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
            waiting[0]["result"] = _text(content)
        return
    if "tool_result" in content:
        for call in turn["calls"]:
            if "result" not in call:
                call["result"] = _text(content["tool_result"])
                return
    for name, kind in (("system_warning", "warnings"), ("user_intervention", "interventions")):
        if name in content:
            turn.setdefault(kind, []).append(_text(content[name]))
            if kind == "warnings":
                turn["calls"] = [call for call in turn["calls"] if "result" in call]


def _parents(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Returns the turn that called each subordinate: the call with the same message, each taken once."""
    found: dict[str, list[Any]] = {}
    for run in runs:
        asked = _request_text(run.first.content)
        for above in runs:
            if above.number != run.number - 1 or run.id in found:
                continue
            for turn in above.turns:
                for call in turn["calls"]:
                    args = call.get("args")
                    told = args.get("message") if isinstance(args, Mapping) else None
                    if call["tool"] in action.DELEGATIONS and told == asked and "subordinates" not in call:
                        call["subordinates"] = [run.id]
                        found[run.id] = [above.id, turn["n"]]
                        break
                if run.id in found:
                    break
    return found


def _root(run: Run, parents: Mapping[str, Sequence[Any]]) -> str:
    name = run.id
    while name in parents:
        name = str(parents[name][0])
    return name


def _request_text(content: Any) -> Any:
    return content.get("user_message") if isinstance(content, Mapping) else content


def _shown(content: Any) -> Any:
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Mapping) and isinstance(content.get("preview"), str):
        return content["preview"]
    return json.dumps(content, ensure_ascii=False)


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
