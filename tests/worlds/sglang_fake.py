"""An SGLang server to test against: ``/generate`` with SGLang's field names, our tiny policy underneath.

Names of the requests' fields, and of the answer of a load, were compared with SGLang's ``io_struct.py`` and
``sampling_params.py``. Status codes, error texts and the content of ``meta_info`` were not. No real server
was asked: SGLang does not install on these machines.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response


class FakeSglang:
    def __init__(self, folder: Path) -> None:
        from onward.lm.policy import Policy

        self.policy = Policy.load(folder)
        self.adapters: dict[str, str] = {}
        self.requests: list[dict[str, Any]] = []
        self.ignores_adapters = False
        self.original_logprobs = False
        self._lock = threading.Lock()
        config = uvicorn.Config(
            self._app(), host="127.0.0.1", port=0, log_level="error", log_config=None, lifespan="off"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> FakeSglang:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = self._server.force_exit = True
        self._thread.join(10)

    def _app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/health")
        async def health() -> Response:
            return Response(status_code=200)

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": "base", "object": "model", "max_model_len": 256}]}

        @app.post("/load_lora_adapter")
        async def load(request: Request) -> Response:
            body = await request.json()
            name, path = body["lora_name"], body["lora_path"]
            if not (Path(path) / "adapter_config.json").is_file():
                return JSONResponse({"success": False, "error_message": f"no adapter at {path}"}, 400)
            self.adapters[name] = path
            with self._lock:
                if name in self.policy.adapters:
                    self.policy.remove_adapter(name)
                self.policy.add_adapter(name, Path(path))
            return JSONResponse({"success": True, "error_message": "", "loaded_adapters": self.adapters})

        @app.post("/unload_lora_adapter")
        async def unload(request: Request) -> Response:
            self.adapters.pop((await request.json())["lora_name"], None)
            return JSONResponse({"success": True, "error_message": "", "loaded_adapters": self.adapters})

        @app.post("/generate")
        async def generate(request: Request) -> Response:
            body = await request.json()
            self.requests.append(body)
            adapter = body.get("lora_path")
            if adapter is not None and adapter not in self.adapters:
                return JSONResponse({"error": {"message": f"LoRA adapter {adapter} is not loaded"}}, 400)
            with self._lock:
                return JSONResponse(self._answer(body, None if self.ignores_adapters else adapter))

        return app

    def _answer(self, body: dict[str, Any], adapter: str | None) -> dict[str, Any]:
        from onward.lm import probe
        from onward.lm.sampler import Sampler, SampleRequest

        given, prompt = body["sampling_params"], body["input_ids"]
        temperature = given.get("temperature", 1.0)
        top_k = given.get("top_k", -1)
        stops = () if given.get("ignore_eos") else given.get("stop_token_ids") or ()
        drawn = Sampler(self.policy, 1)
        drawn.submit(
            SampleRequest(
                "1", prompt, given["max_new_tokens"], temperature, given.get("top_p", 1.0),
                top_k if top_k > 0 else None, stops, adapter, given.get("sampling_seed"),
                alternatives=body["top_logprobs_num"] if temperature else 0,
            )
        )  # fmt: skip
        samples = []
        while drawn.busy:
            samples += drawn.step()
        ids, values, best = samples[0].token_ids, samples[0].logprobs, samples[0].alternatives
        if temperature == 0:
            values = probe.logprobs(self.policy, prompt, ids, adapter)
        if self.original_logprobs:
            best = [[(token, value * temperature) for token, value in one] for one in best]
        return {
            "text": self.policy.tokenizer.decode(ids, skip_special_tokens=True), "output_ids": ids,
            "meta_info": {
                "id": "1", "finish_reason": {"type": samples[0].finish_reason}, "prompt_tokens": len(prompt),
                "completion_tokens": len(ids),
                "output_token_logprobs": [[v, t, None] for v, t in zip(values, ids, strict=True)],
                "output_top_logprobs": [[[v, t, None] for t, v in one] for one in best] or None,
            },
        }  # fmt: skip
