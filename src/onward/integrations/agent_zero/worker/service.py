"""``Worker``: takes the events of the plugin in order and confirms each task when it is on disk.

A task that cannot be stored at present, for example because the disk is full, is tried again until it can,
and is not confirmed before. Agent Zero stores its events meanwhile, and gives them to the next worker if this
one dies: a task that was stored already is stored once, since its id is the same. What the worker works on is
noted in a file, so that a task on which it dies or hangs each time is found and put aside.
"""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onward.capture.opt_out import OptOut
from onward.capture.recorder import Recorder
from onward.capture.recorder.preparation import agents_redactor
from onward.clock import SystemClock
from onward.errors import ConflictError, ContractError, OnwardError, RedactionError
from onward.integrations.agent_zero.plugin.helpers import hang
from onward.integrations.agent_zero.plugin.helpers.aside import Working
from onward.integrations.agent_zero.worker import hangs, sampled, votes
from onward.integrations.agent_zero.worker.answers import Answers
from onward.integrations.agent_zero.worker.assembly import HOST_ENDED, Assembly
from onward.integrations.agent_zero.worker.failed import FailedTasks
from onward.integrations.agent_zero.worker.fitting import fit
from onward.integrations.agent_zero.worker.heartbeat import Heartbeat
from onward.integrations.agent_zero.worker.reruns import renamed
from onward.integrations.agent_zero.worker.secrets import KEY, TOKEN, URL, Secrets
from onward.integrations.agent_zero.worker.waiting import Event, Waiting
from onward.integrations.agent_zero.worker.watch import Watch
from onward.redaction.steps import reported
from onward.telemetry import logs

Say = Callable[[dict[str, Any]], None]
END_SECONDS = 2.0
_NAME = re.compile(rb'"(?:t|id)":"([^"]{1,200})"')
"""Id of a line's task or vote, which stands at the begin of the line."""
_log = logs.get("agent_zero")


class Worker:
    """Called by one thread. ``say`` sends a message to Agent Zero's process."""

    def __init__(self, root: Path, data: Path, say: Say, heartbeat: Heartbeat | None = None) -> None:
        """``heartbeat`` is None in a test whose worker is no process."""
        self._heartbeat = heartbeat or Heartbeat(say)
        self._data, self._say = data, self._heartbeat.say
        self._secrets = Secrets(root)
        self._settings: dict[str, Any] = {}
        self._recorder: Recorder | None = None
        self._watch: Watch | None = None
        self._answers = Answers(data / "answers.db")
        self._open: dict[str, Assembly] = {}
        self._waiting = Waiting()
        self._reason = self._problem = ""
        self._working = Working(data)
        self._failed = FailedTasks(data)
        self._retried: set[str] = set()
        """Tasks from the sealed folder that are tried again."""
        self._sealed: dict[str, bool] = {}
        """Task that was sealed → whether with its end."""

    def take_line(self, line: bytes) -> None:
        """Reads and handles one event of the plugin."""
        found = _NAME.search(line, 0, 400)
        self._working.note(found[1].decode(errors="replace") if found else "")
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            event = None
        if isinstance(event, dict):
            self.take(event)
        else:
            _log.error("a line of the plugin could not be read", bytes=len(line))
        self._working.note("")

    def take(self, event: Event) -> None:
        """Handles one event. Never raises: an event that cannot be handled is tried again or reported."""
        operation = event.get("op")
        if operation != "settings":  # its start ends with them
            self._heartbeat.beat()
        self._working.note(str(event.get("t") or event.get("id") or ""))
        try:
            if operation == "settings":
                self._configure(event)
            elif operation == "open":
                self._open[str(event["t"])] = Assembly(event)
                if not event.get("parent") and self._watch is not None:
                    self._watch.look()
            elif operation == "turn" and event["t"] in self._open:
                self._open[event["t"]].add(event)
            elif operation == "drop":
                self._open.pop(event["t"], None)
                self._sealed.pop(event["t"], None)
                self._failed.drop(str(event["t"]))
            elif operation == "aside":
                self._seal(event)
            elif operation == "close":
                self._close(event)
            elif operation == "feedback" and self._watch is None:  # its file cannot be opened yet
                self._waiting.add(event)
            elif operation == "feedback":
                self._feedback(event)
            elif operation == "leave":  # the next worker gets all that is not confirmed
                self._open.clear()
                self._waiting.take_all()
        except (OnwardError, sqlite3.Error, OSError, TimeoutError) as error:
            self._try_later(event, error)
        except Exception as error:  # a defect of ours: the task is put aside as it is
            _log.error("an event could not be handled", operation=str(operation), reason=type(error).__name__)
            self._break(event, error)
        finally:
            self._working.note("")

    def tick(self) -> None:
        """Tries again what could not be stored, and reports the figures."""
        self._retry_failed()
        for number, event in enumerate(self._waiting.due()):
            if not number:
                self._reason = ""
            self.take(event)
        for report in self._watch.take_reports() if self._watch is not None else ():
            self._say({"op": "report", **report})
        try:
            self._say({"op": "figures", **self._figures()})
        except (OnwardError, sqlite3.Error, OSError) as error:  # the disk: the tasks wait for it, too
            self._say({"op": "figures", "reason": f"the outbox cannot be read: {type(error).__name__}"})

    def end(self) -> None:
        """Agent Zero has ended: records what is open, and delivers for a moment."""
        waiting = self._waiting.take_all()
        closed = {event["t"] for event in waiting if event["op"] == "close"}
        for task in self._open.keys() - closed:
            waiting.append(
                {"op": "close", "t": task, "at": time.time(), "status": "aborted", "error": HOST_ENDED}
            )
        for event in waiting:  # once: what fails again is not confirmed, and the next worker gets it
            self.take(event)
        if self._watch is not None:
            self._watch.close()
        if self._recorder is not None:
            self._recorder.close(END_SECONDS)
        self._answers.close()

    def _configure(self, event: Event) -> None:
        self._settings = dict(event)
        self._heartbeat.limit(float(event.get("hang_seconds") or hang.LIMIT))
        self._sealed |= dict.fromkeys(event.get("unfinished", ()), False)
        if told := event.get("hangs"):
            _log.error("the worker before this one made no progress", seconds=told["seconds"])
            hangs.save(self._data, told)
        values = self._secrets.values()
        self._start_recorder(values)
        token, key = self._secrets.named_value(TOKEN), self._secrets.named_value(KEY)
        url = self._nats_url()
        if self._watch is not None:
            self._watch.close()
            self._watch = None  # a new one may be refused
        self._watch = Watch(
            self._data,
            nats_url=url,
            nats_token=token,
            gateway_url=str(event.get("gateway_url") or ""),
            api_key=key,
            redactor=agents_redactor(values, url, token, ()),
            opt_out=OptOut.parse(""),
        )

    def _nats_url(self) -> str | None:
        """Returns the address of the settings, else the secret one, which has a login in it. None for one
        that cannot be read: the work waits in the outbox."""
        url = str(self._settings.get("nats_url") or "") or self._secrets.named_value(URL)
        try:
            _ = urlsplit(url or "").port
        except ValueError:  # its text may have the password
            self._problem = (
                "the address of NATS cannot be read: a sign in its password must be written as %XX"
            )
            return None
        self._problem = ""
        return url

    def _start_recorder(self, values: list[str]) -> None:
        if self._recorder is not None:
            self._recorder.close(0.0)
        told = self._settings
        self._recorder = Recorder(
            self._data / "outbox.db",
            nats_url=self._nats_url(),
            nats_token=self._secrets.named_value(TOKEN),
            agent_id=str(told.get("agent_id") or "agent-zero"),
            max_bytes=_bytes(told.get("outbox_mb")),
            objects=str(told.get("objects") or "") or None,
            known_secrets=values,
            follow_threads=False,
        )

    def _recorder_now(self) -> Recorder:
        """Returns the recorder, made anew if Agent Zero's secrets have changed."""
        if self._secrets.has_changed() or self._recorder is None:
            self._start_recorder(self._secrets.values())
        assert self._recorder is not None
        return self._recorder

    def _close(self, event: Event) -> None:
        task = str(event["t"])
        assembly = self._open.get(task)
        if assembly is None:
            self._done(event, "failed")
            return
        opened = assembly.opened
        assembly.opened = renamed(opened, self._answers.ended(str(opened["chat"]), str(opened["t"])))
        recorder = self._recorder_now()
        records = self._records(assembly, task)
        self._heartbeat.beat()
        document, places = assembly.document(event, {**self._facts(), "records": records})
        self._heartbeat.beat()
        fit(document, has_store=bool(self._settings.get("objects")))
        before = recorder.stats()
        result = "recorded"
        try:
            with reported(self._heartbeat.beat):
                recorder.accept(document)
            after = recorder.stats()
            if after.opted_out > before.opted_out:
                result = "opted_out"
            elif after.recorded == before.recorded:
                result = "held"
        except ConflictError:
            pass  # stored by the worker before this one
        except ContractError as error:
            _log.error("a task breaks the contract", reason=error.reason)
            result = "held"
        except RedactionError as error:
            _log.error("a task could not be redacted", reason=type(error).__name__)
            self._break(event, error)
            return
        if result == "recorded":
            chat = str(assembly.opened["chat"])
            name = str(document["trajectory_id"])
            self._answers.add(chat, places, name, document["session_id"], float(event["at"]))
        del self._open[task]
        self._done(event, result)

    def _seal(self, event: Event) -> None:
        """Seals a task on which earlier workers ended, unread."""
        name, is_whole = str(event["id"]), bool(event.get("whole"))
        if self._sealed.get(name) and not is_whole:  # it waited for the disk, and its end came first
            return
        self._failed.put(name, list(event["lines"]), str(event["reason"]), SystemClock().now())
        self._sealed[name] = is_whole
        if is_whole:
            _log.error("a task was put aside", reason=str(event["reason"]))
            self._done(event, "set_aside")

    def _retry_failed(self) -> None:
        """Tries one task again of those that a person has asked for. If this ends the worker, it stays
        sealed. One that is still in progress waits for its end."""
        if not self._settings:
            return
        try:
            found = self._failed.next_again({name for name, is_whole in self._sealed.items() if not is_whole})
        except (OnwardError, OSError, ValueError) as error:
            _log.error("a task that was put aside cannot be read", reason=type(error).__name__)
            return
        if found is None or not found[1]:
            return
        name, events = found
        self._retried.add(name)
        for event in events:
            self.take(event)
        if events[-1]["op"] not in ("close", "feedback"):  # Agent Zero ended before the task did
            self.take({"op": "close", "t": name, "at": time.time(), "status": "aborted", "error": HOST_ENDED})

    def _feedback(self, event: Event) -> None:
        if votes.is_action(event) and self._settings.get("implicit") == "no":
            self._done(event, "opted_out")
            return
        chats = {str(one.opened["chat"]) for one in self._open.values()}
        if votes.is_of_open_task(event, set[str | None](self._open), chats):
            self._waiting.add(event)  # its task is about to end
            return
        place = votes.place(event, self._answers)
        if place is None and self._failed.has(votes.linked_task(event) or ""):
            self._put_aside(event, "it is about a task that was put aside")
            return
        if place is None:
            _log.warning(
                "feedback is about an answer that was not recorded", chat=str(event.get("chat"))[:16]
            )
            self._done(event, "opted_out")
            return
        said = votes.document(event, place)
        if said is None:
            self._done(event, "no_vote")
            return
        assert self._watch is not None
        try:
            taken = self._watch.accept(str(event["id"]), said)
        except ConflictError:
            taken = True
        except (ContractError, RedactionError) as error:
            _log.error("feedback is refused", reason=type(error).__name__)
            self._break(event, error)
            return
        self._done(event, "feedback" if taken else "opted_out")

    def _records(self, assembly: Assembly, task: str) -> list[dict[str, Any]]:
        """Fetches the gateway's records of a task whose model was asked there."""
        url = str(self._settings.get("gateway_url") or "")
        if not url or not any(turn.get("gateway") for turn in assembly.turns):
            return []
        return sampled.fetch(url, self._secrets.named_value(KEY), task)

    def _facts(self) -> dict[str, Any]:
        model = self._watch.model["id"] if self._watch is not None else None
        return {**self._settings, "model": model}

    def _try_later(self, event: Event, error: Exception) -> None:
        self._reason = f"waiting to store: {type(error).__name__}"
        _log.warning("an event waits", operation=str(event.get("op")), reason=type(error).__name__)
        self._waiting.add_failed(event)

    def _break(self, event: Event, error: Exception) -> None:
        self._put_aside(event, f"the worker could not handle it ({type(error).__name__})")

    def _put_aside(self, event: Event, reason: str) -> None:
        """Reports that a task or vote cannot be handled. It comes back as one text to be sealed; one that was
        tried again stays sealed."""
        name = str(event.get("t") or event.get("id"))
        self._open.pop(name, None)
        self._retried.discard(name)
        self._say({"op": "broken", "id": name, "reason": reason})

    def _done(self, event: Event, result: str) -> None:
        name = str(event.get("t") or event.get("id"))
        if name in self._retried and result != "failed":
            self._retried.discard(name)
            self._failed.drop(name)
        self._say({"op": "done", "id": name, "as": result})

    def _figures(self) -> dict[str, Any]:
        stats = self._recorder.stats() if self._recorder is not None else None
        pending = self._watch.pending() if self._watch is not None else 0
        return {
            "queued": (stats.pending if stats else 0) + pending,
            "held": stats.held if stats else 0,
            "refused": stats.refused if stats else 0,
            "set_aside": self._failed.count(),
            "nats": self._watch.nats if self._watch is not None else "not configured",
            "model": self._watch.model if self._watch is not None else None,
            "reason": self._reason or self._problem,
        }


def _bytes(megabytes: Any) -> int:
    """Returns the limit of the outbox; 1 GiB for a value that is no number."""
    try:
        return max(1, int(float(megabytes) * (1 << 20)))
    except (TypeError, ValueError):
        return 1 << 30
