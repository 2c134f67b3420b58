"""Tools of the training profiles: calls of ``onward mcp``, a child process with Onward's own interpreter.

Standard library alone. The child speaks the Model Context Protocol, one JSON message a line. It is started by
the first call and stays, since long work runs in it; its input ends with Agent Zero, and it ends with its
input.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import queue
import subprocess
import sys
import threading
import types
from typing import Any

STORE = "_onward_agent_zero_tools"
PROTOCOL = "2025-06-18"
START_SECONDS = 30.0
CALL_SECONDS = 90.0
MOST = 4096
"""Bytes of an answer: it goes into the prompt of a model."""
SCOPES = ("train", "release")
_SECRETS = ("ONWARD_API_KEY", "AGENTGYM_RL_API_KEY", "TENSORZERO_ADMIN_TOKEN")
_making = threading.Lock()


class Server:
    """One ``onward mcp``. Threads may call it at the same time."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        """Raises OSError if it cannot be started, RuntimeError if it does not answer."""
        self.key = (tuple(command), tuple(sorted(environment.items())))
        self._numbers, self._lock = itertools.count(1), threading.Lock()
        self._waiting: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        threading.Thread(target=self._listen, name="onward-tools", daemon=True).start()
        about = {
            "protocolVersion": PROTOCOL,
            "capabilities": {},
            "clientInfo": {"name": "agent-zero", "version": "1"},
        }
        try:
            if "result" not in self._ask("initialize", about, START_SECONDS):
                raise RuntimeError("it ended at its start: has Onward the extra mcp?")
            self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        except (RuntimeError, OSError):
            self.close()
            raise

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Returns the answer of a tool, or the sentence of its error. Raises RuntimeError without an
        answer."""
        found = self._ask("tools/call", {"name": name, "arguments": arguments}, CALL_SECONDS)
        if "error" in found:
            return error_text(str(found["error"].get("message", "The call was refused.")))
        result = found.get("result") or {}
        text = "".join(
            str(part.get("text", "")) for part in result.get("content", ()) if isinstance(part, dict)
        )
        return error_text(text) if result.get("isError") else text

    def close(self) -> None:
        """Ends the child by ending its input."""
        try:
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait(5.0)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()

    def _ask(self, method: str, params: dict[str, Any], seconds: float) -> dict[str, Any]:
        number = next(self._numbers)
        answers = self._waiting[number] = queue.Queue(1)
        try:
            self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            return answers.get(timeout=seconds)
        except queue.Empty:
            raise RuntimeError(f"no answer within {seconds:g} seconds") from None
        except (OSError, ValueError):
            raise RuntimeError("it has ended") from None
        finally:
            self._waiting.pop(number, None)

    def _write(self, message: dict[str, Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            pipe = self._process.stdin
            if pipe is None:
                raise OSError("no pipe")
            pipe.write(line)
            pipe.flush()

    def _listen(self) -> None:
        for line in self._process.stdout or ():
            try:
                message = json.loads(line)
                waiting = self._waiting.get(message.get("id"))
            except (ValueError, AttributeError):
                continue
            if waiting is not None and ("result" in message or "error" in message):
                waiting.put_nowait(message)
        for waiting in list(self._waiting.values()):  # it has ended: no call waits for nothing
            try:
                waiting.put_nowait(
                    {"error": {"message": "Onward's tools ended during the call: call again."}}
                )
            except queue.Full:
                pass


def error_text(sentence: str) -> str:
    """Returns an error as compact JSON."""
    return json.dumps({"error": " ".join(sentence.split())[:1000]}, ensure_ascii=False)


async def answer(tool: Any, name: str, arguments: dict[str, Any]) -> str:
    """Calls a tool for a profile; returns compact JSON of at most 4 KB. Never raises."""
    try:
        given = {key: value for key, value in arguments.items() if value not in (None, "")}
        context = getattr(tool.agent, "context", None)
        return await asyncio.to_thread(_answer, context, name, given)
    except Exception as error:
        return error_text(
            f"{name} failed in the plugin ({type(error).__name__}): look at Onward's status page."
        )


async def solution(tool: Any, arguments: dict[str, Any]) -> str:
    """Returns the YAML report on a finished control job, or a sentence. Never raises."""
    job_id = str(arguments.get("job_id") or "")
    if not job_id:
        return error_text("rl_solution lacks the argument 'job_id': give that of a job of control_train.")
    text = await answer(tool, "job_status", {"job_id": job_id})
    try:
        job = json.loads(text)
        report = job.get("metrics", {}).get("current", {}).get("solution")
    except (ValueError, AttributeError):
        return error_text("The state of the job is not readable: call job_status.")
    if isinstance(report, str) and report:
        return report
    if "error" in job and "state" not in job:
        return text
    return error_text(
        f"Job {job_id} is {job.get('state', 'unknown')} and has no report: only a completed control job has."
    )


def command_of(settings: dict[str, Any], python: str) -> list[str]:
    """Returns the command of the server. ``allow`` in the settings has the scopes beyond read."""
    allowed = [
        scope for scope in SCOPES if scope in str(settings.get("allow") or "").replace(",", " ").split()
    ]
    command = [python or sys.executable, "-m", "onward.cli", "mcp", "--scope", ",".join(["read", *allowed])]
    return [*command, "--dir", str(settings["data_dir"])] if settings.get("data_dir") else command


def environment_of(settings: dict[str, Any], secrets: dict[str, str]) -> dict[str, str]:
    """Returns the variables of the server: addresses from the settings, keys from Agent Zero's secrets.

    The secret address has the login of an agent, which may do less than that of a data folder here."""
    secret = secrets.get("ONWARD_NATS_URL") or os.environ.get("ONWARD_NATS_URL", "")
    given = {
        "NATS_URL": str(settings.get("nats_url") or "") or ("" if settings.get("data_dir") else secret),
        "TENSORZERO_BASE_URL": str(settings.get("gateway_url") or ""),
        "AGENTGYM_RL_URL": str(settings.get("training_url") or ""),
        "NATS_TOKEN": secrets.get("ONWARD_NATS_TOKEN") or os.environ.get("ONWARD_NATS_TOKEN", ""),
        **{name: secrets.get(name, "") for name in _SECRETS},
    }
    return {**os.environ, **{name: value for name, value in given.items() if value}}


def server_of(command: list[str], environment: dict[str, str]) -> Server:
    """Returns the server, started if it is not running or if the settings have changed. Raises OSError,
    RuntimeError."""
    with _making:
        store: Any = sys.modules.setdefault(STORE, types.ModuleType(STORE))
        found = getattr(store, "server", None)
        if (
            found is not None
            and found.is_running
            and found.key == (tuple(command), tuple(sorted(environment.items())))
        ):
            return found
        if found is not None:
            found.close()
        store.server = Server(command, environment)
        return store.server


def close() -> None:
    """Ends the server: for the end of the plugin, and for tests."""
    found = getattr(sys.modules.pop(STORE, None), "server", None)
    if found is not None:
        found.close()


def _answer(context: Any, name: str, arguments: dict[str, Any]) -> str:
    from . import onward_approvals, onward_reports, runtime

    found = runtime.get()
    settings = found.host.config(None)
    waits = onward_approvals.gate(name, arguments, context, str(settings.get("approve", "release")))
    if waits:
        return json.dumps(waits, ensure_ascii=False)
    try:
        command = command_of(settings, found.settings.of_worker()["python"])
        text = server_of(command, environment_of(settings, _secrets())).call(name, arguments)
    except (OSError, RuntimeError) as error:
        return error_text(f"Onward's tools do not answer ({error}): run onward agent-zero check.")
    try:
        shown = bool(settings.get("show_reports", True))
        onward_reports.after_call(context, name, arguments, text, shown=shown)
    except Exception as error:  # the answer counts, not its echo in the chat
        logging.getLogger("onward").debug("no report in the chat: %s", type(error).__name__)
    return text if len(text.encode()) <= MOST else text.encode()[:MOST].decode(errors="ignore")


def _secrets() -> dict[str, str]:
    """Returns Agent Zero's secrets; none where it has no store."""
    try:
        from helpers.secrets import get_secrets_manager  # type: ignore

        return dict(get_secrets_manager(None).load_secrets())
    except Exception:
        return {}
