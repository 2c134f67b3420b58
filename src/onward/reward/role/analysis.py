"""Reports on the code of trajectories before scoring, with a limit on concurrency and on time.

Without an analyser the code was not examined, which is not the same as no code. A report that fails or takes
too long makes the trajectory unscored, never zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from onward.config import RewardSettings
from onward.contracts import Trajectory
from onward.reward.code.analyser import CodeAnalyser
from onward.reward.code.report import CodeReport
from onward.reward.components import Unscored
from onward.telemetry import logs

MAX_CONCURRENT = 4
REPORT_SECONDS = 60.0
"""Longest wait for one report; the analyser has tighter limits of its own."""
_log = logs.get("rewarder")


def code_analyser(settings: RewardSettings) -> CodeAnalyser | None:
    """Returns the analyser if ``code_quality`` has a weight, else None."""
    if settings.code_quality == 0.0:
        return None
    return CodeAnalyser(isolation_required=settings.code_isolation == "required")


class Analysis:
    """Requests reports for a batch. Without an ``analyser`` no code is examined."""

    def __init__(self, analyser: CodeAnalyser | None) -> None:
        self._analyser = analyser
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def start(self) -> None:
        if self._analyser is not None:
            await self._analyser.start()

    async def stop(self) -> None:
        if self._analyser is not None:
            await self._analyser.stop()

    async def reports(
        self, trajectories: Mapping[str, Trajectory]
    ) -> dict[str, CodeReport | Unscored | None]:
        """Returns trajectory id → its report; empty without an analyser."""
        if self._analyser is None:
            return {}
        found = await asyncio.gather(*(self._report(item) for item in trajectories.values()))
        return dict(zip(trajectories, found, strict=True))

    async def _report(self, trajectory: Trajectory) -> CodeReport | Unscored | None:
        assert self._analyser is not None
        async with self._slots:
            try:
                async with asyncio.timeout(REPORT_SECONDS):
                    return await self._analyser.report(trajectory)
            except TimeoutError:
                return Unscored("code_analysis", f"no report within {REPORT_SECONDS:g} s")
            except Exception as error:  # a defect of the analyser must not stop all rewards
                _log.exception("code could not be analysed", trajectory_id=trajectory.trajectory_id)
                return Unscored("code_analysis", type(error).__name__)
