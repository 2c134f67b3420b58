"""What is told of forks is told once for each, whatever other threads fork at the same time."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from onward.forks import IMPORTING, Forking, register_fork_hooks

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a fork with threads is the point


class Watched(Forking):
    """Notes who is told what; in the first fork it lets a second thread fork, too."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.second: threading.Thread | None = None
        self.second_was_told = threading.Event()

    def before_fork(self) -> None:
        name = threading.current_thread().name
        self.told.append(("before", name))
        if name == "second":
            self.second_was_told.set()
        elif self.second is not None and self.second.ident is None:
            self.second.start()
            # It waits in vain: the second thread's turn has to come after this fork.
            self.second_was_told.wait(0.5)

    def after_fork(self) -> None:
        self.told.append(("after", threading.current_thread().name))


def fork_and_reap() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def test_a_thread_that_forks_while_another_does_is_told_after_it():
    watched = Watched()
    watched.second = threading.Thread(target=fork_and_reap, name="second")
    register_fork_hooks(watched)
    first = threading.Thread(target=fork_and_reap, name="first")
    first.start()
    first.join(30)
    watched.second.join(30)
    assert [name for _, name in watched.told] == ["first"] * 2 + ["second"] * 2
    assert [what for what, _ in watched.told] == ["before", "after"] * 2


def test_a_child_forks_again_and_follows_more():
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that is stuck
        try:
            register_fork_hooks(Forking())
            fork_and_reap()
            thread = threading.Thread(target=fork_and_reap)
            thread.start()
            thread.join()
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_threads_that_fork_beside_open_outboxes_all_come_to_an_end(tmp_path):
    code = (
        "import os, sys, threading, warnings; warnings.simplefilter('ignore')\n"
        "from onward.bus.outbox import Outbox\n"
        "boxes = [Outbox(f'{sys.argv[1]}/{n}.db') for n in range(2)]\n"
        "def work():\n"
        "    for _ in range(60):\n"
        "        child = os.fork()\n"
        "        if child == 0: os._exit(0)\n"
        "        os.waitpid(child, 0)\n"
        "threads = [threading.Thread(target=work) for _ in range(3)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n"
        "for n, box in enumerate(boxes): box.put('s', b'x', str(n))\n"
        "print([box.pending() for box in boxes])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.strip() == "[1, 1]", done.stderr


def test_a_child_does_not_inherit_a_half_imported_module(tmp_path, monkeypatch):
    """Python's lock of a module stays locked in the child, where nobody would ever unlock it."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.3)\nDONE = True\n")
    inside = threading.Event()

    def load() -> None:
        with IMPORTING:
            inside.set()
            import slow_to_import  # noqa: F401

    thread = threading.Thread(target=load)
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that is stuck
        import slow_to_import

        os._exit(0 if slow_to_import.DONE else 1)
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
