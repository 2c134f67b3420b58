"""A gateway over a real bus with a scripted engine, and adapters made of tiny safetensors files."""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from consumed import is_consumed
from release_stream import NoRows
from scripted_engine import ScriptedEngine

from onward.bus import Bus
from onward.clock import Clock, SystemClock, utc_text
from onward.config import Settings
from onward.context import Context
from onward.contracts import Reward, SessionOutcome, decode, subjects, to_document, validate
from onward.ids import derived_id, model_key, new_id
from onward.serving.http.gateway import Gateway
from onward.telemetry.alerts import Alerts
from onward.telemetry.metrics import Metrics
from onward.training import checkpoints
from onward.warehouse import Objects


def plain_safetensors(values: list[float]) -> bytes:
    """A file with one float32 tensor, written by hand."""
    data = struct.pack(f"<{len(values)}f", *values)
    header = json.dumps(
        {"t": {"dtype": "F32", "shape": [len(values)], "data_offsets": [0, len(data)]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + data


def make_adapter(folder: Path, value: float, base_digest: str = "0" * 64) -> checkpoints.Manifest:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 1, "lora_alpha": 1}))
    (folder / "adapter_model.safetensors").write_bytes(plain_safetensors([value]))
    return checkpoints.write_manifest(folder, job_id=new_id(), epoch=1, base_digest=base_digest)


class World:
    """Everything a gateway needs, and short words for what the releaser and rewarder do."""

    def __init__(
        self,
        bus: Bus,
        folder: Path,
        *,
        clock: Clock | None = None,
        capture: dict[str, Any] | None = None,
        feedback: dict[str, Any] | None = None,
        engine: Any = None,
        aliases: dict[str, str] | None = None,
        providers: dict[str, Any] | None = None,
        model: dict[str, Any] | None = None,
        openai: dict[str, Any] | None = None,
        **http: Any,
    ) -> None:
        """``engine``: None makes a scripted one."""
        self.bus, self.folder = bus, folder
        self.clock = clock or SystemClock()
        metrics = Metrics()
        self.settings = Settings.model_validate(
            {
                "data_dir": folder / "data",
                "http": {"gateway_port": 0, **http},
                "capture": capture or {},
                "feedback": feedback or {},
                "gateway": {"model_aliases": aliases or {}},
                "providers": providers or {},
                "model": {"base": "tiny", **(model or {})},
                "openai": openai or {},
                "release": {"lost_after_seconds": 600},
            }
        )
        self.ctx = Context(
            settings=self.settings,
            clock=self.clock,
            bus=bus,
            warehouse=NoRows(),  # type: ignore[arg-type]
            objects=Objects.open(folder / "objects"),
            metrics=metrics,
            alerts=Alerts(bus, self.clock, metrics),
        )
        self.engine: Any = engine or ScriptedEngine()
        self.gateway = Gateway(self.ctx, self.engine)
        self._revision = 0

    async def __aenter__(self) -> World:
        await self.gateway.start()
        key = (self.settings.run_dir / "api.key").read_text()
        self.client = httpx.AsyncClient(
            base_url=self.gateway.server.url, headers={"Authorization": f"Bearer {key}"}, timeout=30
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        await self.gateway.stop()

    async def register(self, model_id: str, value: float) -> str:
        """Commit an adapter to the object store and register it; its digest."""
        folder = self.folder / f"made-{model_id}"
        manifest = make_adapter(folder, value)
        prefix = await checkpoints.upload(self.ctx.objects, folder, job_id=manifest.job_id, epoch=1)
        record = {"model_id": model_id, "adapter_digest": manifest.adapter_digest, "object_prefix": prefix}
        await self.bus.bucket("rl_models").put(model_key(model_id), json.dumps(record).encode())
        return manifest.adapter_digest

    async def desire(
        self,
        current: tuple[str, str | None],
        candidate: tuple[str, str] | None = None,
        weight: float = 0.5,
        release_id: str | None = "r1",
    ) -> int:
        """Write the desired state as the releaser does; its revision."""
        self._revision += 1
        share = weight if candidate else 0.0
        arms = [
            {"arm": "current", "model_id": current[0], "adapter_digest": current[1], "weight": 1.0 - share}
        ]
        if candidate:
            arms.append(
                {
                    "arm": "candidate",
                    "model_id": candidate[0],
                    "adapter_digest": candidate[1],
                    "weight": share,
                }
            )
        document = {"revision": self._revision, "release_id": release_id, "step": 0, "arms": arms}
        await self.bus.bucket("rl_releases").put(
            "desired", json.dumps({**document, "previous": None}).encode()
        )
        return self._revision

    async def open_release(self, release_id: str = "r1", weight: float = 0.5) -> tuple[str, str]:
        """Two models are served, the second, whose id has a dot, as the candidate of ``release_id``; their
        digests."""
        one = await self.register("agent-zero-rl-v1", 1.0)
        two = await self.register("agent-zero-rl-v2.0", 2.0)
        arms = ("agent-zero-rl-v1", one), ("agent-zero-rl-v2.0", two)
        await self.served(await self.desire(*arms, weight, release_id))
        return one, two

    async def served(self, revision: int) -> dict[str, Any]:
        """What the gateway says once it serves ``revision``."""

        async def there() -> dict[str, Any] | None:
            entry = await self.bus.bucket("rl_gateways").get(self.gateway.gateway_id)
            record = json.loads(entry.value) if entry else {"revision": None}
            return record if record["revision"] == revision else None

        return await eventually(there)

    async def chat(self, session: str, text: str = "hello", **more: Any) -> httpx.Response:
        return await self.client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": text}], **more},
            headers={"Onward-Session": session},
        )

    async def ask(self, session: str, text: str = "hello", **more: Any) -> dict[str, Any]:
        answer = await self.chat(session, text, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def reward(self, session: str, success: bool = True, **metadata: Any) -> Reward:
        """Publish a reward as the rewarder does."""
        outcome = {"success": success, "completion": float(success)} | metadata.pop("outcome", {})
        reward = validate(
            {
                "reward_id": new_id(),
                "trajectory_id": new_id(),
                "session_id": session,
                "timestamp": utc_text(self.clock.now()),
                "reward_components": {
                    "task_completion": {"score": 1.0, "weight": 1.0, "source": "automated"}
                },
                "total_reward": 0.5,
                "reward_type": "sparse",
                "metadata": {
                    "evaluator": "automated-evaluator",
                    "evaluation_method": "automated",
                    "outcome": outcome,
                    **metadata,
                },
            },
            Reward,
        )
        await self.bus.publish(
            subjects.REWARD, json.dumps(to_document(reward)).encode(), msg_id=reward.reward_id
        )
        return reward

    async def outcomes(self) -> list[SessionOutcome]:
        """Everything on the outcome stream."""
        info = await self.bus.js.stream_info("RL_OUTCOMES")
        found = []
        for sequence in range(max(1, info.state.first_seq), info.state.last_seq + 1):
            message = await self.bus.js.get_msg("RL_OUTCOMES", seq=sequence)
            found.append(decode(message.data or b"", SessionOutcome))
        return found

    async def rewards_read(self) -> None:
        """Wait until the gateway has consumed every reward."""

        await eventually(lambda: is_consumed(self.bus, "RL_REWARDS", "gateway-outcomes"))


async def eventually(check: Callable[[], Any], seconds: float = 60.0) -> Any:
    """The first true value of ``await check()``."""
    async with asyncio.timeout(seconds):
        while not (value := await check()):
            await asyncio.sleep(0.02)
        return value


def outcome_id(session: str, release: str, kind: str) -> str:
    return derived_id("outcome", release, session, kind)
