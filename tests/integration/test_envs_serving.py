"""Driver, client and server together over real HTTP: many episodes at once, and a server that goes away."""

from __future__ import annotations

import asyncio
import hashlib
import signal
import sys
from collections.abc import Sequence

import pytest

from onward.envs import registry
from onward.envs.client import Deadlines, EnvClient
from onward.envs.environment import LocalSource
from onward.envs.failures import EnvironmentFailure
from onward.envs.maze import MazeEnvironment
from onward.envs.policies import ScriptedPolicy, random_policy, reference_policy, success_rate
from onward.envs.rollouts import Action, Conversation, rollouts
from onward.envs.server import environment_server, make_environment_app
from onward.http.server import Server


@pytest.mark.parametrize("name", sorted(registry.BUILT_IN))
async def test_the_wire_changes_nothing(name: str) -> None:
    """The same random actions give the same episodes over HTTP as in this process."""
    environment = registry.find(name)
    panel = environment.panel("test", n=6)
    local = await rollouts(LocalSource(environment), random_policy(environment), panel)
    server = environment_server(environment)
    await server.start()
    try:
        async with EnvClient(server.url) as client:
            served = await rollouts(client, random_policy(environment), panel)
    finally:
        await server.stop()
    assert served == local


async def test_many_episodes_at_once_leave_no_instance_open() -> None:
    crafting = registry.find("crafting")
    app = make_environment_app(crafting)
    server = Server(app, "127.0.0.1", 0)
    await server.start()
    try:
        async with EnvClient(server.url) as client:
            episodes = await rollouts(
                client, reference_policy(crafting), client.panel("train", n=40), attempts=2
            )
            assert client.unclosed == 0
    finally:
        await server.stop()
    assert len(episodes) == 80 and success_rate(episodes) == 1.0
    assert len(app.state.instances) == 0


async def test_a_server_that_stops_leaves_the_rest_unscored_with_the_cause() -> None:
    maze = registry.find("maze")
    server = environment_server(maze)
    await server.start()
    done = reference_policy(maze)

    class StopsTheServer(ScriptedPolicy):
        calls = 0

        async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
            self.calls += 1
            if self.calls == 5:
                await server.stop()
            return await done.act(conversations)

    async with EnvClient(server.url, deadlines=Deadlines(close=1.0)) as client:
        policy = StopsTheServer(lambda conversation: lambda observation: "up")
        episodes = await rollouts(client, policy, client.panel(n=20), linger_seconds=None)
        assert client.unclosed > 0
    scored = [episode for episode in episodes if episode.is_scored]
    assert scored and all(episode.success for episode in scored)
    broken = [episode for episode in episodes if not episode.is_scored]
    assert broken and {episode.failure for episode in broken} == {"connection"}
    assert {episode.reward for episode in broken} == {None}


async def test_a_served_environment_that_breaks_leaves_its_episode_unscored() -> None:
    class Broken(MazeEnvironment):
        def parse(self, answer: str) -> str:
            raise ZeroDivisionError("by design")

    server = environment_server(Broken())
    await server.start()
    try:
        async with EnvClient(server.url) as client:
            (episode,) = await rollouts(client, reference_policy(Broken()), client.panel(n=1))
            assert client.unclosed == 0
    finally:
        await server.stop()
    assert (episode.failure, episode.reward, episode.success) == ("env_error", None, None)
    assert episode.message is not None and "answered /step with 500" in episode.message


async def test_the_command_serves_until_it_is_interrupted() -> None:
    words = [sys.executable, "-m", "onward.cli", "env", "serve", "maze", "--port", "0", "--split", "test"]
    process = await asyncio.create_subprocess_exec(
        *words,
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.SIG_DFL
        ),  # not as a shell in the background has it
    )
    assert process.stdout is not None
    try:
        said = (await process.stdout.readline()).decode()
        url = said.split()[2]
        async with EnvClient(url) as client:
            assert client.meta is not None
            assert (client.name, client.meta.split) == ("maze", "test")
        process.send_signal(signal.SIGINT)
        assert (await process.stdout.read()).decode().strip() == "Stopped."
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_cancelled_run_closes_its_instances_on_the_server() -> None:
    app = make_environment_app(registry.find("maze"))
    server = Server(app, "127.0.0.1", 0)
    await server.start()
    playing = asyncio.Event()

    class Waits:
        async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
            playing.set()
            await asyncio.Event().wait()
            raise AssertionError

    try:
        async with EnvClient(server.url) as client:
            run = asyncio.create_task(rollouts(client, Waits(), client.panel(n=10), linger_seconds=None))
            await playing.wait()
            assert len(app.state.instances) == 10
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            assert len(app.state.instances) == 0
    finally:
        await server.stop()


async def test_an_exposed_server_is_played_with_a_key_and_not_without() -> None:
    key = "ok-" + "e" * 20
    keys = {hashlib.sha256(key.encode()).hexdigest(): ["train"]}
    maze = registry.find("maze")
    server = environment_server(maze, host="0.0.0.0", keys=keys)
    await server.start()
    try:
        with pytest.raises(EnvironmentFailure, match="401") as caught:
            async with EnvClient(server.url):
                pass
        assert caught.value.cause == "refused"
        async with EnvClient(server.url, key=key) as client:
            episodes = await rollouts(client, reference_policy(maze), client.panel(n=2))
        assert success_rate(episodes) == 1.0
    finally:
        await server.stop()
