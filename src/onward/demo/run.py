"""``onward demo``: warm start, then the loop around a fleet of agents, then tables and curves.

The demonstration only drives traffic and observes; the loop makes every decision. The agents are paused
while a job trains or a candidate is validated, because two cores do one thing well at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from onward import children, extras, host
from onward.bus import read_all, read_document
from onward.bus.logins import AGENT_FILE
from onward.config import Settings
from onward.contracts.buckets import DesiredArm, DesiredRoutes, GatewayReport, Learning
from onward.coordinator.coordinator import rewarded_since_snapshot
from onward.demo import picture, report, sabotage
from onward.demo.display import Stages
from onward.demo.evaluate import TestPanel
from onward.demo.fleet import AgentsProcess
from onward.demo.result import Check, Cycle, FailingAnswer, KindResult, Rates, Result
from onward.demo.settings import demo_settings, pace_of
from onward.demo.warm import WarmStart, warm_up
from onward.errors import NotFoundError, OnwardError, program, short_path
from onward.files import check_file
from onward.progress import PART
from onward.release.record import ReleaseRecord, Releases
from onward.serving import base_models
from onward.training import signatures
from onward.training.role.job_table import JobRecord, JobTable
from onward.training.spec import recipes

BEFORE_TRAFFIC = ("proposed", "validating")
POLL_SECONDS = 0.5  # each poll costs a query, and the two cores are busy
REWARD_SECONDS = 5.0
"""Seconds without a new reward after which a finished task is taken to get none."""


@dataclass(frozen=True)
class Options:
    model: str = "tiny"
    cycles: int = 3
    sabotage: bool = False
    folder: Path = Path("demo-output")
    json_file: Path | None = None
    seed: int = 0


class Demonstration:
    """One run. Its stages fill the fields in turn."""

    def __init__(self, options: Options, console: Console) -> None:
        self.options = options
        self.console = console
        self.settings: Settings = demo_settings(options.model, options.folder, options.seed)
        self.recipe = recipes.for_model(options.model)
        self.cycles: list[Cycle] = []
        self.stages = Stages(console)

    async def run(self) -> Result:
        """Runs all stages in order and returns the result."""
        started = time.monotonic()
        with self.stages:
            warmed = await warm_up(self.options.model, self.settings, self.options.seed, self.stages)
            async with AsyncExitStack() as stack:
                with self.stages.stage("start", "Starting the loop"):
                    loop = await stack.enter_async_context(host.running(self.settings))
                    self.ctx = loop.ctx
                    self.table = JobTable(self.ctx.bus.bucket("rl_jobs"), self.ctx.clock)
                    await self._install(warmed)
                    agents = self.agents = await stack.enter_async_context(self._agents())
                panel = TestPanel(self.ctx, self.recipe, pace_of(self.options.model).test_panels)
                raw = warmed.raw_success
                if raw is None:
                    with self.stages.stage("test", "Testing the raw model") as stage:
                        raw = (await panel.run(None, None, stage, panels=1)).success
                with self.stages.stage("test", "Testing v0") as stage:
                    first = await self._current()
                    base = await panel.run(first.model_id, first.adapter_digest, stage)
                for number in range(1, self.options.cycles + 1):
                    await self._cycle(number)
                await self.ctx.bus.bucket(Learning.BUCKET).put(Learning.KEY, Learning(paused=True).dump())
                if self.options.sabotage:
                    await self._sabotage(self.options.cycles + 1)
                await agents.pause()
                current = await self._current()
                with self.stages.stage("test", f"Testing {picture.short(current.model_id)}") as stage:
                    final = await panel.run(current.model_id, current.adapter_digest, stage)
                with self.stages.stage("audit", "Counting what is stored"):
                    await agents.stop()
                    verdict = await self._audit()
        return Result(
            model=self.options.model,
            seed=self.options.seed,
            decoding=panel.decoding,
            raw_success=raw,
            base_success=base.success,
            final_success=final.success,
            best_constant_success=panel.best_constant(),
            by_kind={
                kind: KindResult(base=base.by_kind[kind], final=final.by_kind[kind], tries=final.tries[kind])
                for kind in base.by_kind
            },
            warm_up={**warmed.figures, **{f"kind/{kind}": rate for kind, rate in warmed.by_kind.items()}},
            wall_seconds=time.monotonic() - started,
            stages=self.stages.seconds,
            cycles=self.cycles,
            current_model=current.model_id,
            accepted=verdict["accepted"],
            lost=len(verdict["lost"]),
            duplicates=len(verdict["duplicates"]),
        )

    async def _install(self, warmed: WarmStart) -> None:
        """Installs v0 as the serving model and waits until a gateway reports it as served. Raises OnwardError
        when none does within a minute."""
        from onward.release.releaser import install_initial

        prefix = await warmed.store(self.ctx.objects, signatures.needed_key(self.ctx.settings))
        await install_initial(
            self.ctx,
            adapter_digest=warmed.adapter_digest,
            object_prefix=prefix,
            training_job_id=warmed.job_id,
            training_samples=int(warmed.figures["demonstrations"]),
        )
        await self._served(warmed.adapter_digest)

    async def _served(self, digest: str) -> None:
        for _ in range(600):
            for entry in await read_all(self.ctx.bus.bucket(GatewayReport.BUCKET), GatewayReport):
                if entry.document is not None and digest in entry.document.served:
                    return
            await asyncio.sleep(0.1)
        raise OnwardError(
            "The gateway did not load the first model within a minute: see the log of this run."
        )

    @asynccontextmanager
    async def _agents(self) -> AsyncIterator[AgentsProcess]:
        run_dir = self.settings.run_dir
        agent_file = run_dir / AGENT_FILE
        agents = AgentsProcess(
            gateway=self.ctx.endpoints["gateway_url"],
            api_key=(run_dir / "api.key").read_text().strip(),
            nats_url=self.settings.nats.url or agent_file.read_text(),
            outbox=self.settings.data_dir / "outbox" / "agents.db",
        )
        await agents.start(
            seed=self.options.seed,
            max_tokens=self.recipe.max_tokens,
            run=f"desk-{self.options.seed}",
            log=self.settings.data_dir / "logs" / "agents.log",
        )
        try:
            yield agents
        finally:
            await agents.stop()

    async def _cycle(self, number: int) -> None:
        """Runs one cycle: collect, train, validate, release. Raises OnwardError when the job fails."""
        known = {record.job_id for record, _ in await self.table.all()}
        job = await self._collect(number, known)
        await self.agents.pause()
        job = await self._train(number, job)
        if job.state != "completed" or job.commit is None:
            message = job.error.message if job.error else job.state
            raise OnwardError(f"Training job {job.job_id} ended as {job.state}: {message}")
        await self._follow(number, job)

    async def _collect(self, number: int, known: set[str]) -> JobRecord:
        """Runs as many tasks as a job takes, and returns the job that the coordinator then requests.

        Agents without a limit would fill a job with the tasks that end first, and the long ones would be
        missing. Those of the release before, which are still under way, come on top. A task that ended
        without a reward is replaced. Raises OnwardError when three rounds of replacements got no reward.
        """
        self.agents.reset()
        threshold = self.settings.training.threshold
        title = f"Cycle {number}: agents at work"
        with self.stages.stage("collect", title, total=threshold) as stage:
            found = await rewarded_since_snapshot(self.ctx.bus, self.ctx.warehouse)
            await self.agents.run_tasks(max(0, threshold - found))
            changed, replaced = time.monotonic(), 0
            while True:
                self.agents.refuse_if_ended()
                for record, _ in await self.table.all():
                    if record.job_id not in known:
                        return record
                before, found = found, await rewarded_since_snapshot(self.ctx.bus, self.ctx.warehouse)
                stage.update(min(found, threshold), note=self.agents.tally.note)
                replaced = 0 if found != before else replaced
                if found != before or not self.agents.idle:
                    changed = time.monotonic()
                elif found < threshold and time.monotonic() - changed > REWARD_SECONDS:
                    if replaced == 3:
                        raise OnwardError(
                            f"The agents' tasks get no reward: {found} of {threshold} have one. See the logs "
                            f"folder of this run."
                        )
                    replaced += 1
                    await self.agents.run_tasks(threshold - found)
                await asyncio.sleep(POLL_SECONDS)

    async def _train(self, number: int, job: JobRecord) -> JobRecord:
        with self.stages.stage("train", f"Cycle {number}: training") as stage:
            while True:
                job, _ = await self.table.get(job.job_id)
                if job.state in ("completed", "failed", "cancelled"):
                    return job
                kl = job.progress.get("metrics", {}).get("kl_divergence")
                note = f"{job.samples} trajectories" if job.samples else "reading the trajectories"
                note += "" if kl is None else f"{PART}KL {kl:.4f}"
                done, total = job.progress.get("current_step", 0), job.progress.get("total_steps")
                stage.update(done, total=total, note=note)
                await asyncio.sleep(POLL_SECONDS)

    async def _follow(self, number: int, job: JobRecord, *, sabotaged: bool = False) -> None:
        """Follows the release of ``job``'s checkpoint to its end and stores the cycle."""
        title = "taking up" if sabotaged else "validation"
        with self.stages.stage("validate", f"Cycle {number}: {title}") as stage:
            while (release := await self._release_of(job.job_id)) is None or release.state in BEFORE_TRAFFIC:
                stage.update(note="" if sabotaged else "same tasks for both models")
                await asyncio.sleep(POLL_SECONDS)
        if not release.closed:
            await self.agents.run_freely()
            release = await self._ramp(number, job)
        self.cycles.append(_cycle_of(number, job, release, sabotaged))
        self.console.print(report.ended(self.cycles[-1]), style="bold", markup=False, highlight=False)

    async def _ramp(self, number: int, job: JobRecord) -> ReleaseRecord:
        with self.stages.stage("release", f"Cycle {number}: canary") as stage:
            while True:
                release = await self._release_of(job.job_id)
                if release is None:
                    raise NotFoundError(
                        f"The release of job {job.job_id} is gone: start the demonstration again."
                    )
                if release.closed and (release.settled or release.decision != "rolled_back"):
                    return release
                plan = release.schedule
                title = f"{picture.short(release.candidate.model_id)} at {plan.steps[release.step].share:.0%}"
                stage.update(
                    release.step,
                    total=len(plan.steps),
                    title=f"Cycle {number}: {title}",
                    note=report.watched(_rates_of(release), release.e_values, release.sessions),
                )
                await asyncio.sleep(POLL_SECONDS)

    async def _sabotage(self, number: int) -> None:
        """Plants a bad model for the gates to detect."""
        self.console.print(
            "[bold red]Sabotage:[/bold red] a validly signed but ruined adapter becomes the next candidate. "
            "It skips validation, which would have stopped it; only the gates stand in its way."
        )
        await self.agents.pause()
        with self.stages.stage("sabotage", f"Cycle {number}: planting"):
            current = await self._current()
            job = await sabotage.commit_damaged_copy(
                self.ctx, self.table, current, self.settings.data_dir / "sabotage"
            )
        await self._follow(number, job, sabotaged=True)

    async def _release_of(self, job_id: str) -> ReleaseRecord | None:
        releases = Releases(self.ctx.bus, self.ctx.clock)
        return next((record for record in await releases.all() if record.job_id == job_id), None)

    async def _current(self) -> DesiredArm:
        desired = await read_document(self.ctx.bus, DesiredRoutes)
        if desired is None:
            raise NotFoundError("No model serves any more: start the demonstration again.")
        return next(arm for arm in desired.arms if arm.arm == "current")

    async def _audit(self) -> dict[str, Any]:
        """Runs the audit process, which waits up to 60 s until everything published is stored."""
        log = self.settings.data_dir / "logs" / "audit.log"
        audit = await children.start(
            "onward.demo.audit",
            "--outbox", str(self.agents.outbox), "--data-dir", str(self.settings.data_dir), "--wait", "60",
            log=log,
        )  # fmt: skip
        verdict = [event async for event in children.events(audit)]
        await audit.wait()
        if not verdict:
            raise OnwardError(f"The audit process gave no answer: see {log}.")
        return verdict[-1]


def _cycle_of(number: int, job: JobRecord, release: ReleaseRecord, sabotaged: bool) -> Cycle:
    learned = job.progress.get("metrics", {})
    validation = release.validation or {}
    summary = validation.get("summary", {})
    checks = summary.get("checks", {})
    failed = [answer for fact in checks.values() if not fact["ok"] for answer in fact.get("failing", [])]
    decision = release.decision or "inconclusive"
    return Cycle(
        number=number,
        trajectories=0 if sabotaged else job.samples or 0,
        mean_outcome=learned.get("outcome_mean"),
        mean_raw_total=learned.get("raw_total_mean"),
        validation_success=validation.get("candidate"),
        validation_current=validation.get("current"),
        validation_tasks=summary.get("tasks"),
        candidate=release.candidate.model_id,
        decision="inconclusive" if decision == "aborted" else decision,
        reason=release.reason or "",
        checks={kind: Check.model_validate(fact) for kind, fact in checks.items()},
        failing=[FailingAnswer.model_validate(answer) for answer in failed[:2]],
        share=release.schedule.steps[release.step].share if release.plan is not None else None,
        sessions=release.sessions,
        rates=_rates_of(release),
        e_values=release.e_values,
        crossed_at=release.crossed_at,
        verified_zero_at=release.verified_zero_at,
        sabotaged=sabotaged,
    )


def _rates_of(release: ReleaseRecord) -> dict[str, Rates]:
    """Returns error rates and mean outcomes per arm; empty before the first judged session."""
    found = release.model_dump(include={"rates"}).get("rates", {})
    return {arm: Rates.model_validate(rates) for arm, rates in found.items()}


async def demonstrate(options: Options, console: Console) -> Result:
    """Runs the demonstration, writes ``curves.png`` and the JSON, and prints the report."""
    extras.require("lm", "torch", "The demonstration")
    extras.require("demo", "matplotlib", "The demonstration")
    if options.model != base_models.TINY:
        base_models.resolve(options.model, options.folder)
    if options.json_file is not None:
        check_file(options.json_file)
    demonstration = Demonstration(options, console)
    result = await demonstration.run()
    files = [f"Picture: {picture.draw(result, options.folder / 'curves.png')[0]}"]
    if options.json_file is not None:
        options.json_file.write_text(result.model_dump_json(indent=1) + "\n")
        files.append(f"Figures: {options.json_file}")
    data = short_path(demonstration.settings.data_dir)
    files.append(f"Trajectories: {program()} trajectories list --dir {data}")
    report.show(result, console, tuple(files))
    return result
