"""A server of an environment in another thread, for tests that are not asynchronous."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from onward.envs.environment import Environment
from onward.envs.server import environment_server
from onward.http.server import Server


def served_environment(environment: Environment) -> AbstractContextManager[str]:
    """The address of a server of the environment."""
    return served_in_a_thread(lambda: environment_server(environment))


@contextmanager
def served_in_a_thread(make: Callable[[], Server]) -> Iterator[str]:
    """The address of the server that ``make`` makes."""
    ready, ended = threading.Event(), threading.Event()
    at: list[str] = []

    async def serve() -> None:
        server = make()
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
