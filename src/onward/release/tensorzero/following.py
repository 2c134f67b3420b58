"""TensorZero follows the desired routes, as a gateway does: it applies them, reads them back, and reports.

Its report in ``rl_gateways`` makes it part of every verification: a step counts, and a rollback is verified,
only when TensorZero serves it too. A failure is in the report, and the releaser's alert names it.
"""

from __future__ import annotations

from pathlib import Path

from onward.bus import read_stored
from onward.bus.cancellation import until_cancelled
from onward.bus.leases import Lease
from onward.clock import utc_text
from onward.config import Settings
from onward.context import Context
from onward.contracts.buckets import Desired, GatewayReport
from onward.errors import BusError, OnwardError
from onward.release.routes import endpoint_of
from onward.release.tensorzero.configuration import render, split_of
from onward.release.tensorzero.targets import ConfigFile, Embedded, Endpoint, Target
from onward.roles import to_the_end
from onward.telemetry import logs

log = logs.get("releaser")

REPORT_NAME = "tensorzero"
POLL_SECONDS = 0.5
REPORT_SECONDS = 5.0


def target_of(settings: Settings) -> Target | None:
    """Returns the target that the settings name; None without one. Raises MissingExtraError."""
    own, external = settings.tensorzero, settings.external
    file = Path(own.config_file) if own.config_file else settings.run_dir / "tensorzero.toml"
    if own.apply == "embedded":
        return Embedded(file, own.function)
    if own.apply == "file":
        return ConfigFile(file, own.function, own.reload_command)
    if own.apply == "endpoint":
        urls = own.urls or [external.tensorzero_base_url or ""]
        token = external.tensorzero_admin_token
        return Endpoint(urls, token.get_secret_value() if token else None, own.function)
    return None


async def work(ctx: Context, lease: Lease) -> None:
    """Follows while ``lease`` is held, until cancelled. Without a target it ends at once."""
    target = target_of(ctx.settings)
    if target is None:
        return
    follower = Follower(ctx, target)
    try:
        for _ in until_cancelled():
            if lease.held:
                await follower.follow()
            await ctx.clock.sleep(POLL_SECONDS)
    finally:
        await to_the_end(follower.close())


class Follower:
    """State of the adapter: the routes that were applied, and the time of the last report."""

    def __init__(self, ctx: Context, target: Target) -> None:
        self._ctx, self._target = ctx, target
        self._report = GatewayReport(gateway_id=REPORT_NAME)
        self._reported_at = float("-inf")

    async def follow(self) -> None:
        """Applies the desired routes if they are not served, and reports. Without the bus it waits."""
        try:
            stored = await read_stored(self._ctx.bus.bucket(Desired.BUCKET), Desired)
            desired = stored.document
            if desired is None:
                return
            behind = self._report.revision != desired.revision or self._report.error is not None
            if behind:
                await self._apply(desired)
            if behind or self._ctx.clock.monotonic() - self._reported_at >= REPORT_SECONDS:
                await self._write()
        except BusError as error:
            log.warning("tensorzero follows later", cause=str(error))

    async def close(self) -> None:
        """Closes the target and withdraws the report."""
        await self._target.close()
        if self._ctx.bus.is_connected:
            await self._ctx.bus.bucket(GatewayReport.BUCKET).delete(REPORT_NAME)

    async def _apply(self, desired: Desired) -> None:
        own = self._ctx.settings.tensorzero
        wanted = split_of(desired.arms)
        try:
            if await self._served() != wanted:
                await self._target.apply(render(wanted, own, own.upstream or endpoint_of(self._ctx)))
                log.info("tensorzero has new weights", revision=desired.revision)
            served = await self._target.serves()
        except BusError:
            raise
        except (OnwardError, OSError) as error:
            self._fail(str(error))
            return
        if served != wanted:
            self._fail(f"TensorZero serves {dict(served)} after {dict(wanted)} was applied.")
            return
        self._report = GatewayReport(
            gateway_id=REPORT_NAME,
            revision=desired.revision,
            release_id=desired.release_id,
            step=desired.step or 0,
            arms=[arm.model_copy(update={"model_digest": None}) for arm in desired.arms],
            served=[arm.adapter_digest for arm in desired.arms if arm.adapter_digest is not None],
        )

    async def _served(self) -> object:
        """Returns the split that serves; None if it cannot be read, so that it is applied."""
        try:
            return await self._target.serves()
        except (OnwardError, OSError):
            return None

    def _fail(self, why: str) -> None:
        if why != self._report.error:
            log.error("tensorzero does not follow", cause=why)
        self._report = self._report.model_copy(update={"error": why})

    async def _write(self) -> None:
        report = self._report.model_copy(update={"updated_at": utc_text(self._ctx.clock.now())})
        await self._ctx.bus.bucket(GatewayReport.BUCKET).put(REPORT_NAME, report.dump(), deadline=5.0)
        self._reported_at = self._ctx.clock.monotonic()
