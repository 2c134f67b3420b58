"""Agent Zero's way of calling extensions, written anew for tests: the rules that a plugin must survive.

Files are found by the name of their point in several folders, executed outside of ``sys.modules``, cached,
and executed again after the cache was trimmed. They run in the order of their file names; one that raises
raises into the agent. Points of sync functions refuse a coroutine.
"""

from __future__ import annotations

import functools
import inspect
import runpy
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any


class Extension:
    def __init__(self, agent: Any, **given: Any) -> None:
        self.agent = agent
        self.kwargs = given

    def execute(self, **given: Any) -> Any:
        raise NotImplementedError


class Extensions:
    """The extensions below ``roots``, of which an earlier one replaces a file of the same name."""

    def __init__(self, roots: list[Path]) -> None:
        self.roots = roots
        self.called: list[str] = []
        self._cache: dict[str, list[type[Extension]]] = {}

    def trim(self) -> None:
        """Forgets all classes, as Agent Zero does after five idle minutes and when a file changes."""
        self._cache.clear()

    async def call_async(self, point: str, agent: Any, **given: Any) -> None:
        self.called.append(point)
        for extension in self._classes(point):
            told = extension(agent).execute(**given)
            if isinstance(told, Awaitable):
                await told

    def call_sync(self, point: str, agent: Any, **given: Any) -> None:
        self.called.append(point)
        for extension in self._classes(point):
            if isinstance(extension(agent).execute(**given), Awaitable):
                raise ValueError(f"{extension.__name__} returned awaitable in sync mode")

    def _classes(self, point: str) -> list[type[Extension]]:
        if point not in self._cache:
            found: dict[str, type[Extension]] = {}
            for root in self.roots:
                for path in sorted((root / "extensions" / "python" / point).glob("*.py")):
                    found.setdefault(path.name, self._load(path))
            self._cache[point] = [found[name] for name in sorted(found)]
        return self._cache[point]

    @staticmethod
    def _load(path: Path) -> type[Extension]:
        made = [
            value
            for value in runpy.run_path(str(path), run_name=path.stem).values()
            if inspect.isclass(value) and issubclass(value, Extension) and value is not Extension
        ]
        assert len(made) == 1, path
        return made[0]


def extensible(extensions: Callable[[], Extensions], place: str) -> Callable[[Any], Any]:
    """Decorates a function with the two points of ``place``, such as ``agent/Agent/monologue``."""

    def decorate(function: Any) -> Any:
        start, end = f"_functions/{place}/start", f"_functions/{place}/end"

        def prepared(args: tuple[Any, ...], given: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            first = args[0] if args else None
            agent = first if type(first).__name__ == "Agent" else None
            return agent, {"args": args, "kwargs": given, "result": UNSET, "exception": None}

        def settled(data: dict[str, Any]) -> Any:
            if isinstance(data["exception"], BaseException):
                raise data["exception"]
            return data["result"]

        @functools.wraps(function)
        async def run_async(*args: Any, **given: Any) -> Any:
            agent, data = prepared(args, given)
            await extensions().call_async(start, agent, data=data)
            if settled(data) is UNSET:
                try:
                    data["result"] = await function(*data["args"], **data["kwargs"])
                except Exception as error:
                    data["exception"] = error
            await extensions().call_async(end, agent, data=data)
            result = settled(data)
            return None if result is UNSET else result

        @functools.wraps(function)
        def run_sync(*args: Any, **given: Any) -> Any:
            agent, data = prepared(args, given)
            extensions().call_sync(start, agent, data=data)
            if settled(data) is UNSET:
                try:
                    data["result"] = function(*data["args"], **data["kwargs"])
                except Exception as error:
                    data["exception"] = error
            extensions().call_sync(end, agent, data=data)
            result = settled(data)
            return None if result is UNSET else result

        return run_async if inspect.iscoroutinefunction(function) else run_sync

    return decorate


UNSET = object()
