"""``get()``: the one runtime of this process, which the hooks, the page and the tools use.

Agent Zero executes extension files again and again, and reloads helpers when a file changes. So the runtime
is stored on a module object of its own in ``sys.modules`` and survives both.
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
import types
import uuid
from typing import Any

from .breaker import Breaker
from .feed import Feed
from .recording import Recording
from .settings import Host, Settings

STORE = "_onward_agent_zero"
EXIT_SECONDS = 2.0
_making = threading.Lock()


class Runtime:
    """All calls return at once, and none raises."""

    def __init__(self, host: Host | None = None, feed: Feed | None = None) -> None:
        self.host = host or Host()
        self.breaker = Breaker()
        self.settings = Settings(self.host)
        self.feed = feed or Feed(self.settings, prepare=self._prepare)
        self.recording = Recording(self.feed.put)
        self.feed.on_settings = self._apply
        self._supported = True
        self._version = ""
        self.feed.ensure()

    def hook(self, event: str, *values: Any) -> None:
        """Passes one event of Agent Zero to the recording. Its time and errors are counted, and never reach
        the agent."""
        breaker = self.breaker
        if breaker.is_open:
            return
        began = time.perf_counter()
        try:
            getattr(self.recording, event)(*values)
        except Exception as error:
            breaker.note_error(error, event)
        breaker.note_time(1000.0 * (time.perf_counter() - began))
        if breaker.is_open:
            self.recording.drop_all()

    def note(self, error: BaseException, place: str) -> None:
        """Counts an error of the plugin outside of ``hook``."""
        self.breaker.note_error(error, place)

    def tick(self) -> None:
        """Called once a minute by Agent Zero's own loop: starts the thread again if it is gone, and ends the
        tasks of which nothing was heard for hours."""
        self.feed.ensure()
        self.recording.sweep()

    def feedback(
        self,
        *,
        signal: str,
        context_id: str = "",
        message_id: str | None = None,
        kind: str = "explicit",
        value: float | None = None,
        comment: str | None = None,
        source: str = "webui",
        feedback_id: str | None = None,
    ) -> dict[str, Any]:
        """Queues a user's statement or action about an answer. The worker finds trajectory and turn."""
        if not signal or not context_id:
            return {"ok": False, "error": "Feedback needs a signal and the chat that it is about."}
        if value is not None and not 0 <= value <= 1:
            return {"ok": False, "error": f"The value {value} is not a share from 0 to 1."}
        if self.recording.paused or self.breaker.is_open:
            return {"ok": False, "error": "Recording is switched off, so nothing was stored."}
        name = feedback_id or str(uuid.uuid4())
        said = {"signal": signal, "kind": kind, "value": value, "comment": comment, "source": source}
        place = {"chat": context_id, "message": message_id or "", "at": time.time()}
        link = self.recording.link(context_id, message_id) if message_id else None
        self.feed.put({"op": "feedback", "id": name, **place, "said": said, "link": link})
        return {"ok": True, "queued": True, "feedback_id": name}

    def reports(self, after: int) -> list[dict[str, Any]]:
        """Returns the trainer's reports since number ``after``."""
        return [one for one in list(self.feed.reports) if one["seq"] > after]

    def link(self, context_id: str, message_id: str) -> dict[str, Any] | None:
        return self.recording.link(context_id, message_id)

    def pause(self, paused: bool) -> None:
        """Switches recording off or on. Off: tasks in progress are forgotten, and no new one is taken."""
        self.recording.paused = self.settings.switches.paused = bool(paused)
        if paused:
            self.recording.drop_all()
        self.feed.save_switches()

    def set_opt_out(self, project: str, opted_out: bool) -> None:
        """Excludes a project from recording, or includes it again."""
        projects = self.settings.switches.projects
        if opted_out:
            projects.add(project)
        else:
            projects.discard(project)
        self.feed.save_switches()

    def opted_out(self, project: str) -> bool:
        return self.settings.switches.is_opted_out(project)

    def status(self) -> dict[str, Any]:
        """Returns figures from memory alone."""
        worker, counts = self.feed.worker, dict(self.feed.counts)
        state, reason = self._state()
        return {
            "state": state,
            "reason": reason,
            **counts,
            "queued": worker.get("queued", 0),
            "held": worker.get("held", 0),
            "set_aside": worker.get("set_aside", 0),
            "hangs": dict(self.feed.hangs),
            "open": self.recording.in_progress,
            "waiting": max(0, self.feed.waiting - self.recording.in_progress),
            "model": worker.get("model") or {"id": None, "version": None, "deployed_at": None, "event": None},
            "gateway": self.recording.gateway_url,
            "nats": worker.get("nats", "not configured"),
            "hook_ms": self.breaker.figures(),
            "errors": self.breaker.errors,
            "version": self._version,
        }

    def close(self, timeout: float = EXIT_SECONDS) -> bool:
        """Hands over what waits and ends the worker; returns whether all is on disk."""
        return self.feed.close(timeout)

    def _state(self) -> tuple[str, str]:
        if not self._supported:
            return "unsupported", "this Agent Zero has no extension points (helpers.extension.extensible)"
        if self.breaker.is_open:
            return "disabled", self.breaker.reason
        if self.recording.paused:
            return "paused", ""
        if self.feed.is_up:
            return "recording", self.feed.reason
        return ("worker_down" if self.feed.reason else "starting"), self.feed.reason

    def _prepare(self) -> None:
        """Looks up what takes a file or an import, once, in the feeding thread."""
        try:
            self._supported = self.host.is_supported()
            self.settings.switches.load()
            if self.settings.switches.paused or not self._supported:
                self.recording.paused = True
                self.recording.drop_all()
            self._version = str(self.host.installed().get("version") or "")
            self.recording.limit = self.settings.limit()
        except Exception as error:
            self.breaker.note_error(error, "prepare")

    def _apply(self, given: dict[str, Any]) -> None:
        self.recording.gateway_url = given["gateway_url"].rstrip("/")


def get() -> Runtime:
    """Returns the runtime; the first call makes it."""
    store = sys.modules.get(STORE)
    runtime = getattr(store, "runtime", None)
    return runtime if runtime is not None else start()


def start(host: Host | None = None, feed: Feed | None = None) -> Runtime:
    """Makes the runtime of this process, unless there is one. Tests give a ``host`` and a ``feed``."""
    with _making:
        store = sys.modules.setdefault(STORE, types.ModuleType(STORE))
        runtime = getattr(store, "runtime", None)
        if runtime is None:
            runtime = store.runtime = Runtime(host, feed)  # type: ignore[attr-defined]
            atexit.register(runtime.close)
        return runtime


def forget() -> None:
    """Ends the runtime and removes it: for the end of the plugin, and for tests."""
    store = sys.modules.pop(STORE, None)
    runtime = getattr(store, "runtime", None)
    if runtime is not None:
        atexit.unregister(runtime.close)
        runtime.close()
