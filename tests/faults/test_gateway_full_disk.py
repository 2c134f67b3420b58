"""A gateway on a full disk goes on answering, and what it recorded arrives once. Fault 9 of the list."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway_child import gateway, recorded

from onward.bus import Bus, NatsServer, Outbox


async def test_a_full_disk_ends_no_gateway_and_everything_arrives_once(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    bus = await Bus.connect(server.url, token=server.token, name="test")
    await bus.ensure_streams()
    try:
        async with gateway(server, tmp_path) as child:
            names = [await child.ask("before", "one"), await child.ask("while", "two")]
            await server.stop()
            assert (await child.close("before")).status_code == 200, "it is in the outbox"
            await child.tell("full")
            await server.start()
            await recorded(bus, 1)  # sent, and the outbox cannot let it go

            refused = await child.close("while")
            assert refused.status_code == 503 and "kept and tried again" in refused.text
            names.append(await child.ask("after", "three"))
            outbox = Outbox(tmp_path / "data" / "outbox" / "gateway.db")
            assert outbox.pending() == 1

            await child.tell("room")
            assert (await child.close("while")).status_code == 200
            assert (await child.close("after")).status_code == 200
            async with asyncio.timeout(60):
                while outbox.pending():
                    await asyncio.sleep(0.05)
            outbox.close()
            assert child.process.returncode is None
        found = await recorded(bus, 3)
        assert [item.trajectory_id for item in found] == names
    finally:
        await bus.close()
        await server.stop()
