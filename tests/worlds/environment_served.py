"""A server of an environment in another thread, for tests that are not asynchronous."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from onward.envs.environment import Environment
from onward.envs.server import environment_server


@contextmanager
def served_environment(environment: Environment) -> Iterator[str]:
    """The address of the server."""
    ready, ended = threading.Event(), threading.Event()
    at: list[str] = []

    async def serve() -> None:
        server = environment_server(environment)
        await server.start()
        at.append(server.url)
        ready.set()
        await asyncio.to_thread(ended.wait)
        await server.stop()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield at[0]
    finally:
        ended.set()
        thread.join()
