"""Threads inherit the task of the code that starts them.

A new thread begins with an empty context, so a call in a thread pool would not know the ``with`` block that
it is made in. ``inherit_in_threads`` makes ``Thread.start`` and ``ThreadPoolExecutor.submit`` pass on one
context variable, for threads and pools of any library. ``asyncio.to_thread`` copies the context by itself,
and ``run_in_executor`` submits.

Invariants: the value comes from the code that starts the thread or submits the work, never from a guess, so
parallel tasks stay apart. Without a value both functions do what they did before.
"""

from __future__ import annotations

import concurrent.futures
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

_ISOLATED = getattr(concurrent.futures, "InterpreterPoolExecutor", ())
"""Its work runs in another interpreter, which has no variables of this one."""
_lock = threading.Lock()
_inherited: list[ContextVar[Any]] = []


def inherit_in_threads(variable: ContextVar[Any]) -> None:
    """Makes threads and thread pools of this process inherit ``variable``, whose default is None. Further
    calls do nothing."""
    with _lock:
        if variable in _inherited:
            return
        _inherited.append(variable)
        threading.Thread.start = _started(threading.Thread.start, variable)  # type: ignore[method-assign]
        ThreadPoolExecutor.submit = _submitted(ThreadPoolExecutor.submit, variable)  # type: ignore[method-assign]


def _started(original: Callable[..., None], variable: ContextVar[Any]) -> Callable[..., None]:
    @functools.wraps(original)
    def start(thread: threading.Thread) -> None:
        value = variable.get()
        if value is not None:
            run = thread.run

            def run_within() -> None:
                thread.__dict__.pop("run", None)  # else the thread refers to itself
                variable.set(value)
                run()

            thread.run = run_within  # type: ignore[method-assign]
        original(thread)

    return start


def _submitted(original: Callable[..., Future[Any]], variable: ContextVar[Any]) -> Callable[..., Future[Any]]:
    @functools.wraps(original)
    def submit(
        pool: ThreadPoolExecutor, work: Callable[..., Any], /, *args: Any, **given: Any
    ) -> Future[Any]:
        value = variable.get()
        if value is None or isinstance(pool, _ISOLATED):
            return original(pool, work, *args, **given)

        def work_within(*args: Any, **given: Any) -> Any:
            token = variable.set(value)
            try:
                return work(*args, **given)
            finally:
                variable.reset(token)

        token = variable.set(None)  # a thread that the pool starts now will serve other tasks, too
        try:
            return original(pool, work_within, *args, **given)
        finally:
            variable.reset(token)

    return submit
