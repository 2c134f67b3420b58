"""A vLLM server to test against: real HTTP, vLLM's field names, our tiny policy underneath.

Written from vLLM's protocol classes (``CompletionRequest``, ``CompletionResponseChoice``,
``CompletionLogProbs``, ``ModelCard``, ``ErrorResponse``, ``LoadLoRAAdapterRequest``), not from our client.
Its knobs are the ways in which a server can be wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

BASE = "base"
HOST = "127.0.0.1"


class FakeVllm:
    def __init__(self, folder: Path, *, key: str = "", max_model_len: int = 256, port: int = 0) -> None:
        from onward.lm.policy import Policy

        self.policy = Policy.load(folder)
        self.key, self.max_model_len = key, max_model_len
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.adapters: dict[str, str] = {}
        self.raw_logprobs = False
        self.runtime_lora = True
        self.ignores_adapters = False
        self.mixes_policies = False
        """The base's answer is an adapter's if a request to that adapter is answered at the same time."""
        self._answering: list[str] = []
        self.token_ids_wrong = False
        self.text_wrong = False
        self.without_token_ids = False
        self.finish: str | None = None
        self.fails_with: tuple[int, str] | None = None
        self.asleep: bool | None = None
        self.hang = False
        self.disconnected = threading.Event()
        self._lock = threading.Lock()
        self._inner = self._app()
        config = uvicorn.Config(
            self._answer,
            interface="asgi3",
            host=HOST,
            port=port,
            log_level="error",
            log_config=None,
            lifespan="off",
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> FakeVllm:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://{HOST}:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(10)

    def body(self, path: str) -> dict[str, Any]:
        """The newest request to ``path``."""
        return next(body for told, body in reversed(self.requests) if told == path)

    # HTTP.

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/health")
        async def health() -> Response:
            return Response(status_code=200)

        @app.get("/is_sleeping")
        async def is_sleeping() -> Response:
            if self.asleep is None:
                return JSONResponse({"detail": "Not Found"}, status_code=404)
            return JSONResponse({"is_sleeping": self.asleep})

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            cards = [self._card(BASE, None)] + [self._card(name, BASE) for name in self.adapters]
            return {"object": "list", "data": cards}

        @app.post("/v1/load_lora_adapter")
        async def load(request: Request) -> Response:
            body = await self._read(request)
            if not self.runtime_lora:
                return JSONResponse({"detail": "Not Found"}, status_code=404)
            name, path = body["lora_name"], body["lora_path"]
            if name in self.adapters:
                return _error(400, f"The lora adapter '{name}' has already been loaded. If you want to "
                                   f"load the adapter in place, set 'load_inplace' to True.")  # fmt: skip
            if not (Path(path) / "adapter_config.json").is_file():
                return _error(
                    404, f"Loading lora {name} failed: No adapter found for {path}", "NotFoundError"
                )
            self.adapters[name] = path
            with self._lock:
                if name not in self.policy.adapters:
                    self.policy.add_adapter(name, Path(path))
            return Response(f"Success: LoRA adapter '{name}' added successfully.")

        @app.post("/v1/unload_lora_adapter")
        async def unload(request: Request) -> Response:
            name = (await self._read(request))["lora_name"]
            if self.adapters.pop(name, None) is None:
                return _error(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
            return Response(f"Success: LoRA adapter '{name}' removed successfully.")

        @app.post("/v1/completions")
        async def completions(request: Request) -> Response:
            body = await self._read(request)
            if self.fails_with is not None:
                return _error(*self.fails_with)
            if body["model"] not in {BASE, *self.adapters}:
                return _error(404, f"The model `{body['model']}` does not exist.", "NotFoundError")
            if self.hang:
                while not await request.is_disconnected():
                    await asyncio.sleep(0.01)
                self.disconnected.set()
                return Response(status_code=499)
            if len(body["prompt"]) + body["max_tokens"] > self.max_model_len:
                return _error(400, f"This model's maximum context length is {self.max_model_len} tokens.")
            if self.mixes_policies:
                body = await self._mixed(body)
            with self._lock:
                choice = self._choice(body)
            if body.get("stream"):
                return StreamingResponse(self._stream(choice), media_type="text/event-stream")
            usage = {"prompt_tokens": len(body["prompt"]), "completion_tokens": 0, "total_tokens": 0}
            return JSONResponse(
                {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": body["model"],
                 "choices": [choice], "usage": usage}
            )  # fmt: skip

        return app

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        """``--api-key`` guards the paths under ``/v1`` only."""
        wanted = (b"authorization", f"Bearer {self.key}".encode())
        if self.key and scope["path"].startswith("/v1") and wanted not in scope["headers"]:
            refusal = JSONResponse({"error": "Unauthorized"}, status_code=401)
            return await refusal(scope, receive, send)
        await self._inner(scope, receive, send)

    async def _read(self, request: Request) -> dict[str, Any]:
        body = await request.json()
        self.requests.append((request.url.path, body))
        return body

    async def _mixed(self, body: dict[str, Any]) -> dict[str, Any]:
        self._answering.append(body["model"])
        await asyncio.sleep(0.05)  # the others of the batch arrive
        others = [model for model in self._answering if model != BASE]
        asyncio.get_running_loop().call_later(0.05, self._answering.remove, body["model"])
        return body | {"model": others[0]} if others else body

    def _card(self, name: str, parent: str | None) -> dict[str, Any]:
        return {
            "id": name, "object": "model", "created": 1, "owned_by": "vllm", "root": name, "parent": parent,
            "max_model_len": None if parent else self.max_model_len, "permission": [],
        }  # fmt: skip

    # Sampling.

    def _options(self, body: dict[str, Any]) -> dict[str, Any]:
        """The shaping that a request asks for, with vLLM's field names."""
        from onward.lm.constrained import Grammar, GrammarCompiler

        asked: dict[str, Any] = {name: body[name] for name in ("presence_penalty", "frequency_penalty")
                                 if body.get(name)}  # fmt: skip
        if body.get("logit_bias"):
            asked["logit_bias"] = {int(token): value for token, value in body["logit_bias"].items()}
        if body.get("stop"):
            asked["stop_texts"] = body["stop"]
        if body.get("structured_outputs"):
            stop_ids = body.get("stop_token_ids") or ()
            compiler = GrammarCompiler(self.policy.tokenizer, self.policy.shape.vocab, stop_ids)
            schema = json.dumps(body["structured_outputs"]["json"])
            asked["grammar"] = compiler(Grammar("json_schema", schema))
        return asked

    def _choice(self, body: dict[str, Any]) -> dict[str, Any]:
        from onward.lm.sampler import Sampler, SampleRequest

        adapter = None if body["model"] == BASE or self.ignores_adapters else body["model"]
        prompt = body["prompt"]
        temperature = body.get("temperature", 1.0)
        sampler = Sampler(self.policy, 1)
        sampler.submit(
            SampleRequest(
                "1", prompt, body["max_tokens"], temperature, body.get("top_p", 1.0),
                body.get("top_k") or None, body.get("stop_token_ids") or (), adapter, body.get("seed"),
                alternatives=body.get("logprobs") or 0, **self._options(body),
            )
        )  # fmt: skip
        samples = []
        while sampler.busy:
            samples += sampler.step()
        ids, values = samples[0].token_ids, samples[0].logprobs
        if self.raw_logprobs or temperature == 0:
            values = self._logprobs(prompt, ids, adapter, 1.0)
        told = list(ids)
        if self.token_ids_wrong:
            told[0] = (told[0] + 1) % 200
        text = self.policy.tokenizer.decode(ids, skip_special_tokens=True)
        for stop in body.get("stop") or ():
            if stop in text:  # ``include_stop_str_in_output``: the text ends with it
                text = text[: text.find(stop) + len(stop)]
        choice: dict[str, Any] = {
            "index": 0, "text": "not this" if self.text_wrong else text, "logprobs": None,
            "finish_reason": self.finish or samples[0].finish_reason,
            "stop_reason": ids[-1] if samples[0].finish_reason == "stop" else None,
            "prompt_logprobs": None, "prompt_token_ids": None, "token_ids": None, "routed_experts": None,
        }  # fmt: skip
        if body.get("logprobs") is not None:
            choice["logprobs"] = {
                "text_offset": [0] * len(ids),
                "token_logprobs": values,
                "tokens": [self._name(body, token) for token in ids],
                "top_logprobs": [self._top(body, prompt, adapter, temperature)] + [{}] * (len(ids) - 1)
                if not self._options(body) and len(ids) == 1
                else [
                    {self._name(body, token): value for token, value in one}
                    for one in samples[0].alternatives or [[]] * len(ids)
                ],
            }
        if body.get("return_token_ids") and not self.without_token_ids:
            choice["token_ids"], choice["prompt_token_ids"] = told, prompt
        return choice

    def _name(self, body: dict[str, Any], token: int) -> str:
        if body.get("return_tokens_as_token_ids"):
            return f"token_id:{token}"
        return self.policy.tokenizer.decode([token])

    def _logprobs(self, prompt: list[int], ids: list[int], adapter: str | None, t: float) -> list[float]:
        from onward.lm.tokens import TokenRow

        n, m = len(prompt), len(ids)
        row = TokenRow([*prompt, *ids], [False] * n + [True] * m, [0.0] * (n + m), t)
        return self.policy.logprobs([row], adapter)[0][n:].tolist()

    def _top(
        self, body: dict[str, Any], prompt: list[int], adapter: str | None, t: float
    ) -> dict[str, float]:
        if not body["logprobs"]:
            return {}
        from onward.lm.tokens import TokenRow

        vocab, n = self.policy.shape.vocab, len(prompt)
        rows = [TokenRow([*prompt, v], [False] * n + [True], [0.0] * (n + 1), 1.0 if self.raw_logprobs else t)
                for v in range(vocab)]  # fmt: skip
        values = [float(v[n]) for v in self.policy.logprobs(rows, adapter)]
        best = sorted(range(vocab), key=lambda v: -values[v])[: body["logprobs"]]
        return {self._name(body, v): values[v] for v in best}

    async def _stream(self, choice: dict[str, Any]) -> Any:
        """One token a chunk; the prompt's ids in the first, the reason in the last; then ``[DONE]``."""
        ids, logprobs, done = choice["token_ids"], choice["logprobs"], ""
        for i, token in enumerate(ids):
            text = self.policy.tokenizer.decode(ids[: i + 1], skip_special_tokens=True)
            text = text.rstrip("\ufffd") if i + 1 < len(ids) else text
            part = {
                "index": 0, "text": text[len(done) :], "token_ids": [token], "stop_reason": None,
                "logprobs": {name: values[i : i + 1] for name, values in logprobs.items()},
                "finish_reason": choice["finish_reason"] if i + 1 == len(ids) else None,
                "prompt_token_ids": choice["prompt_token_ids"] if i == 0 else None,
            }  # fmt: skip
            done = text if text.startswith(done) else done
            yield (
                "data: "
                + json.dumps({"id": "cmpl-1", "object": "text_completion", "choices": [part]})
                + "\n\n"
            )
        yield "data: [DONE]\n\n"


def _error(status: int, message: str, kind: str = "BadRequestError") -> JSONResponse:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return JSONResponse({"error": error}, status_code=status)


def main() -> None:
    """Serves as ``python -m vllm.entrypoints.openai.api_server`` does, with the options that Onward gives."""
    options = argparse.ArgumentParser()
    for name in ("model", "served-model-name", "host", "logprobs-mode"):
        options.add_argument(f"--{name}", required=True)
    for name in ("port", "max-lora-rank", "max-loras", "max-model-len", "max-num-seqs"):
        options.add_argument(f"--{name}", type=int, required=True)
    for name in ("enable-lora", "disable-uvicorn-access-log"):
        options.add_argument(f"--{name}", action="store_true", required=True)
    options.add_argument("--fail-with", default="")
    given = options.parse_args()
    if given.fail_with:
        sys.exit(given.fail_with)
    assert (given.served_model_name, given.host, given.logprobs_mode) == (BASE, HOST, "processed_logprobs")
    assert os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "True"
    key = os.environ["VLLM_API_KEY"]
    with FakeVllm(Path(given.model), key=key, max_model_len=given.max_model_len, port=given.port):
        signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    main()
