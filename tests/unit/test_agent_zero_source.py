"""The plugin against Agent Zero's own source, where ``AGENT_ZERO_SOURCE`` names a checkout of its version.

Each hook file must lie at a point that the source has, and take the keywords that the source gives. A version
that moves one fails here, and not silently in a chat.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path

import pytest
from agent_zero_host import PLUGIN

SOURCE = os.environ.get("AGENT_ZERO_SOURCE", "")
POINTS = PLUGIN / "extensions" / "python"
HOOKS = sorted(path.relative_to(POINTS).as_posix() for path in POINTS.rglob("*.py"))
KEYWORDS = {
    "chat_model_call_before": {"call_data"},
    "chat_model_call_after": {"call_data", "response", "reasoning"},
    "tool_execute_before": {"tool_args", "tool_name"},
    "tool_execute_after": {"response", "tool_name"},
}
SYNC = {"hist_add_user_message", "hist_add_ai_response", "hist_add_warning", "hist_add_tool_result"} | {
    "kill_process", "reset", "nudge", "remove"
}  # fmt: skip
STRUCTURES = {
    "helpers/persist_chat.py": ('CHATS_FOLDER = "usr/chats"', 'CHAT_FILE_NAME = "chat.json"', '"agents"'),
    "helpers/history.py": ("class Topic", "class Bulk", '"_cls"', "new_topic", "self.messages"),
    "helpers/extension.py": ("def extensible", "def call_extensions_async", "def call_extensions_sync"),
    "helpers/plugins.py": ("def get_plugin_config",),
    "helpers/api.py": (
        "class ApiHandler",
        "async def process(self, input",
        "def requires_api_key",
        "return cls.requires_auth()",
        '"X-CSRF-Token"',
        "plugins.find_plugin_dir",
    ),
    "webui/js/messages.js": (
        'callJsExtensions("set_messages_after_loop", context)',
        "results",
        "args: arguments[0]",
        "step-action-buttons",
        "message-body",
    ),
    "webui/js/api.js": ("function callJsonApi", "X-CSRF-Token", "json_api_call_after"),
    "webui/components/messages/action-buttons/simple-action-buttons.js": ("createActionButton",),
    "webui/components/notifications/notification-store.js": ("toastFrontendError",),
    "agent.py": ("_superior", "class UserMessage", "InterventionException", "last_user_message", "iteration"),
}
needs_source = pytest.mark.skipif(not SOURCE, reason="AGENT_ZERO_SOURCE names no checkout")


def _class(path: str) -> ast.ClassDef:
    tree = ast.parse((POINTS / path).read_text())
    (found,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    return found


@pytest.mark.parametrize("path", HOOKS)
def test_a_hook_file_obeys_the_rules_of_the_host(path: str) -> None:
    """One class, imports of the standard library and ``helpers.extension`` alone, nothing awaited, and every
    statement within a ``try`` that catches all errors."""
    tree = ast.parse((POINTS / path).read_text())
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else alias.name
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    assert imported <= sys.stdlib_module_names | {"helpers.extension"}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    (execute,) = [node for node in _class(path).body if isinstance(node, functions)]
    parts = path.split("/")
    is_sync = parts[-3] in SYNC if parts[0] == "_functions" else False
    assert isinstance(execute, ast.FunctionDef if is_sync else ast.AsyncFunctionDef)
    assert not any(isinstance(node, ast.Await) for node in ast.walk(execute))
    (only,) = execute.body
    assert isinstance(only, ast.Try)
    assert [ast.unparse(handler.type) for handler in only.handlers if handler.type] == ["Exception"]
    assert not any(isinstance(node, ast.Raise) for node in ast.walk(execute))


def test_the_file_names_sort_around_those_that_handle_secrets() -> None:
    (begin,) = [Path(path).name for path in HOOKS if path.startswith("tool_execute_before/")]
    (end,) = [Path(path).name for path in HOOKS if path.startswith("tool_execute_after/")]
    assert begin < "_10_unmask_secrets.py" and end > "_10_mask_secrets.py"


@needs_source
@pytest.mark.parametrize("path", HOOKS)
def test_the_source_has_the_point_and_gives_the_keywords(path: str) -> None:
    root = Path(SOURCE)
    parts = path.split("/")
    if parts[0] == "_functions":
        module, kind, function = parts[1], parts[2], parts[3]
        source = (root / f"{module}.py").read_text()
        body = source[source.index(f"class {kind}") :]
        assert re.search(rf"@(extension\.)?extensible\s+(async )?def {function}\(", body), path
        return
    given = [
        match
        for file in root.rglob("*.py")
        if not {"extensions", "usr"} & set(file.relative_to(root).parts)
        for match in re.findall(rf'"{parts[0]}"(.{{0,400}})', file.read_text(errors="replace"), re.DOTALL)
    ]
    assert given, path
    for keyword in KEYWORDS.get(parts[0], ()):
        assert any(f"{keyword}=" in text for text in given), (path, keyword)


@needs_source
@pytest.mark.parametrize("file", STRUCTURES)
def test_the_source_has_the_structures_that_are_read(file: str) -> None:
    text = (Path(SOURCE) / file).read_text()
    for name in STRUCTURES[file]:
        assert name in text, (file, name)
