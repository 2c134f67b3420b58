"""An Ollama server to test against: ``/api`` with Ollama's field names, our tiny policy underneath.

Names of fields come from Ollama's ``docs/openapi.yaml`` and ``docs/api.md``; those of ``adapters`` and the
refusal of newer versions from ``server/create.go``. The log-probs are those of the plain softmax, as Ollama's
are. No real server was asked: none is available on these machines.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

BASE = "tiny:latest"


class FakeOllama:
    def __init__(self, folder: Path) -> None:
        from onward.lm.policy import Policy

        self.policy = Policy.load(folder)
        self.models: dict[str, str] = {BASE: "b" * 64}
        """Name → digest, of all models."""
        self.loaded: dict[str, Any] = {}
        """Name → ``keep_alive``, of the models in memory."""
        self.blobs: dict[str, bytes] = {}
        self.requests: list[dict[str, Any]] = []
        self.takes_adapters = True
        self.ignores_adapters = False
        self.without_logprobs = False
        self._lock = threading.Lock()
        self._made = tempfile.TemporaryDirectory()
        config = uvicorn.Config(
            self._app(), host="127.0.0.1", port=0, log_level="error", log_config=None, lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> FakeOllama:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)
        self._made.cleanup()

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/api/version")
        async def version() -> dict[str, str]:
            return {"version": "0.34.0"}

        @app.get("/api/tags")
        async def tags() -> dict[str, Any]:
            cards = [{"name": name, "model": name, "digest": digest} for name, digest in self.models.items()]
            return {"models": cards}

        @app.get("/api/ps")
        async def ps() -> dict[str, Any]:
            cards = [{"name": name, "model": name, "digest": self.models[name]} for name in self.loaded]
            return {"models": cards}

        @app.head("/api/blobs/{digest}")
        async def has(digest: str) -> Response:
            return Response(status_code=200 if digest in self.blobs else 404)

        @app.post("/api/blobs/{digest}")
        async def put(digest: str, request: Request) -> Response:
            body = await request.body()
            if digest != "sha256:" + hashlib.sha256(body).hexdigest():
                return JSONResponse({"error": "digest does not match"}, 400)
            self.blobs[digest] = body
            return Response(status_code=201)

        @app.post("/api/create")
        async def create(request: Request) -> Response:
            body = await request.json()
            if not self.takes_adapters:
                return JSONResponse({"error": "LoRA adapters are no longer supported"}, 400)
            if body["from"] not in self.models or not set(body["adapters"].values()) <= set(self.blobs):
                return JSONResponse({"error": "model or blob not found"}, 400)
            folder = Path(self._made.name) / hashlib.sha256(body["model"].encode()).hexdigest()
            folder.mkdir(exist_ok=True)
            for name, digest in body["adapters"].items():
                (folder / name).write_bytes(self.blobs[digest])
            with self._lock:
                if body["model"] in self.policy.adapters:
                    self.policy.remove_adapter(body["model"])
                self.policy.add_adapter(body["model"], folder)
            layers = json.dumps([self.models[body["from"]], body["adapters"]]).encode()
            self.models[body["model"]] = hashlib.sha256(layers).hexdigest()
            return JSONResponse({"status": "success"})

        @app.delete("/api/delete")
        async def delete(request: Request) -> Response:
            name = (await request.json())["model"]
            self.loaded.pop(name, None)
            return Response(status_code=200 if self.models.pop(name, None) else 404)

        @app.post("/api/generate")
        async def generate(request: Request) -> Response:
            body = await request.json()
            self.requests.append(body)
            if body["model"] not in self.models:
                return JSONResponse({"error": f"model '{body['model']}' not found"}, 404)
            if not body.get("prompt"):
                self.loaded.pop(body["model"], None)
                return JSONResponse({"done": True, "done_reason": "unload", "response": ""})
            self.loaded[body["model"]] = body["keep_alive"]
            with self._lock:
                return JSONResponse(self._answer(body))

        return app

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        from onward.lm import probe
        from onward.lm.sampler import Sampler, SampleRequest

        assert body["raw"] is True and body["stream"] is False
        tokenizer, options = self.policy.tokenizer, body["options"]
        prompt = tokenizer.encode(body["prompt"], add_special_tokens=False)
        adapter = None if body["model"] == BASE or self.ignores_adapters else body["model"]
        drawn = Sampler(self.policy, 1)
        drawn.submit(
            SampleRequest(
                "1", prompt, options["num_predict"], options["temperature"], options.get("top_p", 1.0),
                options.get("top_k") or None, [tokenizer.eos_token_id], adapter, options.get("seed"),
            )
        )  # fmt: skip
        samples = []
        while drawn.busy:
            samples += drawn.step()
        ids = samples[0].token_ids
        answer = {
            "model": body["model"], "response": tokenizer.decode(ids, skip_special_tokens=True), "done": True,
            "done_reason": samples[0].finish_reason, "prompt_eval_count": len(prompt), "eval_count": len(ids),
        }  # fmt: skip
        if body.get("logprobs") and not self.without_logprobs:
            shown = [token for token in ids if token != tokenizer.eos_token_id]
            values = probe.logprobs(self.policy, prompt, shown, adapter) if shown else []
            names = [tokenizer.decode([token]) for token in shown]
            answer["logprobs"] = [
                {"token": name, "logprob": value, "bytes": list(name.encode())}
                for name, value in zip(names, values, strict=True)
            ]
        return answer
