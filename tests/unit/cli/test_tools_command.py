"""``onward tools`` and the options of ``onward mcp``."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from commands import run_text
from docs_blocks import run_command

from onward.contracts.examples import TRAJECTORY
from onward.tools import SCOPES, TOOLS, mcp_tools, openai_tools


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")


def test_the_list_and_the_schemas_are_those_of_the_package() -> None:
    code, output = run_command("onward tools list --json")
    assert code == 0
    rows = json.loads(output)
    assert [(row["tool"], row["scope"]) for row in rows] == [(one.name, one.scope) for one in TOOLS.values()]
    assert all(name in run_command("onward tools list")[1] for name in TOOLS)
    code, output = run_command("onward tools list --scope release,train --json")
    allowed = [one.name for one in TOOLS.values() if one.scope != "read"]
    assert [row["tool"] for row in json.loads(output)] == allowed
    code, output = run_command("onward tools schema")
    assert json.loads(output) == openai_tools(SCOPES)
    code, output = run_command("onward tools schema --format mcp --scope read")
    assert json.loads(output) == mcp_tools({"read"})


def test_a_call_prints_what_an_agent_would_get(tmp_path: Path) -> None:
    given = json.dumps({"trajectory_data": TRAJECTORY}).replace("'", "")
    code, output = run_command(f"onward tools call validate_trajectory '{given}'")
    assert (code, json.loads(output)["valid"]) == (0, True)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("onward tools call status", "Nothing ever ran on"),
        ("onward tools call nothing", "There is no tool 'nothing'"),
        ("onward tools call status '{\"part\": 7}'", "Argument 'part' of status is not usable"),
        ("onward tools call status '[1]'", "The arguments are '[1]': give one JSON object in quotes"),
        ("onward tools call status '{'", "The arguments are '{': give one JSON object in quotes"),
        ("onward tools call start_training --scope read", "start_training needs the scope 'train'"),
        ("onward tools schema --scope admin", "--scope is 'admin': expected one or more of read,train"),
        ("onward tools list --scope all", "--scope is 'all': expected one or more of read,train,release"),
        ("onward mcp --scope ''", "--scope is ''"),
        ("onward tools choose --base-url http://127.0.0.1:9 --model m", "does not answer"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(line: str, words: str) -> None:
    code, output = run_command(line)
    assert code == 2 and words in output and len(output.splitlines()) == 1, output


def test_the_server_says_that_nothing_ever_ran_and_serves(tmp_path: Path) -> None:
    done = run_text(tmp_path, "mcp", "--dir", "nothere")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == (
        "Nothing ever ran on nothere: start it with 'onward up', or name its folder with --dir.\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_downloads_of_the_server_are_a_folder() -> None:
    _, output = run_command("onward mcp --help")
    assert "--downloads FOLDER" in " ".join(output.split())


@pytest.mark.parametrize("command", ["onward mcp --help", "onward tools call --help"])
def test_the_help_teaches_with_examples(command: str) -> None:
    code, output = run_command(command)
    assert code == 0 and output.count("onward ") >= 3
    assert "train" in output and "release" in output


class Chat(BaseHTTPRequestHandler):
    """A model that calls ``status`` for each question about health, and no tool else."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({**body, "path": self.path, "key": self.headers.get("Authorization")})
        calls = [{"function": {"name": "status", "arguments": "{}"}}]
        is_health = "healthy" in body["messages"][-1]["content"]
        message = {"role": "assistant", "tool_calls": calls} if is_health else {"content": "no"}
        answer = json.dumps({"choices": [{"message": message}]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def chat() -> Iterator[str]:
    Chat.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Chat)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()


def test_a_model_behind_a_server_is_measured(
    chat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-the-" + "model")
    requests = (
        ("Is all healthy?", "status", "plain"),
        ("Hello!", None, "none"),
        ("Stop job 1.", "cancel_job", "plain"),
    )
    lines = [
        json.dumps({"request": request, "tools": [tool], "language": "en", "kind": kind})
        for request, tool, kind in requests
    ]
    (tmp_path / "cases.jsonl").write_text("\n".join(lines))
    line = f"onward tools choose --base-url {chat} --model m1 --cases cases.jsonl"
    code, output = run_command(f"{line} --json")
    assert code == 0
    found = json.loads(output)
    assert found["figures"] == {"all": [2, 3], "plain": [1, 2], "none": [1, 1], "English": [2, 3]}
    assert [one["chosen"] for one in found["answers"]] == ["status", None, None]
    asked = Chat.asked[0]
    assert asked["path"] == "/v1/chat/completions" and asked["tools"] == openai_tools(SCOPES)
    assert (asked["model"], asked["key"]) == ("m1", "Bearer key-of-the-model")
    code, output = run_command(line)
    assert '"Stop job 1.": no tool, not cancel_job' in output and "67%" in output
