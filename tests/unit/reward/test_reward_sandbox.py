"""Hostile programs in the sandbox: each tries one thing, and none of it works. Nothing runs unconfined."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from onward.errors import ConfigError
from onward.reward.sandbox import Limits, Sandbox, confined, runner
from onward.reward.sandbox.filter import CALLS, program

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the sandbox needs Linux")
LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Folder that every user can read, outside of pytest's, which each pytest process closes to others. The
    umask is the usual one: a command that ran in this process before has left 0o077."""
    before = os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory(dir="/tmp") as made:
            folder = Path(made)
            folder.chmod(0o755)
            yield folder
    finally:
        os.umask(before)


@pytest.fixture
def sandbox() -> Sandbox:
    return Sandbox(Limits(cpu_seconds=2, wall_seconds=10.0, memory_mib=256, output_bytes=4096))


ATTEMPTS = """
import os
for body in {bodies!r}:
    try:
        exec(body)
        print('done:', body)
    except (OSError, RuntimeError):
        print('refused')
"""


async def check_refused(sandbox: Sandbox, *bodies: str) -> None:
    """Runs the pieces one after the other in one program: the system must refuse each."""
    output = await output_of(sandbox, ATTEMPTS.format(bodies=bodies))
    assert output.splitlines() == ["refused"] * len(bodies)


async def output_of(sandbox: Sandbox, source: str) -> str:
    outcome = await sandbox.run(source)
    assert outcome.status == "finished", outcome
    return outcome.output.strip()


async def test_an_honest_program_reads_its_input_and_prints(sandbox: Sandbox) -> None:
    source = (
        "import collections, datetime, decimal, fractions, itertools, json, math, random, re, statistics\n"
        "import sys\nprint(sum(json.loads(sys.stdin.read())), math.comb(5, 2))"
    )
    outcome = await sandbox.run(source, "[1, 2, 3]")
    assert (outcome.status, outcome.output) == ("finished", "6 10\n")


async def test_a_program_starts_no_process_and_no_thread(sandbox: Sandbox) -> None:
    await check_refused(
        sandbox,
        "while True:\n    os.fork()",
        "import threading\nthreading.Thread(target=print).start()",
        "import subprocess\nsubprocess.run(['/bin/true'])",
        "os.execv('/bin/sh', ['sh'])",
        "os.posix_spawn('/bin/sh', ['sh'], {})",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
    )


async def test_a_program_has_no_network_and_no_loopback(sandbox: Sandbox) -> None:
    families = ("AF_INET", "AF_INET6", "AF_UNIX", "AF_NETLINK")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        await check_refused(
            sandbox,
            f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 2)",
            *(f"import socket\nsocket.socket(socket.{one}, socket.SOCK_DGRAM)" for one in families),
            "import socket\nsocket.socketpair()",
        )


async def test_a_program_reads_neither_the_data_folder_nor_home_nor_links_to_them(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    secret = tmp_path / "onward.toml"
    secret.write_text("key")
    link = tmp_path / "link"
    link.symlink_to(secret)
    files = (secret, link, "/etc/passwd", "/proc/self/environ", f"/proc/{os.getpid()}/environ")
    folders = (tmp_path, Path.home(), "/", "/proc", "/tmp")
    await check_refused(
        sandbox,
        *(f"open({str(path)!r}).read()" for path in files),
        *(f"os.listdir({str(path)!r})" for path in folders),
    )


async def test_a_program_reads_no_installed_package_where_the_answers_of_a_suite_may_be(
    sandbox: Sandbox,
) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    package = next((library / "site-packages").glob("*/__init__.py"), None)
    if package is None:
        pytest.skip("Python's own folder has no package")
    await check_refused(sandbox, f"open({str(package)!r})")
    assert await output_of(sandbox, "import hashlib, sqlite3, xml.dom.minidom\nprint('ok')") == "ok"


async def test_a_program_writes_no_file_and_makes_no_link(sandbox: Sandbox, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("whole")
    kept.chmod(0o640)
    here = str(tmp_path)
    await check_refused(
        sandbox,
        f"open({here!r} + '/new', 'w')",
        f"open({here!r} + '/kept', 'a')",
        f"os.open({here!r} + '/kept', os.O_RDONLY | os.O_TRUNC)",
        f"os.truncate({here!r} + '/kept', 0)",
        f"os.symlink('/etc/passwd', {here!r} + '/link')",
        f"os.link('/etc/passwd', {here!r} + '/hard')",
        f"os.mkdir({here!r} + '/folder')",
        f"os.remove({here!r} + '/kept')",
        f"os.rename({here!r} + '/kept', {here!r} + '/moved')",
        f"os.chmod({here!r} + '/kept', 0o777)",
        f"os.chown({here!r} + '/kept', 1, 1)",
        f"os.utime({here!r} + '/kept', (1, 1))",
        f"os.mkfifo({here!r} + '/pipe')",
        "open('/dev/shm/fill', 'w')",
        "os.memfd_create('fill')",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == ("whole", 0o640)


async def test_a_program_signals_and_traces_no_process(sandbox: Sandbox) -> None:
    victim = subprocess.Popen(["sleep", "60"])
    try:
        await check_refused(
            sandbox,
            f"os.kill({victim.pid}, 9)",
            "os.kill(os.getppid(), 9)",
            "os.killpg(0, 9)",
            "os.kill(-1, 9)",
            f"os.pidfd_open({victim.pid})",
            f"os.setpriority(os.PRIO_PROCESS, {victim.pid}, 19)",
            f"import resource\nresource.prlimit({victim.pid}, resource.RLIMIT_CPU, (1, 1))",
        )
        traced = LIBC + (
            f"print(libc.ptrace(16, {victim.pid}, 0, 0), ctypes.get_errno(), "
            f"libc.syscall(310, {victim.pid}, 0, 0, 0, 0, 0), ctypes.get_errno())"
        )
        assert await output_of(sandbox, traced) == "-1 1 -1 1"
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


async def test_no_descriptor_sends_a_signal_to_the_service_when_it_gets_ready(sandbox: Sandbox) -> None:
    """F_SETOWN, F_SETSIG and O_ASYNC together kill any process of this user, without a call for signals."""
    await check_refused(
        sandbox,
        "import fcntl\nfcntl.fcntl(1, fcntl.F_SETOWN, os.getppid())",
        "import fcntl\nfcntl.fcntl(1, fcntl.F_SETSIG, 9)",
        "import fcntl\nfcntl.fcntl(1, fcntl.F_SETFL, os.O_ASYNC)",
        "import fcntl\nfcntl.ioctl(1, 0x5452, b'\\x01\\0\\0\\0')",
    )


async def test_a_program_mounts_nothing_and_enters_no_namespace(sandbox: Sandbox) -> None:
    source = LIBC + (
        "print([libc.mount(b'none', b'/tmp', b'tmpfs', 0, None), libc.unshare(0x10000000), libc.setuid(0), "
        "libc.chroot(b'/'), libc.prctl(22, 0, 0, 0, 0)])"
    )
    assert await output_of(sandbox, source) == "[-1, -1, -1, -1, -1]"


async def test_a_program_inherits_no_descriptor_no_variable_and_no_module_of_the_service(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONWARD_S3_SECRET", "shown")
    source = (
        "import fcntl, os, sys\nopened = []\n"
        "for number in range(32):\n    try:\n        fcntl.fcntl(number, 1)\n        opened.append(number)\n"
        "    except OSError:\n        pass\n"
        "print(opened, dict(os.environ), [name for name in sys.modules if name.startswith('pydantic')])"
    )
    assert await output_of(sandbox, source) == "[0, 1, 2] {} []"


async def test_limits_of_time_memory_and_output_end_a_program() -> None:
    sandbox = Sandbox(Limits(cpu_seconds=1, wall_seconds=2.0, memory_mib=200, output_bytes=1000))
    assert (await sandbox.run("while True: pass")).status == "time"
    assert (await sandbox.run("import time\ntime.sleep(60)")).status == "time"
    noisy = await sandbox.run("while True: print('x' * 100)")
    assert (noisy.status, noisy.output) == ("output", ("x" * 100 + "\n") * 9 + "x" * 91)
    hungry = await sandbox.run("x = bytearray(1 << 30)")
    assert hungry.status == "failed" and hungry.errors.endswith("MemoryError")
    deep = await sandbox.run("import sys\nsys.setrecursionlimit(10**9)\ndef f(): return f()\nf()")
    assert deep.status in ("failed", "time")


async def test_a_program_raises_no_limit_and_ignores_no_end() -> None:
    sandbox = Sandbox(Limits(cpu_seconds=1, wall_seconds=10.0))
    source = (
        "import resource, signal\n"
        "for number in (signal.SIGXCPU, signal.SIGTERM):\n    signal.signal(number, signal.SIG_IGN)\n"
        "try:\n    resource.setrlimit(resource.RLIMIT_CPU, (99, 99))\n"
        "except (OSError, ValueError):\n    pass\n"
        "while True: pass"
    )
    assert (await sandbox.run(source)).status == "time"


@pytest.mark.parametrize("missing", ["close_files", "close_calls", "_drop_capabilities", "supported"])
def test_what_cannot_be_confined_does_not_run(
    missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a process of its own, since giving up is for good: it ends before the program is compiled."""
    mark = tmp_path / "ran"
    request = {"source": f"open({str(mark)!r}, 'w')", "stdin": "", "cpu_seconds": 1, "memory_mib": 512}
    broken = f"import onward.reward.sandbox.confined as c\nc.{missing} = lambda *a, **k: False\nmain()"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", runner._BOOT.replace("main()", broken), runner._source_folder()],
        input=json.dumps(request),
        env={"ONWARD_PARENT_PID": str(os.getpid())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == confined.CANNOT_CONFINE, done.stderr
    assert done.stderr and not mark.exists()


async def test_a_machine_that_cannot_confine_is_refused_in_one_sentence(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = f"sys.stderr.flush(); os._exit({confined.CANNOT_CONFINE})"
    boot = f"import os, sys; sys.stderr.write('seccomp'); {end}"
    monkeypatch.setattr(runner, "_BOOT", boot)
    with pytest.raises(ConfigError, match=r"cannot confine the programs of a policy: seccomp is missing\."):
        await sandbox.run("print('ran')")


async def test_a_program_that_ends_with_the_code_of_a_refusal_only_fails(sandbox: Sandbox) -> None:
    outcome = await sandbox.run(f"import os\nos._exit({confined.CANNOT_CONFINE})")
    assert outcome.status == "failed"


PLAIN = """
import io, json, os, sys, types
for name in ("onward", "onward.reward", "onward.reward.code", "onward.reward.sandbox"):
    package = sys.modules[name] = types.ModuleType(name)
    package.__path__ = [{folder!r} + "/" + name.replace(".", "/")]
os.environ["ONWARD_PARENT_PID"] = str(os.getppid())
from onward.reward.sandbox.confined import main
program = '''
import os
for what in (os.fork, lambda: open("/etc/passwd"), lambda: os.listdir("/tmp")):
    try:
        what()
        print("done")
    except OSError:
        print("refused")
'''
sys.stdin = io.StringIO(json.dumps(dict(source=program, stdin="", cpu_seconds=2, memory_mib=512)))
main()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_plain_user_is_confined_as_well(open_folder: Path) -> None:
    """The system's Python, since the user cannot read the one of root's home."""
    script = open_folder / "plain.py"
    source = Path(confined.__file__).parents[2]
    package = open_folder / "onward"
    for name in ("reward/sandbox/confined.py", "reward/sandbox/filter.py", "reward/code/isolation.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_bytes((source / name).read_bytes())
    script.write_text(PLAIN.format(folder=str(open_folder)))
    python = "/usr/bin/python3"
    if not Path(python).exists():
        pytest.skip("there is no Python outside of root's home")
    done = subprocess.run(
        [python, "-I", str(script)],
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.split(), done.returncode) == (["refused"] * 3, 0), done.stderr


@pytest.mark.parametrize("machine", sorted(CALLS))
def test_the_filter_allows_no_call_that_starts_connects_or_signals(machine: str) -> None:
    """Walks the filter as the kernel does, for every number."""
    audit, numbers = CALLS[machine]
    code = program(machine)
    allowed = {
        number
        for number in range(600)
        if any(verdict(code, audit, number, 0, second) == 0x7FFF0000 for second in (0, 0x5401))
    }
    assert allowed == set(numbers.values())
    dangerous = {
        "x86_64": {
            41,
            42,
            56,
            57,
            58,
            59,
            62,
            76,
            77,
            90,
            101,
            157,
            165,
            200,
            234,
            272,
            310,
            319,
            322,
            425,
            435,
        },
        "aarch64": {45, 46, 52, 53, 97, 117, 129, 130, 131, 167, 198, 203, 220, 221, 270, 279, 281, 425, 435},
    }
    assert not allowed & dangerous[machine]
    for second in (4, 8, 10, 15, 1031):  # F_SETFL, F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETPIPE_SZ
        assert verdict(code, audit, numbers["fcntl"], 1, second) == 0x00050001
    for second in (0x5412, 0x5452, 0x8901):  # TIOCSTI, FIOASYNC, FIOSETOWN
        assert verdict(code, audit, numbers["ioctl"], 1, second) == 0x00050001
    limit = numbers["prlimit64"]
    assert verdict(program(machine), audit, limit, 4242) == 0x00050001  # of another process
    assert verdict(program(machine), audit, 0x40000000, 0) == 0x00050001  # x86-64's other interface
    assert verdict(program(machine), audit ^ 1, 0, 0) == 0x80000000  # another processor's calls


def verdict(code: bytes, audit: int, number: int, argument: int, second: int = 0) -> int:
    """Runs a filter of the kernel's packet language on one call."""
    import struct

    place, value = 0, 0
    while True:
        kind, if_true, if_false, k = struct.unpack_from("=HBBI", code, place * 8)
        place += 1
        match kind:
            case 0x20:
                value = {0: number, 4: audit, 16: argument, 24: second}[k]
            case 0x15:
                place += if_true if value == k else if_false
            case 0x35:
                place += if_true if value >= k else if_false
            case 0x06:
                return k
