"""Reports on the code of trajectories, made before scoring: at once, but only so many, and never for long.

Know before changing: without the optional part ``code`` there is no analyser, and then nobody looked, which
is not the same as no code. What fails or takes too long is unscored, never zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from onward.config import RewardSettings
from onward.contracts import Trajectory
from onward.reward.components import Unscored
from onward.telemetry import logs

if TYPE_CHECKING:
    from onward.reward.code.report import CodeReport

AT_ONCE = 4
SECONDS = 60.0
"""Longest wait for one report; the analyser has tighter limits of its own."""
_log = logs.get("rewarder")


class Analyser(Protocol):
    """``onward.reward.code.CodeAnalyser``."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    async def report(self, trajectory: Trajectory) -> CodeReport | Unscored | None: ...


def code_analyser(settings: RewardSettings) -> Analyser | None:
    """The analyser where the part ``code`` is installed and ``code_quality`` is wanted, else None."""
    try:
        from onward.reward import code
    except ImportError:
        return None
    made = getattr(code, "CodeAnalyser", None)
    return made() if made is not None and settings.code_quality > 0.0 else None


class Analysis:
    """What the rewarder asks for a batch. ``analyser`` None: nobody looks."""

    def __init__(self, analyser: Analyser | None) -> None:
        self._analyser = analyser
        self._places = asyncio.Semaphore(AT_ONCE)

    async def start(self) -> None:
        if self._analyser is not None:
            await self._analyser.start()

    async def stop(self) -> None:
        if self._analyser is not None:
            await self._analyser.stop()

    async def reports(
        self, trajectories: Mapping[str, Trajectory]
    ) -> dict[str, CodeReport | Unscored | None]:
        """Trajectory id → its report; empty where nobody looks."""
        if self._analyser is None:
            return {}
        found = await asyncio.gather(*(self._report(item) for item in trajectories.values()))
        return dict(zip(trajectories, found, strict=True))

    async def _report(self, trajectory: Trajectory) -> CodeReport | Unscored | None:
        assert self._analyser is not None
        async with self._places:
            try:
                async with asyncio.timeout(SECONDS):
                    return await self._analyser.report(trajectory)
            except TimeoutError:
                return Unscored("code_analysis", f"no report within {SECONDS:g} s")
            except Exception as error:  # a defect of the analyser must not stop all rewards
                _log.exception("code could not be analysed", trajectory_id=trajectory.trajectory_id)
                return Unscored("code_analysis", type(error).__name__)
