"""Objects that must react to a fork: locks, threads and open databases do not survive one.

``register_fork_hooks(thing)`` registers an object: its hooks are called around every ``os.fork`` of this
process, as long as the object lives. Threads fork one after the other. A hook must not raise and must not
wait for a thread that could itself be forking.
"""

from __future__ import annotations

import os
import threading
import weakref


class Forking:
    """Base of followed objects; each hook does nothing unless it is overridden."""

    def before_fork(self) -> None:
        """Runs in the parent, with other threads still running."""

    def after_fork(self) -> None:
        """Runs in the parent, for each object whose ``before_fork`` ran."""

    def after_fork_in_child(self) -> None:
        """Runs in the child, which has only this thread. Nothing of the parent's may be closed here."""


class Gate(Forking):
    """``with gate:`` around work that no fork may interrupt: the work waits for a fork, and a fork for it.

    Meant for libraries with their own locks: a child would inherit a locked lock and wait for it forever.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._forking = False
        register_fork_hooks(self)

    def __enter__(self) -> None:
        with self._changed:
            while self._forking:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def before_fork(self) -> None:
        with self._changed:
            self._forking = True
            while self._inside:
                self._changed.wait()

    def after_fork(self) -> None:
        with self._changed:
            self._forking = False
            self._changed.notify_all()

    def after_fork_in_child(self) -> None:
        self._changed, self._forking = threading.Condition(), False


def register_fork_hooks(thing: Forking) -> None:
    """Registers ``thing``: its hooks are called around every fork from now on."""
    with _one_at_a_time:
        _followed.add(thing)


_followed: weakref.WeakSet[Forking] = weakref.WeakSet()
_told: list[Forking] = []
_one_at_a_time = threading.RLock()
"""Locked from ``_before`` until the fork is done: another thread must not change ``_told`` meanwhile."""


def _before() -> None:
    _one_at_a_time.acquire()
    # One order everywhere, since hooks take locks; gates first, so that no new thread reaches those locks.
    _told[:] = sorted(_followed, key=lambda thing: (not isinstance(thing, Gate), id(thing)))
    for thing in _told:
        thing.before_fork()


def _in_parent() -> None:
    for thing in _told:
        thing.after_fork()
    _told.clear()
    _one_at_a_time.release()


def _in_child() -> None:
    global _one_at_a_time
    for thing in _told:
        thing.after_fork_in_child()
    _told.clear()
    _one_at_a_time = threading.RLock()


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)

IMPORTING = Gate()
"""Gate for imports inside functions that threads run: a child that inherits a half imported module would wait
forever for the thread that imports it."""
