"""Reports on the code of trajectories, and results of rubrics, before scoring, within limits.

Without an analyser the code was not examined, which is not the same as no code. A report or a result that
fails or takes too long makes the trajectory unscored, never zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from onward.config import RewardSettings
from onward.contracts import Trajectory
from onward.errors import OnwardError
from onward.reward.code.analyser import CodeAnalyser
from onward.reward.code.report import CodeReport
from onward.reward.components import RubricEngine, RubricResult, Unscored
from onward.telemetry import logs

MAX_CONCURRENT = 4
REPORT_SECONDS = 60.0
"""Longest wait for one report; the analyser has tighter limits of its own."""
RUBRIC_SECONDS = 120.0
"""Longest wait for the rubric of one trajectory: it may be written and judged by a model."""
_log = logs.get("rewarder")


def code_analyser(settings: RewardSettings) -> CodeAnalyser | None:
    """Returns the analyser if ``code_quality`` has a weight, else None."""
    if settings.code_quality == 0.0:
        return None
    return CodeAnalyser(isolation_required=settings.code_isolation == "required")


class Analysis:
    """Requests reports for a batch. Without an ``analyser`` no code is examined; without ``rubrics`` none is
    applied."""

    def __init__(self, analyser: CodeAnalyser | None, rubrics: RubricEngine | None = None) -> None:
        self._analyser, self._rubrics = analyser, rubrics
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    async def start(self) -> None:
        if self._analyser is not None:
            await self._analyser.start()

    async def stop(self) -> None:
        if self._analyser is not None:
            await self._analyser.stop()
        if self._rubrics is not None:
            await self._rubrics.stop()

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

    async def rubrics(
        self, trajectories: Mapping[str, Trajectory]
    ) -> dict[str, RubricResult | Unscored | None]:
        """Returns trajectory id → what its rubric says; empty without an engine."""
        if self._rubrics is None:
            return {}
        found = await asyncio.gather(*(self._result(self._rubrics, item) for item in trajectories.values()))
        return dict(zip(trajectories, found, strict=True))

    async def _result(self, engine: RubricEngine, trajectory: Trajectory) -> RubricResult | Unscored | None:
        async with self._slots:
            try:
                async with asyncio.timeout(RUBRIC_SECONDS):
                    return await engine.result(trajectory)
            except TimeoutError:
                return Unscored("rubric_unknown", f"no result within {RUBRIC_SECONDS:g} s")
            except OnwardError as error:
                return Unscored("rubric_unknown", str(error))
            except Exception as error:  # a defect of a rubric must not stop all rewards
                _log.exception("a rubric could not be applied", trajectory_id=trajectory.trajectory_id)
                return Unscored("rubric_unknown", type(error).__name__)
