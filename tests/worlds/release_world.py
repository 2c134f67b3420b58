"""A releaser in a world of fakes: buckets with compare-and-set, a bus that keeps what was published, an
outcome stream, a gateway that follows desired state, a clock that moves only by hand."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from unreadable_alone import NoStandIns

from onward.bus import Entry
from onward.clock import ManualClock, utc_text
from onward.config import Settings, load
from onward.context import Context
from onward.contracts import SessionOutcome, encode, subjects
from onward.errors import ConflictError, EngineError
from onward.release.evidence.outcome_source import Stored
from onward.release.record import ReleaseRecord
from onward.release.releaser import Releaser, install_initial
from onward.release.validation.probe_prompts import CHECKS, SAMPLES, CheckResult
from onward.suites.suite import ItemResult
from onward.telemetry.metrics import Metrics


class Crash(BaseException):
    """The process died here."""


async def unknown_traffic() -> float | None:
    """Measures no traffic, as a warehouse without trajectories."""
    return None


class MemoryBucket:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.bus = world.bus
        self.data: dict[str, tuple[bytes, int]] = {}

    async def get(self, key: str) -> Entry | None:
        found = self.data.get(key)
        return Entry(key, *found) if found else None

    async def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.data if key.startswith(prefix))

    async def entries(self, prefix: str = "") -> list[Entry]:
        return [Entry(key, *self.data[key]) for key in await self.keys(prefix)]

    async def create(self, key: str, value: bytes) -> int:
        if key in self.data:
            raise ConflictError(f"{key} exists.")
        return self._write(key, value)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        if self.data.get(key, (b"", 0))[1] != revision:
            raise ConflictError(f"{key} changed.")
        return self._write(key, value)

    async def put(self, key: str, value: bytes) -> int:
        return self._write(key, value)

    def _write(self, key: str, value: bytes) -> int:
        with self.world.write(f"{self.name}/{key}"):
            self.world.revision += 1
            self.data[key] = (value, self.world.revision)
        return self.world.revision


class MemoryBus:
    def __init__(self, world: World) -> None:
        self.world = world
        self.buckets: dict[str, MemoryBucket] = {}
        self.published: dict[str, tuple[str, bytes]] = {}
        self.notified: list[tuple[str, bytes]] = []
        self.unreadable = NoStandIns()

    def bucket(self, name: str) -> MemoryBucket:
        return self.buckets.setdefault(name, MemoryBucket(self.world, name))

    async def publish(self, subject: str, data: bytes, *, msg_id: str, deadline: float | None = None) -> None:
        with self.world.write(f"publish/{subject}"):
            known = self.published.setdefault(msg_id, (subject, data))
            assert known == (subject, data), "one message id for two messages"

    async def notify(self, subject: str, data: bytes) -> None:
        self.notified.append((subject, data))


class FakeAlerts:
    def __init__(self) -> None:
        self.raised: list[tuple[str, str, str, dict[str, Any]]] = []

    async def raise_(self, kind: str, message: str, severity: str = "warning", **facts: Any) -> None:
        self.raised.append((kind, message, severity, facts))

    async def resolve(self, kind: str, message: str, **facts: Any) -> None:
        self.raised.append((kind, message, "resolved", facts))

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, *_ in self.raised]


@dataclass
class FakeSuite:
    """Success per digest; the same tasks fail first for everybody. ``refusals``: checks of the five that
    are declined, in all of their samples."""

    success: dict[str | None, float]
    refusals: dict[str | None, int]
    error: Exception | None = None
    runs: int = 0
    held: set[str | None] = field(default_factory=set)
    """Digests that were prepared and not let go again."""
    committed: dict[str | None, str | None] = field(default_factory=dict)
    """Digest → hash of the manifest that was asked for."""
    unusable: dict[str | None, Exception] = field(default_factory=dict)
    """Digest → what a check of its stored files raises."""
    begun: list[str] = field(default_factory=list)
    """Ids of the models of the last comparison that began."""
    base: str | None = None
    """Digest that the engine gives of its base model; None: the engine is away."""

    async def base_digest(self) -> str:
        if self.base is None:
            raise EngineError("The engine is away.")
        return self.base

    async def finish(self) -> None:
        self.held.clear()

    async def check_stored(
        self, digest: str | None, object_prefix: str, manifest_sha256: str | None = None
    ) -> None:
        if digest in self.unusable:
            raise self.unusable[digest]

    async def prepare(
        self, digest: str | None, object_prefix: str, manifest_sha256: str | None = None
    ) -> None:
        self.held.add(digest)
        self.committed[digest] = manifest_sha256
        if self.error is not None:
            raise self.error

    async def begin(self, *models: Any) -> None:
        self.begun = [model.model_id for model in models]

    async def other_tasks(self, names: Any) -> list[str]:
        return list(names)

    async def suite_facts(self, name: str) -> dict[str, Any]:
        return {}

    async def purpose(self, name: str) -> str:
        return "benchmark"

    async def suite_digest(self, name: str) -> str:
        return name

    async def keep_report(self, name: str, digest: str | None, report: dict[str, Any]) -> str:
        return f"{digest}/{name}.html"

    async def run_suite(
        self, name: str, digest: str | None, done: Any = None, on_result: Any = None
    ) -> list[ItemResult]:
        self.runs += 1
        good = round(100 * self.success.get(digest, 0.5))
        return [ItemResult(f"t{i}", f"kind{i % 5}", float(i < good), i < good) for i in range(100)]

    async def run_checks(self, digest: str | None) -> list[CheckResult]:
        good = self.refusals.get(digest, 5)
        return [
            CheckResult(c.check_id, c.kind, c.kind == "format" or i < good, sample)
            for i, c in enumerate(CHECKS)
            for sample in range(SAMPLES)
        ]


class Stream:
    """RL_OUTCOMES in memory. Sessions go on being assigned unless ``idle``."""

    def __init__(self) -> None:
        self.messages: list[Stored] = []
        self.idle = False
        self._assigned = 0

    async def last_sequence(self) -> int:
        return len(self.messages)

    async def assigned(self) -> int:
        self._assigned += not self.idle
        return self._assigned

    async def read(self, after: int, limit: int) -> list[Stored]:
        return self.messages[after : after + limit]


@dataclass
class Policy:
    """How an arm behaves: chances of an error, of success, of bad feedback (None: gives none), and of a
    session that nobody reports about: the gateway declares it lost."""

    error: float = 0.0
    success: float = 0.7
    negative: float | None = None
    mute: bool = False
    lost: float = 0.0
    raw: tuple[float, float] | None = None
    """Raw totals of a failed and of a successful session; None: not known."""
    failure: dict[str, Any] = field(default_factory=dict)
    """What the gateway says about its errors: error, context_tokens, domain, tool."""


class World:
    """Everything around a releaser. ``crash_at`` n: die at the n-th write (before or after it)."""

    def __init__(self, seed: int = 0, gateways: tuple[str, ...] = ("gw-1",), **release: Any) -> None:
        release = {"strategy": "canary", "min_sessions": [50, 100, 200, 0], "max_bake": 0, **release}
        pattern = release.pop("pattern", "agent-zero-rl-v{n}")
        validation = release.pop("validation", {})
        self.settings: Settings = load(
            environ={},
            overrides={
                "release": release,
                "model": {"id_pattern": pattern},
                "validation": {"suites": ["desk"], "regression": "point", **validation},
            },
        )
        self.revision = 0
        self.writes: list[str] = []
        self.crash_at: int | None = None
        self._parsed: dict[int, ReleaseRecord] = {}
        self.crash_after = False
        self.clock = ManualClock()
        self.bus = MemoryBus(self)
        self.alerts = FakeAlerts()
        self.metrics = Metrics()
        self.stream = Stream()
        self.suite = FakeSuite({}, {})
        self.alive = set(gateways)
        self.gateway_error: str | None = None
        self.unloadable: str | None = None
        """Digest that gateways cannot load: they serve on what they had, and report why."""
        self.can_load: set[str] = set()
        """Gateways that load ``unloadable`` all the same."""
        self._served: dict[str, dict[str, Any]] = {}
        self.policies = {"current": Policy(), "candidate": Policy()}
        self.rng = np.random.default_rng(seed)
        self.sessions = 0
        self.in_flight: list[tuple[float, SessionOutcome]] = []
        self.ctx = self.context()
        self.per_day: float | None = None
        self.releaser = self.start()

    def context(self) -> Context:
        fakes: Any = self.bus, None, None, self.metrics, self.alerts
        return Context(self.settings, self.clock, *fakes)

    def start(self) -> Releaser:
        """A releaser as after a (re)start: it knows nothing."""
        self.releaser = Releaser(self.ctx, self.stream, self.suite, traffic=self._traffic)
        return self.releaser

    async def _traffic(self) -> float | None:
        return self.per_day

    def write(self, what: str) -> Any:
        return _Write(self, what)

    # Reading.

    def json(self, bucket: str, key: str) -> dict[str, Any]:
        return json.loads(self.bus.bucket(bucket).data[key][0])

    @property
    def desired(self) -> dict[str, Any]:
        return self.json("rl_releases", "desired")

    @property
    def shares(self) -> dict[str, float]:
        return {arm["model_id"]: arm["weight"] for arm in self.desired["arms"]}

    @property
    def records(self) -> list[ReleaseRecord]:
        data = self.bus.bucket("rl_releases").data
        found = []
        for key, (value, revision) in data.items():
            if key.startswith("release."):
                if revision not in self._parsed:
                    self._parsed[revision] = ReleaseRecord.model_validate_json(value)
                found.append(self._parsed[revision])
        return sorted(found, key=lambda record: (record.created_at, record.release_id))

    @property
    def record(self) -> ReleaseRecord:
        """The newest release that came from a job."""
        return [record for record in self.records if record.epoch > 0][-1]

    @property
    def model_states(self) -> dict[str, str]:
        data = self.bus.bucket("rl_models").data
        return {key: json.loads(value)["state"] for key, (value, _) in data.items()}

    @property
    def deployed(self) -> list[dict[str, Any]]:
        return [json.loads(d) for s, d in self.bus.published.values() if s == subjects.MODEL_DEPLOYED]

    # Acting.

    async def install(self, digest: str = "d0") -> None:
        await install_initial(self.ctx, digest, "checkpoints/warm/0", training_job_id="warm-job")
        await self.run(2)

    async def job(self, job_id: str, digest: str, start: str | None = "d0", **more: Any) -> None:
        job = {
            "job_id": job_id,
            "state": "completed",
            "commit": {
                "job_id": job_id, "epoch": 1, "manifest_sha256": "m",
                "object_prefix": f"checkpoints/{job_id}/1", "adapter_digest": digest,
            },
            "start_digest": start,
            "samples": 256,
            "updated_at": utc_text(self.clock.now()),
            **more,
        }  # fmt: skip
        await self.bus.bucket("rl_jobs").put(f"job.{job_id}", json.dumps(job).encode())

    async def control(self, key: str, **value: Any) -> None:
        await self.bus.bucket("rl_control").put(key, json.dumps(value).encode())

    async def gateways_follow(self) -> None:
        """Living gateways serve what is desired."""
        if "desired" not in self.bus.bucket("rl_releases").data:
            return
        desired = self.desired
        for name in self.alive:
            report = {
                "revision": desired["revision"],
                "arms": desired["arms"],
                "served": [arm["adapter_digest"] for arm in desired["arms"]],
                "updated_at": utc_text(self.clock.now()),
                "error": None,
            }
            if self.gateway_error and len(desired["arms"]) > 1:
                report |= {"revision": desired["revision"] - 1, "served": ["d0"], "error": self.gateway_error}
            damaged = self.unloadable is not None and self.unloadable in report["served"]
            if damaged and name not in self.can_load:
                why = f"adapter {self.unloadable} is damaged."
                report = {**self._served[name], "updated_at": report["updated_at"], "error": why}
            else:
                self._served[name] = report
            self.revision += 1
            self.bus.bucket("rl_gateways").data[name] = (json.dumps(report).encode(), self.revision)

    def begin_sessions(self, number: int, *, reward_after: float = 20.0) -> None:
        """Assign sessions by desired state and queue their outcomes."""
        desired = self.desired
        if len(desired["arms"]) < 2:
            return
        models = {arm["arm"]: arm["model_id"] for arm in desired["arms"]}
        weight = next(arm["weight"] for arm in desired["arms"] if arm["arm"] == "candidate")
        now = self.clock.monotonic()
        for _ in range(number):
            self.sessions += 1
            arm = "candidate" if self.rng.random() < weight else "current"
            how = self.policies[arm]
            failed, success, hated = self.rng.random(3)
            if how.mute:
                continue
            is_lost = how.lost and self.rng.random() < how.lost
            items: list[tuple[float, str, float]] = [(reward_after, "reward", float(success < how.success))]
            if failed < how.error:
                items.insert(0, (min(1.0, reward_after / 2), "error", 1.0))
            if how.negative is not None:
                items.append((60.0, "feedback", float(hated < how.negative)))
            if is_lost:
                items = [(self.settings.release.lost_after_seconds, "lost", 1.0)]
            for late, kind, value in items:
                outcome = SessionOutcome.model_validate(
                    {
                        "outcome_id": f"o{self.sessions}-{kind}", "session_id": f"s{self.sessions}",
                        "release_id": desired["release_id"], "arm": arm, "weight": weight,
                        "assigned_at": self.clock.now(), "timestamp": self.clock.now(), "kind": kind,
                        "value": value, "model_id": models[arm],
                        **(how.failure if kind == "error" else {}),
                        **({"raw_total": how.raw[int(value)]} if how.raw and kind == "reward" else {}),
                    }
                )  # fmt: skip
                self.in_flight.append((now + late, outcome))

    def deliver(self) -> None:
        """Outcomes whose time has come reach the stream."""
        now = self.clock.monotonic()
        due = sorted((item for item in self.in_flight if item[0] <= now), key=lambda item: item[0])
        self.in_flight = [item for item in self.in_flight if item[0] > now]
        stored = round(self.clock.now().timestamp() * 1000)
        for _, outcome in due:
            body = encode(outcome.model_copy(update={"timestamp": self.clock.now()}))
            self.stream.messages.append(Stored(len(self.stream.messages) + 1, body, stored))

    async def run(self, ticks: int, *, seconds: float = 1.0, sessions: int = 0) -> None:
        for _ in range(ticks):
            await self.gateways_follow()
            if sessions:
                self.begin_sessions(sessions)
            self.deliver()
            await self.releaser.tick()
            await self.clock.advance(seconds)

    async def until(
        self, condition: Any, *, seconds: float = 10.0, sessions: int = 10, ticks: int = 4000
    ) -> None:
        """Turn until ``condition()`` holds."""
        for _ in range(ticks):
            if condition():
                return
            await self.run(1, seconds=seconds, sessions=sessions)
        raise AssertionError(f"never happened; the last release is {self.record.state}")


class _Write:
    """One durable write; the place where a crash may come, before or after it."""

    def __init__(self, world: World, what: str) -> None:
        self.world, self.what = world, what

    def __enter__(self) -> None:
        self.world.writes.append(self.what)
        if self._now() and not self.world.crash_after:
            raise Crash(self.what)

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None and self._now() and self.world.crash_after:
            raise Crash(self.what)

    def _now(self) -> bool:
        return self.world.crash_at is not None and len(self.world.writes) == self.world.crash_at
