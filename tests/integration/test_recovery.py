"""Rows that a disk lost are stored again from the streams; what no stream holds is listed exactly."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import reward_world
from collector_world import collect, document, publish, rows
from consumed import acknowledged

from onward.bus import Bus
from onward.capture.collecting import collector, event_archiver
from onward.capture.collecting.event_archiver import COPIES, Copy
from onward.clock import SystemClock
from onward.config import load
from onward.context import Context
from onward.contracts import encode, examples, subjects
from onward.errors import WarehouseError
from onward.recovery import service
from onward.recovery.check import Check
from onward.recovery.inventory import Inventory
from onward.reward.role import rewarder
from onward.telemetry import Alerts, Metrics
from onward.warehouse import EmbeddedWarehouse, Objects, queries

SECRET = "ghp_" + "aB3dE5fG7hJ9" * 3


class Shop:
    """A bus, and a warehouse of this test alone that can be closed, damaged and opened again."""

    def __init__(self, bus: Bus, folder: Path, **capture: str) -> None:
        self.folder, self.heard = folder, []
        clock, metrics = SystemClock(), Metrics()
        settings = load(environ={}, overrides={"data_dir": folder, "capture": capture})
        self._embedded = EmbeddedWarehouse(folder)
        self._make = lambda warehouse: Context(
            settings=settings, clock=clock, bus=bus, warehouse=warehouse, metrics=metrics,
            objects=Objects.open(folder / "objects"), alerts=Alerts(self, clock, metrics),
        )  # fmt: skip

    async def notify(self, subject: str, data: bytes) -> None:
        self.heard.append(json.loads(data))

    @property
    def alerts(self) -> list[str]:
        return [alert["kind"] for alert in self.heard]

    async def open(self) -> None:
        self.ctx = self._make(await self._embedded.start())

    async def close(self) -> None:
        await self._embedded.stop()

    async def damage(self, change: Callable[[Path], None]) -> None:
        """Closes the warehouse, changes its largest data files, opens it."""
        await self.close()
        for sums in (self.folder / "chdb").glob("store/*/*/*/checksums.txt"):
            if sums.parent.parent.parent.parent.name == "store":
                change(max(sums.parent.glob("*.bin"), key=lambda path: path.stat().st_size))
        self._embedded = EmbeddedWarehouse(self.folder)
        await self.open()

    async def check(self, *, store: bool = True, read_files: bool = False) -> Check:
        async def nothing(*_) -> None:
            pass

        check = Check(self.ctx, store=store, progress=nothing)
        await check.run(read_files=read_files, read_rewards=False)
        return check


@pytest.fixture
async def shop(bus: Bus, tmp_path: Path) -> AsyncIterator[Shop]:
    shop = Shop(bus, tmp_path / "data")
    await shop.open()
    yield shop
    await shop.close()


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def ids(*numbers: int) -> list[str]:
    return [document(number)["trajectory_id"] for number in numbers]


async def stored(shop: Shop) -> list[str]:
    return [row["trajectory_id"] for row in await rows(shop.ctx)]


async def test_rows_of_damaged_parts_are_stored_again_and_told(shop):
    for number in (1, 2, 3):
        await publish(shop.ctx, document(number))
    await collect(shop.ctx)
    before = await rows(shop.ctx)
    await shop.damage(truncated)
    assert await stored(shop) == []
    check = await shop.check(store=False)
    assert check.results["trajectories"].missing == 3
    assert await stored(shop) == [] and not shop.alerts
    await shop.check()
    after = await rows(shop.ctx)
    changing = ("ingested_at",)
    assert [{k: v for k, v in row.items() if k not in changing} for row in after] == [
        {k: v for k, v in row.items() if k not in changing} for row in before
    ]
    assert shop.alerts == ["warehouse_rows"] and "3 of trajectories" in shop.heard[0]["message"]
    check = await shop.check()
    assert check.results["trajectories"].missing == 0 and shop.alerts == ["warehouse_rows"]


async def test_a_lost_folder_comes_back_without_what_was_kept_out(bus, tmp_path):
    shop = Shop(bus, tmp_path / "data", opt_out="session:gone*")
    await shop.open()
    await publish(shop.ctx, document(1))
    await publish(shop.ctx, document(2, f"the token is {SECRET}"))  # republished without it
    await publish(shop.ctx, document(3, session_id="gone-1"))  # opted out
    await publish(shop.ctx, b"no trajectory")  # a dead letter
    await publish(shop.ctx, document(1), msg_id="again")  # a duplicate
    await publish(shop.ctx, document(1, "other text"), msg_id="conflict")  # a dead letter
    await collect(shop.ctx)
    assert await stored(shop) == ids(1, 2)
    letters = (await bus.js.stream_info("RL_DLQ")).state.messages
    await shop.check()
    await shop.close()
    shutil.rmtree(shop.folder / "chdb")
    await shop.open()
    await shop.check()
    again = await rows(shop.ctx)
    assert [row["trajectory_id"] for row in again] == ids(1, 2)
    assert SECRET not in "".join(row["payload"] for row in again)
    assert "other text" not in again[0]["payload"]
    assert (await bus.js.stream_info("RL_DLQ")).state.messages == letters
    assert shop.alerts == ["warehouse_rows"]
    await shop.close()


async def test_every_message_without_a_row_is_read_once(shop, monkeypatch):
    await publish(shop.ctx, document(1))
    await publish(shop.ctx, document(1), msg_id="again")
    await publish(shop.ctx, b"no trajectory")
    await collect(shop.ctx)
    read, get_msg = [], shop.ctx.bus.js.get_msg

    async def remember(stream, seq=None, **options):
        read.append(seq)
        return await get_msg(stream, seq=seq, **options)

    monkeypatch.setattr(shop.ctx.bus.js, "get_msg", remember)
    await shop.check()
    assert sorted(n for n in read if n in (2, 3)) == [2, 3]
    read.clear()
    await shop.check()
    assert not {2, 3} & set(read)


async def test_a_flipped_bit_is_set_aside_and_its_rows_come_back(shop):
    for number in (1, 2):
        await publish(shop.ctx, document(number))
    await collect(shop.ctx)
    await shop.damage(flipped)
    with pytest.raises(WarehouseError):
        await rows(shop.ctx)
    assert shop.ctx.warehouse.found_damage
    check = await shop.check()
    assert check.results["trajectories"].damaged_parts
    assert await stored(shop) == ids(1, 2)
    assert not shop.ctx.warehouse.found_damage


async def test_a_flipped_bit_in_what_explains_messages_without_a_row_is_set_aside_too(shop):
    await publish(shop.ctx, document(1))
    await shop.ctx.bus.publish("agent.rl.trajectory.v1", b"no JSON", msg_id="bad")
    await collect(shop.ctx)
    await shop.check()
    assert await shop.ctx.warehouse.query("SELECT count() AS n FROM settled") == [{"n": 1}]
    await shop.damage(flipped)
    with pytest.raises(WarehouseError):
        await shop.ctx.warehouse.query("SELECT * FROM settled")
    await shop.check()
    assert not shop.ctx.warehouse.found_damage
    assert await stored(shop) == ids(1)
    assert await shop.ctx.warehouse.query("SELECT count() AS n FROM settled") == [{"n": 1}]


async def test_a_lost_record_of_the_rows_of_a_day_is_written_again(shop):
    await publish(shop.ctx, document(1))
    await collect(shop.ctx)
    await shop.check()
    (day,) = (
        path for path in (shop.folder / "objects").rglob("recovery/trajectories/*") if "." not in path.name
    )
    day.unlink()
    await publish(shop.ctx, document(2))
    await collect(shop.ctx)
    await shop.check()
    assert set(day.read_text().split("\n")) == set(ids(1, 2))


async def test_rows_that_no_stream_holds_are_listed_by_id_until_they_are_accepted(shop):
    for number in (1, 2, 3):
        await publish(shop.ctx, document(number))
    await collect(shop.ctx)
    await shop.check()
    await shop.ctx.bus.js.delete_msg("RL_TRAJECTORIES", 2)  # as if it had expired
    await shop.damage(truncated)
    await shop.check()
    assert await stored(shop) == ids(1, 3)
    assert "warehouse_rows_lost" in shop.alerts
    inventory = Inventory(shop.ctx.objects, shop.ctx.warehouse, "trajectories")
    assert list((await inventory.lost()).rows) == ids(2)
    check = await shop.check()
    assert check.results["trajectories"].lost_rows == 1
    assert shop.alerts.count("warehouse_rows_lost") == 1
    await service.accept(shop.ctx)
    assert (await shop.check()).results["trajectories"].lost_rows == 0


async def test_messages_that_were_lost_before_they_were_stored_are_listed(shop):
    await publish(shop.ctx, document(1))
    await collect(shop.ctx)
    await shop.check()
    for number in (2, 3, 4):
        await publish(shop.ctx, document(number))
    for sequence in (2, 3):  # as after a damaged block
        await shop.ctx.bus.js.delete_msg("RL_TRAJECTORIES", sequence)
    await collect(shop.ctx)
    check = await shop.check()
    assert check.results["trajectories"].lost_messages == 2
    inventory = Inventory(shop.ctx.objects, shop.ctx.warehouse, "trajectories")
    assert (await inventory.lost()).messages == [[2, 3]]
    assert "warehouse_rows_lost" in shop.alerts


async def test_a_truncated_block_of_a_stream_costs_only_what_is_listed(own_server, tmp_path):
    bus = await Bus.connect(own_server.url, token=own_server.token)
    await bus.ensure_streams()
    shop = Shop(bus, tmp_path / "shop")
    await shop.open()
    for number in (1, 2, 3, 4):
        await publish(shop.ctx, document(number))
    await collect(shop.ctx)
    await shop.check()
    for number in (5, 6):
        await publish(shop.ctx, document(number))  # nobody collects them
    await own_server.stop()
    block = max(own_server.data_dir.glob("nats/jetstream/*/streams/RL_TRAJECTORIES/msgs/*.blk"))
    truncated(block)
    await own_server.start()
    await publish(shop.ctx, document(7))
    await collect(shop.ctx)
    check = await shop.check()
    assert await stored(shop) == ids(1, 2, 3, 4, 7)
    inventory = Inventory(shop.ctx.objects, shop.ctx.warehouse, "trajectories")
    assert (await inventory.lost()).messages == [[5, 6]]
    assert check.results["trajectories"].lost_messages == 2 and "warehouse_rows_lost" in shop.alerts
    await shop.close()
    await bus.close()


async def test_a_message_that_was_erased_on_purpose_is_not_lost(bus, tmp_path):
    shop = Shop(bus, tmp_path / "data", opt_out="session:gone*")
    await shop.open()
    await publish(shop.ctx, document(1))
    await collect(shop.ctx)
    await shop.check()
    await publish(shop.ctx, document(2, session_id="gone-1"))
    await publish(shop.ctx, document(3, f"the token is {SECRET}"))
    await collect(shop.ctx)
    check = await shop.check()
    assert check.results["trajectories"].lost_messages == 0 and not shop.alerts
    await shop.close()


async def test_rewards_and_votes_come_back_with_the_trajectories(shop):
    numbers = range(3)
    await reward_world.publish(shop.ctx.bus, *map(reward_world.trajectory, numbers))
    vote = reward_world.said("v1", trajectory_id=reward_world.trajectory(0).trajectory_id)
    async with reward_world.running(collector.run(shop.ctx), rewarder.run(shop.ctx)):
        await reward_world.until(reward_world.rewarded(shop.ctx, len(numbers)))
        await shop.ctx.bus.publish(subjects.FEEDBACK, encode(vote), msg_id="v1")

        async def is_rescored() -> bool:
            return len(await history(shop)) == len(numbers) + 1

        await reward_world.until(is_rescored)
        await asyncio.sleep(0.5)  # acknowledged
    before = await history(shop)
    await shop.check()
    await shop.close()
    shutil.rmtree(shop.folder / "chdb")
    await shop.open()
    check = await shop.check()
    assert await history(shop) == before
    assert [check.results[t].restored for t in ("trajectories", "rewards", "feedback")] == [3, 4, 1]
    assert check.without_reward == 0 and shop.alerts == ["warehouse_rows"]
    await shop.ctx.bus.js.purge_stream("RL_REWARDS")
    await shop.ctx.warehouse.command("TRUNCATE TABLE rewards")
    check = await shop.check()
    assert (check.without_reward, check.results["rewards"].lost_rows) == (3, 4)
    name = reward_world.trajectory(0).trajectory_id
    why = await queries.why_unscored(shop.ctx.warehouse, name)
    assert why is not None and why["reason"] == "reward_lost"
    assert (await shop.check()).without_reward == 0


async def history(shop: Shop) -> list[tuple[str, str]]:
    found = await shop.ctx.warehouse.query(
        "SELECT reward_id, payload FROM reward_history_v ORDER BY reward_id"
    )
    return [(row["reward_id"], row["payload"]) for row in found]


async def is_read(ctx: Context, copy: Copy) -> bool:
    return await acknowledged(ctx.bus, copy.stream, copy.durable) == 1


async def test_events_come_back_from_their_streams(shop):
    tables = ("outcomes", "status")
    outcome = json.dumps(examples.OUTCOME).encode()
    await shop.ctx.bus.publish(subjects.OUTCOME, outcome, msg_id="o1")
    status = json.dumps(examples.TRAINING_STATUS).encode()
    await shop.ctx.bus.publish(subjects.TRAINING_STATUS, status, msg_id="s1")
    task = asyncio.create_task(event_archiver.run(shop.ctx))
    copies = [copy for copy in COPIES if copy.table in tables]
    async with asyncio.timeout(20):
        while not all([await is_read(shop.ctx, copy) for copy in copies]):
            await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    for table in tables:
        await shop.ctx.warehouse.command(f"TRUNCATE TABLE {table}")
    check = await shop.check()
    assert [check.results[table].restored for table in tables] == [1, 1]
    assert (await shop.check()).results["outcomes"].missing == 0


async def test_a_deleted_bucket_is_created_again_and_told(shop, monkeypatch):
    monkeypatch.setattr(service, "STREAM_SECONDS", 0.1)
    task = asyncio.create_task(service.watch_streams(shop.ctx))
    await asyncio.sleep(0.3)
    await shop.ctx.bus.js.delete_stream("KV_rl_models")
    async with asyncio.timeout(10):
        while "stream_lost" not in shop.alerts:
            await asyncio.sleep(0.05)
    await shop.ctx.bus.bucket("rl_models").put("a", b"{}")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
