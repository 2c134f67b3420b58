"""The web side of an Agent Zero: its page, its scripts, its API with login and CSRF, and the plugin in its
folder.

Written for the tests, after the host's behaviour: an answer's bar is cleared and rebuilt on each streamed
update, extensions get ``{results: [{args, result}]}``, and a call without the CSRF token is refused.
"""

from __future__ import annotations

import importlib.util
import secrets
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles

from onward.integrations.agent_zero import install
from onward.integrations.agent_zero.plugin.helpers.onward_approvals import STORE as APPROVALS

FUNCTIONS = (
    "monologue", "hist_add_user_message", "hist_add_ai_response", "hist_add_warning", "hist_add_tool_result",
    "process_tools", "handle_exception", "communicate", "kill_process", "reset", "nudge", "remove",
)  # fmt: skip
"""Functions of the host with implicit extension points (facts, C2)."""
POINTS = (
    "agent_init", "user_message_ui", "monologue_start", "monologue_end", "message_loop_start",
    "message_loop_end", "message_loop_prompts_before", "message_loop_prompts_after", "system_prompt",
    "before_main_llm_call", "chat_model_call_before", "chat_model_call_after", "hist_add_before",
    "hist_add_tool_result", "tool_execute_before", "tool_execute_after", "process_chain_end", "job_loop",
    "startup_migration", "set_messages_after_loop", "json_api_call_after",
    "sidebar-quick-actions-main-start",
)  # fmt: skip
"""Named extension points of the host (facts, C1 to C4)."""
PAGE = """<!doctype html><html lang=en><head><title>Agent Zero</title></head><body>
<main id=chat-history></main><div id=toasts></div>
<script type=module>
import feedback from "/plugins/onward/extensions/webui/set_messages_after_loop/onward-feedback.js";
import { createActionButton } from "/components/messages/action-buttons/simple-action-buttons.js";
import { callJsonApi } from "/js/api.js";
globalThis.getContext = () => "chat0001";
globalThis.callJsonApi = callJsonApi;
// A code block in an answer has a bar of its own.
function drawContent(content, text) {
  const [before, code] = text.split("```");
  content.textContent = before;
  if (code === undefined) return;
  const block = document.createElement("div");
  block.className = "code-block-wrapper";
  block.innerHTML = "<pre><code></code></pre><div class=step-action-buttons></div>";
  block.querySelector("code").textContent = code;
  block.querySelector(".step-action-buttons").append(createActionButton("copy", "", () => {}));
  content.append(block);
}
globalThis.setMessages = async (messages) => {
  const results = [];
  for (const args of messages) {
    let element = document.getElementById("message-" + args.id);
    if (!element) {
      element = document.createElement("div");
      element.id = "message-" + args.id;
      element.innerHTML = "<div class=message><div class=message-body><div class=msg-content></div></div>"
        + "<div class=step-action-buttons></div></div>";
      document.getElementById("chat-history").append(element);
    }
    drawContent(element.querySelector(".msg-content"), args.content);
    const bar = element.querySelector(".message > .step-action-buttons");
    bar.textContent = "";
    bar.append(createActionButton("copy", "", () => {}));
    for (const icon of globalThis.others || []) bar.append(createActionButton(icon, "Another's", () => {}));
    results.push({ args, result: { element } });
  }
  await feedback({ messages, results });
};
globalThis.ready = true;
</script></body></html>"""
API_JS = """
let token = null;
async function csrf() {
  if (!token) token = (await (await fetch("/csrf_token", { credentials: "same-origin" })).json()).token;
  return token;
}
export async function callJsonApi(endpoint, data) {
  const url = endpoint.startsWith("/api/") ? endpoint : "/api/" + endpoint.replace(/^\\//, "");
  const call = { endpoint, data };
  const response = await fetch(url, { method: "POST", credentials: "same-origin", body: JSON.stringify(data),
    headers: { "Content-Type": "application/json", "X-CSRF-Token": await csrf() } });
  call.response = response;
  if (!response.ok) throw new Error(await response.text());
  call.result = await response.json();
  if (!endpoint.includes("/plugins/onward/")) {
    const after = await import("/plugins/onward/extensions/webui/json_api_call_after/onward-signals.js");
    await after.default(call);
  }
  return call.result;
}
"""
BUTTONS_JS = """
const KNOWN = { copy: ["content_copy", "Copy"] };
export function createActionButton(type, label, handler) {
  const [icon, text] = KNOWN[type] || [type, label];
  const button = document.createElement("button");
  button.type = "button";
  button.className = "action-button action-" + type;
  button.title = text;
  button.setAttribute("aria-label", text);
  const image = document.createElement("span");
  image.className = "material-symbols-outlined";
  image.setAttribute("aria-hidden", "true");
  image.textContent = icon;
  button.append(image);
  button.addEventListener("click", async (event) => {
    event.stopPropagation();
    await handler();
  });
  return button;
}
"""
TOASTS_JS = """
export function toastFrontendError(message, title) {
  const toast = document.createElement("div");
  toast.setAttribute("role", "alert");
  toast.textContent = title + ": " + message;
  document.getElementById("toasts").append(toast);
}
"""


def make_agent_zero(root: Path) -> Path:
    """Makes the files of an Agent Zero that an installation looks at, with the plugin's extension points."""
    (root / "helpers").mkdir(parents=True)
    (root / "webui" / "js").mkdir(parents=True)
    (root / "usr" / "plugins").mkdir(parents=True)
    (root / "agents" / "agent0").mkdir(parents=True)
    (root / "helpers" / "extension.py").write_text("def extensible(function):\n    return function\n")
    (root / "agent.py").write_text(
        "".join(f"def {name}(): ...\n" for name in FUNCTIONS) + repr(POINTS) + "\n"
    )
    return root


class Chat:
    """An ``AgentContext`` of the host, as far as the plugin reads it."""

    def __init__(self, chat_id: str, kind: str = "user") -> None:
        self.id, self.type, self.data = chat_id, types.SimpleNamespace(value=kind), {}
        self.log = types.SimpleNamespace(logs=[], log=self._log)
        self.running = False

    def _log(self, **item: Any) -> types.SimpleNamespace:
        self.log.logs.append(made := types.SimpleNamespace(**item))
        return made

    def is_running(self) -> bool:
        return self.running


@contextmanager
def host_modules(root: Path, runtime: Any, chats: dict[str, Chat]) -> Iterator[None]:
    """Puts the host's modules and ``runtime`` in place of the plugin's own for the block. No step waits for
    an approval at its begin, whatever a host before it left."""
    before, path = dict(sys.modules), list(sys.path)
    _remove_modules()
    sys.path.insert(0, str(root))

    class ApiHandler:
        def __init__(self, app: Any, thread_lock: Any) -> None: ...
        @classmethod
        def requires_auth(cls) -> bool:
            return True

        @classmethod
        def requires_csrf(cls) -> bool:
            return True

        @classmethod
        def requires_api_key(cls) -> bool:
            return False

    class Extension:
        def __init__(self, agent: Any = None) -> None:
            self.agent = agent

    class AgentContext:
        get = staticmethod(chats.get)
        all = staticmethod(lambda: list(chats.values()))

    helpers = types.ModuleType("helpers")
    helpers.__path__ = []  # type: ignore[attr-defined]
    sys.modules["helpers"] = helpers
    _module("helpers.api", ApiHandler=ApiHandler, Request=object, Response=object)
    _module("helpers.extension", Extension=Extension)
    _module("agent", AgentContext=AgentContext)
    _module("usr.plugins.onward.helpers.runtime", get=lambda: runtime)
    helpers_of_plugin = importlib.import_module("usr.plugins.onward.helpers")
    vars(helpers_of_plugin)["runtime"] = sys.modules["usr.plugins.onward.helpers.runtime"]
    try:
        yield
    finally:
        sys.path[:] = path
        _remove_modules()
        kept = ("helpers", "usr", APPROVALS)
        sys.modules.update({name: one for name, one in before.items() if name.split(".")[0] in kept})


def _remove_modules() -> None:
    of_host = ("helpers", "agent", "usr", APPROVALS)
    for name in [name for name in sys.modules if name.split(".")[0] in of_host]:
        del sys.modules[name]


def _module(name: str, **content: Any) -> None:
    vars(made := types.ModuleType(name)).update(content)
    sys.modules[name] = made


def load(file: Path, base: type) -> type:
    """Loads a file as the host does: outside of ``sys.modules``; returns its one subclass of ``base``."""
    spec = importlib.util.spec_from_file_location(f"_loaded_{file.stem}_{secrets.token_hex(4)}", file)
    assert spec is not None and spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    (found,) = [
        one for one in vars(module).values()
        if isinstance(one, type) and issubclass(one, base) and one is not base
    ]  # fmt: skip
    return found


def handler(root: Path, name: str) -> Any:
    """Returns the plugin's API handler ``name``."""
    base = sys.modules["helpers.api"].ApiHandler
    return load(root / install.PLUGIN / "api" / f"{name}.py", base)(None, None)


def web(root: Path, *, api_key: str) -> FastAPI:
    """The host's web server: its scripts, the plugin's files, and the API under its rules."""
    app = FastAPI()
    login, token = secrets.token_hex(8), secrets.token_hex(8)
    scripts = {
        "/js/api.js": API_JS,
        "/components/messages/action-buttons/simple-action-buttons.js": BUTTONS_JS,
        "/components/notifications/notification-store.js": TOASTS_JS,
    }
    for path, text in scripts.items():
        app.add_api_route(path, _script(text))
    app.mount("/plugins/onward", StaticFiles(directory=root / install.PLUGIN))

    @app.get("/")
    async def page() -> HTMLResponse:
        answer = HTMLResponse(PAGE)
        answer.set_cookie("session", login, httponly=True, samesite="strict")
        return answer

    @app.get("/csrf_token")
    async def csrf() -> dict[str, str]:
        return {"token": token}

    @app.post("/api/plugins/onward/{name}")
    async def call(name: str, request: Request) -> Response:
        found = handler(root, name)
        if found.requires_api_key() and request.headers.get("X-API-KEY") != api_key:
            return PlainTextResponse("API key required", 401)
        if found.requires_auth() and request.cookies.get("session") != login:
            return PlainTextResponse("Login required", 302, headers={"Location": "/login"})
        if found.requires_csrf() and request.headers.get("X-CSRF-Token") != token:
            return PlainTextResponse("CSRF token missing or invalid", 403)
        return JSONResponse(await found.process(await request.json(), request))

    @app.post("/api/{path:path}")
    async def other(path: str) -> dict[str, bool]:
        return {"ok": True}

    return app


def _script(text: str) -> Any:
    async def script() -> Response:
        return Response(text, media_type="text/javascript")

    return script
