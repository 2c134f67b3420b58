"""pylint and bandit in limited processes: values by hand, bombs, and that nothing is ever executed."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from frozen import freeze

from onward.clock import ManualClock
from onward.contracts import Trajectory, validate
from onward.reward.code import CodeAnalyser, CodeReport, Limits
from onward.reward.code import analyser as module
from onward.reward.code import sandbox as sandbox_module
from onward.reward.code.sandbox import Sandbox
from onward.reward.components import Unscored

CLEAN = 'import os\n\n\ndef name(path):\n    return os.path.basename(path)\n\n\nprint(name("a/b"))\n'
TIGHT = Limits(cpu_seconds=2, wall_seconds=60.0, memory_mib=256)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    made = Sandbox(TIGHT)
    yield made
    made.close()


@pytest.fixture(scope="module")
def analyser() -> Iterator[CodeAnalyser]:
    with CodeAnalyser(limits=TIGHT) as made:
        yield made


def trajectory(*calls: tuple[str, dict[str, Any], Any]) -> Trajectory:
    turns = [
        {
            "turn_id": i + 1,
            "timestamp": "2026-01-01T00:00:00Z",
            "observation": {"type": "user_message", "content": "go"},
            "action": {"type": "tool_call", "tool_name": tool, "tool_args": args},
            "result": {"success": True, "output": output, "error": None},
        }
        for i, (tool, args, output) in enumerate(calls)
    ]
    document = {
        "trajectory_id": "t1",
        "session_id": "s1",
        "agent_id": "a",
        "start_timestamp": "2026-01-01T00:00:00Z",
        "end_timestamp": "2026-01-01T00:01:00Z",
        "turns": turns,
        "task_context": {"task_id": "k", "instructions": "go"},
        "metadata": {"model": "v1"},
    }
    return validate(document, Trajectory)


def files(**texts: str) -> Trajectory:
    return trajectory(*(("write", {"path": f"{k}.py", "content": v}, "ok") for k, v in texts.items()))


def test_clean_code_is_one(analyser: CodeAnalyser) -> None:
    report = analyser.report_now(files(x=CLEAN))
    assert isinstance(report, CodeReport)
    assert (report.linter, report.tests, report.security_criticals) == (1.0, None, 0)
    assert (report.snippets, report.complexity) == (1, 1.0)
    assert [tool.split()[0] for tool in report.tools] == ["bandit", "pylint"]
    assert report.detail["sources"] == {"linter": "onward", "security": "onward"}


def test_the_formula_of_pylint_by_hand(sandbox: Sandbox) -> None:
    text = "import os\nimport sys\n\n\ndef f(a):\n    return b\n"
    facts = sandbox.examine("file", [text])
    assert facts["symbols"] == {"unused-import": 2, "undefined-variable": 1, "unused-argument": 1}
    assert (facts["statements"], facts["counts"]["error"], facts["counts"]["warning"]) == (4, 1, 3)
    assert module.rating_of([facts]) == 0.0
    longer = sandbox.examine(
        "file", [text + "\n\nprint(f(1))\n" + "".join(f"print({i})\n" for i in range(11))]
    )
    assert longer["statements"] == 16
    assert module.rating_of([longer]) == pytest.approx(1 - (5 + 3) / 16)


def test_critical_security_issues(analyser: CodeAnalyser) -> None:
    text = (
        "import subprocess\nimport hashlib\n\n\ndef f(x):\n"
        "    subprocess.call(x, shell=True)\n    return hashlib.md5(x)\n"
    )
    report = analyser.report_now(files(x=text))
    assert isinstance(report, CodeReport)
    assert report.security_criticals == 2
    assert report.detail["security"] == ["B324", "B602"]
    low = analyser.report_now(files(x="import subprocess\n\nassert subprocess\n"))
    assert isinstance(low, CodeReport) and low.security_criticals == 0


def test_comments_that_switch_the_tools_off_have_no_effect(sandbox: Sandbox) -> None:
    bad = "import os, sys\nimport subprocess\nsubprocess.call(sys.argv, shell=True)\nprint(nothing)\n"
    muted = "# pylint: skip-file\n# pylint: disable=all\n" + bad.replace("=True)", "=True)  # nosec")
    plain, quiet = sandbox.examine("file", [bad]), sandbox.examine("file", [muted])
    assert plain["counts"]["error"] == 1 and plain["high"] == 1
    assert (plain["counts"], plain["high"]) == (quiet["counts"], quiet["high"])


def test_third_party_and_missing_imports_cost_nothing_and_are_never_read(sandbox: Sandbox) -> None:
    text = "import numpy as np\nimport yaml\nfrom pylint.lint import nothing\nfrom . import sibling\n\n"
    facts = sandbox.examine("file", [text + "print(np.zero.ones, yaml.no_such_name(1), nothing, sibling)\n"])
    assert facts["symbols"] == {}


def test_docstrings_and_ends_of_lines_cost_nothing(sandbox: Sandbox) -> None:
    assert (
        sandbox.examine(
            "file",
            [
                "class Point:\n    x = 1   \n    y = 2\n\n    def f(self):\n        return self.x\n\n"
                "    def g(self):\n        return self.y\n\n\n\n"
            ],
        )["symbols"]
        == {}
    )
    assert sandbox.examine("file", ["print(1)"])["symbols"] == {}


def test_a_file_that_is_not_python_rates_zero_and_a_quotation_is_no_python(analyser: CodeAnalyser) -> None:
    report = analyser.report_now(files(x="def f(:\n    pass\n\n"))
    assert isinstance(report, CodeReport)
    assert (report.linter, report.security_criticals) == (0.0, None)
    assert report.detail["linter"]["lines_unparsed"] == 2
    shown = trajectory(("save", {"code": "def f(:\n    return 1\nimport os\n"}, "ok"))
    report = analyser.report_now(shown)
    assert isinstance(report, CodeReport)
    assert (report.linter, report.security_criticals, report.snippets) == (None, None, 0)


def test_cells_share_their_names_and_shell_escapes_are_left_out(sandbox: Sandbox) -> None:
    cells = ["%matplotlib inline\nimport os\n!pip install x", "x = os.name\nx", "display(await thing(x))"]
    facts = sandbox.examine("session", cells)
    assert (facts["lines_unparsed"], facts["counts"]["error"], facts["counts"]["warning"]) == (0, 0, 0)
    assert sandbox.examine("session", ["print(1)", "this is\nno python"])["lines_unparsed"] == 2


def test_complexity_is_mccabes(sandbox: Sandbox) -> None:
    text = "def f(a):\n    if a:\n        return 1\n    for b in a:\n        while b:\n            b -= 1\n"
    assert sandbox.examine("file", [text])["complexity"] == 4


@pytest.mark.parametrize(
    ("text", "reasons"),
    [
        ("(" * 60_000 + ")" * 60_000, None),
        ("x = " + "[" * 60_000, None),
        ("x = " + "1+" * 50_000 + "1\n", {"nesting", "memory", "crashed"}),
        ("x = " + "-" * 100_000 + "1\n", {"nesting", "memory", "crashed"}),
        ("x" + ".a" * 50_000 + "\n", {"nesting", "memory", "crashed"}),
        ("x" + "()" * 5_000 + "\n", {"nesting", "memory", "crashed"}),
        ("x = 1\n" * 20_000, {"cpu_time", "memory"}),
        ("x = [" + "[0] * 99, " * 12_000 + "]\nfor a in x:\n    print(a.b)\n", {"cpu_time", "memory"}),
    ],
    ids=["parentheses", "brackets", "sums", "signs", "attributes", "calls", "lines", "lists"],
)  # fmt: skip
def test_a_bomb_ends_with_a_name_or_is_no_python(
    sandbox: Sandbox, text: str, reasons: set[str] | None
) -> None:
    facts = sandbox.examine("file", [text])
    if reasons is None:
        assert facts["parsed"] is False and facts["lines_unparsed"] == 1
    else:
        assert facts["failed"] in reasons
    assert sandbox.examine("file", [CLEAN])["symbols"] == {}, "the next one is not disturbed"


@pytest.mark.parametrize(
    "text",
    [
        "x = 10**10**10\nprint(x + 1)\n",
        "x = 1 << 10**10\nprint(x)\n",
        "x = 'a' * 10**11\ny = [0] * 10**11\nprint(x + 'b', y)\n",
        "print(f'" + "{1}" * 3_000 + "')\n",
        "print('%s' % ('x' * 10**9), '{:>1000000000}'.format(1))\n",
        "".join(f"def f{i}():\n    return f{i + 1}() or f{i + 1}()\n\n\n" for i in range(200)) + "f0().x()\n",
        "\ufeffprint(1)\n",
        "# -*- coding: utf-32 -*-\nprint(1)\n",
        "# coding: nonsense\nprint(1)\n",
        "print(1)\r\nprint(2)\nprint(3)\r\n",
        "print('\u2028\U0001f600')\n",
        " " * 10_000 + "\nprint(1)\n",
    ],
    ids=[
        "power",
        "shift",
        "repeat",
        "fstring",
        "format",
        "doubling",
        "bom",
        "utf32",
        "codec",
        "ends",
        "unicode",
        "blank",
    ],
)
def test_what_would_grow_if_it_were_computed_is_rated_in_bounded_time(sandbox: Sandbox, text: str) -> None:
    facts = sandbox.examine("file", [text])
    assert facts.get("parsed") or facts["failed"] in {"cpu_time", "memory", "nesting", "linter_error"}


@pytest.mark.parametrize("text", ["x = 1\0\n", "x = '\ud800'\n"], ids=["nul", "surrogate"])
def test_text_that_no_file_can_hold_is_not_python(sandbox: Sandbox, text: str) -> None:
    assert sandbox.examine("file", [text])["parsed"] is False


def test_a_failure_makes_the_trajectory_unscored_and_says_why(analyser: CodeAnalyser) -> None:
    assert analyser.report_now(files(good=CLEAN, bad="x = " + "1+" * 50_000 + "1\n")) == Unscored(
        "code_analysis", "nesting: a file"
    )
    assert analyser.report_now(files(huge="x = 1\n" * 1_000_000)) == Unscored(
        "code_analysis", "too_large: a file"
    )


def test_nothing_is_executed(analyser: CodeAnalyser, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        mark, port = tmp_path / "mark", server.getsockname()[1]
        text = (
            f"import os\nimport socket\nimport subprocess\n\nopen({str(mark)!r}, 'w').write('x')\n"
            f"os.system('touch {mark}')\nsubprocess.run(['touch', {str(mark)!r}])\n"
            f"socket.create_connection(('127.0.0.1', {port}))\n"
        )
        calls = [
            ("write", {"path": name, "content": text}, "ok")
            for name in (
                "random.py",
                "pylint.py",
                "sitecustomize.py",
                "conftest.py",
                "pylintrc.py",
                "astroid/__init__.py",
            )
        ]
        calls.append(("code_execution_tool", {"runtime": "python", "code": text}, "ok"))
        assert isinstance(analyser.report_now(trajectory(*calls)), CodeReport)
        with pytest.raises(TimeoutError):
            server.accept()
    assert not mark.exists()


EVIL_TOOL = """
import onward.reward.code.child as child
class Evil(child.Lint):
    def examine(self, how, cells, folder):
        try:
            return {"read": open(cells[0]).read()}
        except OSError as error:
            return {"read": type(error).__name__}
child.Lint = Evil
"""


def tool_that_reads(monkeypatch: pytest.MonkeyPatch, *, without_landlock: bool = False) -> None:
    """Makes the child's tools open the file that a piece of code names."""
    boot, closed = sandbox_module._BOOT, "child.close_files = lambda *_: False\n" if without_landlock else ""
    changed = boot.replace(
        "\nfrom onward.reward.code.child", f"\n{EVIL_TOOL}{closed}from onward.reward.code.child"
    )
    assert changed != boot
    monkeypatch.setattr(sandbox_module, "_BOOT", changed)


def test_a_tool_that_code_took_over_reads_no_file_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("mysecretword")
    tool_that_reads(monkeypatch)
    taken = Sandbox(TIGHT)
    outside, users, own = (
        taken.examine("file", [path]) for path in (str(tmp_path / "secret"), "/etc/passwd", os.__file__)
    )
    taken.close()
    if taken.files == "open":
        pytest.skip("this kernel has no Landlock")
    assert outside == users == {"read": "PermissionError"}
    assert own["read"].startswith('r"""OS routines'), "Python's own files are open"


@pytest.mark.parametrize("required", [False, True])
def test_without_landlock_code_is_rated_with_a_warning_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, required: bool
) -> None:
    (tmp_path / "secret").write_text("mysecretword")
    tool_that_reads(monkeypatch, without_landlock=True)
    weak = Sandbox(TIGHT, isolation_required=required)
    read = weak.examine("file", [str(tmp_path / "secret")])
    weak.close()
    assert read == ({"failed": "not_isolated"} if required else {"read": "mysecretword"})
    assert "no Landlock" in caplog.text and "reward.code_isolation" in caplog.text


def test_files_named_like_the_tools_are_harmless(analyser: CodeAnalyser) -> None:
    poison = "raise SystemExit(1)\n"
    names = ("random", "pylint", "sitecustomize", "os", "json")
    uses = "import random\nimport json\n\nprint(random.random(), json.dumps(1))\n"
    report = analyser.report_now(files(**dict.fromkeys(names, poison), uses=uses))
    assert isinstance(report, CodeReport)
    assert report.detail["linter"]["findings"] == {}


def test_configuration_of_the_user_and_of_the_agent_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "pylintrc").write_text('[MASTER]\ninit-hook=\'open("hooked", "w")\'\ndisable=all\n')
    (tmp_path / ".bandit").write_text("[bandit]\nskips = B602\n")
    program = (
        "from onward.reward.code.sandbox import Sandbox\n"
        "s = Sandbox()\n"
        "text = 'import os, subprocess\\nsubprocess.call(1, shell=True)\\n'\n"
        "print(sorted(s.examine('file', [text])['symbols']))\n"
        "s.close()\n"
    )
    environment = {**os.environ, "PYLINTRC": str(tmp_path / "pylintrc"), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "['multiple-imports', 'unused-import']", done.stderr
    assert not (tmp_path / "hooked").exists()


def test_results_in_the_trajectory_come_first_and_missing_parts_are_made(analyser: CodeAnalyser) -> None:
    wrote = ("write", {"path": "x.py", "content": "import os\n"}, "ok")
    rated = ("bash", {"command": "pylint x.py"}, "Your code has been rated at 9.00/10")
    tested = ("bash", {"command": "pytest"}, "3 passed, 1 failed in 1s")
    report = analyser.report_now(trajectory(wrote, rated, tested))
    assert isinstance(report, CodeReport)
    assert (report.linter, report.tests, report.security_criticals) == (0.9, 0.75, 0)
    assert report.detail["sources"]["linter"] == {"pylint x.py": 0.9}
    assert report.detail["sources"]["security"] == "onward"


def test_no_code_is_none(analyser: CodeAnalyser) -> None:
    assert analyser.report_now(trajectory(("bash", {"command": "ls"}, "x"))) is None


def test_without_the_tools_results_count_and_code_is_left_unrated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "installed", tuple)
    with CodeAnalyser() as bare:
        report = bare.report_now(files(x=CLEAN))
        assert isinstance(report, CodeReport)
        assert (report.linter, report.detail["not_installed"]) == (None, True)
        tested = bare.report_now(trajectory(("bash", {"command": "pytest"}, "1 passed in 1s")))
        assert isinstance(tested, CodeReport) and tested.tests == 1.0
        assert bare.pid is None


async def test_a_replay_gives_the_same_answer_without_a_tool() -> None:
    async with CodeAnalyser() as analyser:
        first = await analyser.report(files(x=CLEAN, y="import os\n"))
        assert analyser.pid is not None
        freeze(analyser.pid)
        try:
            assert await analyser.report(files(x=CLEAN, y="import os\n")) == first
        finally:
            os.kill(analyser.pid, signal.SIGCONT)


async def test_a_child_that_dies_is_started_again() -> None:
    async with CodeAnalyser() as analyser:
        before = await analyser.report(files(x=CLEAN))
        pid = analyser.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        texts = [f"{CLEAN}\nprint({i})\n" for i in range(6)]
        reports = await asyncio.gather(*(analyser.report(files(x=text)) for text in texts))
        assert all(isinstance(report, CodeReport) and report.linter == 1.0 for report in reports)
        assert isinstance(before, CodeReport) and analyser.pid not in (None, pid)


def test_a_child_that_cannot_start_is_not_started_for_each_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    monkeypatch.setattr(sandbox_module, "_BOOT", "raise SystemExit(3)")
    broken = Sandbox(TIGHT, clock=clock)
    assert [broken.examine("file", ["x = 1\n"]) for _ in range(5)] == [{"failed": "child_died"}] * 5
    assert broken.starts == 1
    monkeypatch.undo()
    asyncio.run(clock.advance(11.0))
    assert broken.examine("file", ["x = 1\n"])["parsed"]
    broken.close()


async def test_stop_ends_the_child_and_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    analyser = CodeAnalyser()
    await analyser.start()
    await analyser.report(files(x=CLEAN))
    pid = analyser.pid
    assert pid is not None
    await analyser.stop()
    assert not psutil.pid_exists(pid)
    assert list(tmp_path.iterdir()) == []
    assert await asyncio.to_thread(analyser.report_now, files(x="print(2)\n")) == Unscored(
        "code_analysis", "stopped: a file"
    )


def test_the_child_does_not_outlive_a_parent_that_is_killed() -> None:
    program = (
        "from onward.reward.code.sandbox import Sandbox\nimport time\n"
        "s = Sandbox()\ns.examine('file', ['print(1)'])\nprint(s.pid, flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        psutil.wait_procs([child], timeout=60)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.long
def test_what_the_child_has_read_before_changes_no_answer() -> None:
    """Facts about our own files: from a child that has just started, and from one that is warm."""
    program = (
        "import json, sys, tempfile\nfrom pathlib import Path\n"
        "from onward.reward.code.lint import Lint\n"
        "lint, folder = Lint(), Path(tempfile.mkdtemp())\n"
        "for _ in lint.warm_up(folder) if sys.argv[1] == 'warm' else ():\n    pass\n"
        "print(json.dumps(lint.examine('file', [Path(sys.argv[2]).read_text()], folder)))\n"
    )
    root = Path(module.__file__).parents[2]
    for name in ("processes.py", "reward/code/child.py"):
        cold, warm = (
            subprocess.run([sys.executable, "-c", program, state, str(root / name)], capture_output=True)
            for state in ("cold", "warm")
        )
        assert cold.stdout == warm.stdout != b"", (name, cold.stderr, warm.stderr)


def test_the_child_sees_no_network_and_no_environment(sandbox: Sandbox) -> None:
    sandbox.examine("file", [CLEAN])
    assert sandbox.pid is not None
    names = {entry.split(b"=")[0] for entry in Path(f"/proc/{sandbox.pid}/environ").read_bytes().split(b"\0")}
    assert names <= {
        b"",
        b"ONWARD_PARENT_PID",
        b"PATH",
        b"LANG",
        b"LC_ALL",
        b"TMPDIR",
        b"PYLINTHOME",
        b"HOME",
        b"LC_CTYPE",
    }
    if sandbox.network == "namespace":
        interfaces = Path(f"/proc/{sandbox.pid}/net/dev").read_text().splitlines()[2:]
        assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
