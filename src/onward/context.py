"""Everything that a role receives when it runs: settings, time, and open connections. Nothing else is global.

``onward up`` builds one Context and passes it to every role; ``onward run ROLE`` builds one for that role. A
role is ``async def run(ctx: Context) -> None``: it works until it is cancelled, finishes its current work,
and returns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from onward.warehouse.recent_rows import RecentRows

if TYPE_CHECKING:
    from onward.bus import Bus
    from onward.children import Keeper
    from onward.clock import Clock
    from onward.config import Settings
    from onward.reward.components.rubric import RubricEngine
    from onward.telemetry.alerts import Alerts
    from onward.telemetry.metrics import Metrics
    from onward.warehouse import Objects, Warehouse


class Endpoints(dict[str, str]):
    """Addresses that the roles have bound: ``gateway_url``, ``api_url``. ``on_change`` is called when a role
    that starts again has got another one."""

    def __init__(self) -> None:
        super().__init__()
        self.on_change: Callable[[], None] | None = None

    def __setitem__(self, name: str, address: str) -> None:
        changed = self.get(name) != address
        super().__setitem__(name, address)
        if changed and self.on_change is not None:
            self.on_change()


@dataclass(frozen=True)
class Context:
    settings: Settings
    clock: Clock
    bus: Bus
    warehouse: Warehouse
    objects: Objects
    metrics: Metrics
    alerts: Alerts
    base_model: Path | None = None
    """Folder of the base model; None if no role of this process needs one."""
    ready: dict[str, bool | str] = field(default_factory=dict)
    """Role name → whether it does its work now, or how it failed; ``/ready`` answers from it."""
    probes: dict[str, Callable[[], Awaitable[bool | str]]] = field(default_factory=dict)
    """Part → how ``/ready`` asks it: returns True, or one word for what is wrong."""
    warnings: dict[str, str] = field(default_factory=dict)
    """Part → what will need an operator soon, in a few words; ``/ready`` and ``/status`` show it."""
    children: dict[str, Keeper] = field(default_factory=dict)
    """Child processes of this service, by name."""
    rubrics: RubricEngine | None = None
    """Scores trajectories by the rubrics of the settings; None without any, or without the rewarder."""
    endpoints: Endpoints = field(default_factory=Endpoints)
    recent_rows: RecentRows = field(default_factory=RecentRows)
    """Trajectories that the collector of this process stored a moment ago."""
