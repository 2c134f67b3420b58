"""What a process that gave up files and network can still reach. Each case runs in a process of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import json, os, socket, sys, tempfile
from pathlib import Path
from onward.reward.code import isolation

code, own, outside, port = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
{before}
closed = isolation.close_files([code], own)

def tried(work):
    try:
        work()
    except Exception as error:
        return type(error).__name__
    return "done"

def fork():
    if (pid := os.fork()) == 0:
        os._exit(0 if tried((outside / "secret").read_text) == "PermissionError" else 1)
    assert os.waitpid(pid, 0)[1] == 0

print(json.dumps({{"closed": closed, **{{name: tried(work) for name, work in {{
    "read code": (code / "module.py").read_text,
    "write code": lambda: (code / "module.py").write_text("x"),
    "import": lambda: __import__("sqlite3"),
    "write own": lambda: (own / "new").write_text("x"),
    "remove own": lambda: (own / "new").unlink(),
    "read outside": (outside / "secret").read_text,
    "list outside": lambda: os.listdir(outside),
    "write outside": lambda: (outside / "new").write_text("x"),
    "truncate outside": lambda: os.truncate(outside / "secret", 0),
    "link out of own": lambda: os.link(outside / "secret", own / "link"),
    "read by a link": lambda: ((own / "soft").symlink_to(outside / "secret"), (own / "soft").read_text()),
    "users": Path("/etc/passwd").read_text,
    "environment of the parent": Path(f"/proc/{{os.getppid()}}/environ").read_bytes,
    "connect": lambda: socket.create_connection(("127.0.0.1", port), 1),
    "in a fork": fork,
}}.items()}}}}))
"""


def run(tmp_path: Path, before: str = "") -> dict[str, Any]:
    for name in ("code", "own", "outside"):
        (tmp_path / name).mkdir()
    (tmp_path / "code" / "module.py").write_text("x = 1\n")
    (tmp_path / "outside" / "secret").write_text("mysecretword")
    with socket.create_server(("127.0.0.1", 0)) as server:
        words = [*(str(tmp_path / name) for name in ("code", "own", "outside")), str(server.getsockname()[1])]
        command = [sys.executable, "-c", PROGRAM.format(before=before), *words]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_only_the_given_code_and_the_own_folder_can_be_reached(tmp_path: Path) -> None:
    found = run(tmp_path)
    if not found.pop("closed"):
        pytest.skip("this kernel has no Landlock")
    may = {"read code", "import", "write own", "remove own", "in a fork"}
    assert {name for name, came in found.items() if came == "done"} == may
    refused = {came for name, came in found.items() if name not in may}
    assert refused <= {"PermissionError", "OSError"}  # the second for a link between two folders
    assert (tmp_path / "outside" / "secret").read_text() == "mysecretword"


def test_a_kernel_without_landlock_is_reported_and_nothing_changes(tmp_path: Path) -> None:
    found = run(tmp_path, before="isolation._CREATE_RULESET = 9999  # no system call has this number")
    assert found["closed"] is False
    assert found["read outside"] == found["connect"] == "done"
