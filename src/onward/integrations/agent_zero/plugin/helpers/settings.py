"""The settings of the plugin, read outside of the hooks, and the switches that the user sets in the page.

Agent Zero reads a file for each look at its settings, so they are cached for ``SECONDS``, by project and
profile.
Settings that cannot be read mean that nothing is recorded: the project may have opted out.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import hang

NAME = "onward"
SECONDS = 30.0
EXCLUDED = ("rl-trainer", "reinforcement-learning-trainer")
GLOBAL = ("nats_url", "gateway_url", "agent_id", "task_type", "objects", "outbox_mb", "python")
"""Settings of the worker, of the global scope alone."""


@dataclass
class Host:
    """Questions to Agent Zero's own modules. Tests replace it."""

    plugin: Path = field(default_factory=lambda: Path(__file__).resolve().parent.parent)

    @property
    def root(self) -> Path:
        """The folder of Agent Zero: the plugin lies in ``usr/plugins/onward``."""
        return self.plugin.parent.parent.parent

    @property
    def data(self) -> Path:
        return self.plugin / "data"

    def config(self, agent: Any) -> dict[str, Any]:
        """Returns the plugin's settings in the scope of an agent; of None, the global ones."""
        from helpers import plugins  # type: ignore  # Agent Zero's own package

        return dict(plugins.get_plugin_config(NAME, agent=agent) or {})

    def project(self, agent: Any) -> str:
        """Returns the name of the project that an agent works in, or an empty text."""
        try:
            from helpers import projects  # type: ignore

            return str(projects.get_context_project_name(agent.context) or "")
        except ImportError:
            return ""

    def version(self) -> str:
        """Returns the version of Agent Zero, or an empty text."""
        try:
            from helpers import git  # type: ignore

            return str(git.get_version() or "")
        except Exception:  # no repository, or a version that has no such function
            return ""

    def is_supported(self) -> bool:
        """Returns whether this Agent Zero has the extension points that recording needs."""
        try:
            from helpers import extension  # type: ignore

            return hasattr(extension, "extensible")
        except ImportError:
            return False

    def installed(self) -> dict[str, Any]:
        """Returns what ``onward agent-zero install`` noted: the interpreter that has Onward."""
        try:
            found = json.loads((self.plugin / "worker.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


class Settings:
    """Called by the feeding thread alone, but for ``Switches``."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.switches = Switches(host.data / "state.json")
        self._cached: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}

    def why_not(self, agent: Any, root_id: str) -> str:
        """Returns why a task of ``agent`` is not recorded; empty if it is."""
        profile = str(getattr(agent.config, "profile", "") or "")
        project = self.host.project(agent)
        if self.switches.is_opted_out(project):
            return "opted out"
        told = self._of(project, profile, agent)
        if not told.get("enabled", True):
            return "switched off"
        if profile in (told.get("exclude_profiles") or EXCLUDED):
            return "excluded profile"
        return "" if drawn(root_id) < share(told.get("sampling_rate", 1.0)) else "not sampled"

    def limit(self, agent: Any = None) -> int:
        told = self._of("", "", agent)
        try:
            return max(1, int(float(told.get("max_trajectory_mb", 8)) * (1 << 20)))
        except (TypeError, ValueError):
            return 8 << 20

    def of_worker(self) -> dict[str, Any]:
        """Returns the settings that the worker is started with, and the interpreter in ``python``."""
        told = self._of("", "", None)
        found = {name: str(told.get(name) or "") for name in GLOBAL}
        found["hang_seconds"] = str(hang_limit(told.get("hang_seconds")))
        found["implicit"] = "yes" if told.get("keep_implicit", True) else "no"
        found["python"] = found["python"] or str(self.host.installed().get("python") or "")
        return found

    def _of(self, project: str, profile: str, agent: Any) -> dict[str, Any]:
        key, now = (project, profile), time.monotonic()
        until, told = self._cached.get(key, (0.0, {}))
        if now >= until:
            told = self.host.config(agent)
            self._cached[key] = (now + SECONDS, told)
        return told


class Switches:
    """Pause and opted-out projects: in memory, and in one file over restarts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.paused = False
        self.projects: set[str] = set()

    def load(self) -> None:
        """Reads the file. A file that cannot be read means paused."""
        try:
            told = json.loads(self._path.read_text(encoding="utf-8"))
            self.paused = self.paused or bool(told.get("paused"))
            self.projects |= {str(one) for one in told.get("opted_out", ())}
        except FileNotFoundError:
            pass
        except (OSError, ValueError, AttributeError):
            self.paused = True  # what the user had switched off is unknown

    def is_opted_out(self, project: str) -> bool:
        return bool(project) and project in self.projects

    def save(self) -> None:
        """Writes the file, whole or not at all. Raises OSError."""
        with self._lock:
            told = {"paused": self.paused, "opted_out": sorted(self.projects)}
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            draft.write_text(json.dumps(told), encoding="utf-8")
            draft.replace(self._path)


def drawn(root_id: str) -> float:
    """Returns a number from 0 to below 1 that follows from an id: all agents of one task are drawn alike."""
    return int(root_id.replace("-", "")[:8], 16) / 2**32


def hang_limit(value: Any) -> float:
    """Returns the seconds after which a worker without progress is ended; never for zero or less. A value
    that is no number means the default."""
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        return hang.LIMIT
    if math.isnan(seconds):
        return hang.LIMIT
    return max(hang.LEAST, seconds) if seconds > 0 else math.inf


def share(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 1.0
