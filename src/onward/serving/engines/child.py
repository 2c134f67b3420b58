"""The engine child: ``python -m onward.serving.engines.child --socket S --model FOLDER``.

The event loop renders messages and handles the socket. One other thread owns torch, or, with ``--vllm-url``,
a vLLM server samples. Tokens of a conversation are extended, never rendered again (``SessionMemory``). The
control process must not import this module.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onward.errors import EngineError, OnwardError, TamperedError
from onward.lm.chat import Chat, Text
from onward.lm.request import Alternatives, Sample, SampleRequest
from onward.processes import die_with_parent
from onward.serving.engines import AnswerOptions, RequestRefusedError, context_exceeded, wire
from onward.serving.engines.answer_options import LogprobEntries, OptionReader, state_once
from onward.serving.engines.ollama import OllamaHttp, OllamaSampling
from onward.serving.engines.prompts import PromptReader
from onward.serving.engines.registry import verify_adapter
from onward.serving.engines.sampling import OnTokens, SamplingThread
from onward.serving.engines.session_memory import FinishedGeneration, SessionMemory
from onward.serving.engines.sglang import SglangHttp, SglangSampling
from onward.serving.engines.vllm import VllmSampling, VoidSample
from onward.serving.engines.vllm_http import VllmHttp
from onward.training import checkpoints

DEFAULT_TOKENS = 512
"""Maximum number of new tokens for a call without a limit."""
SERVERS: dict[str, tuple[type[VllmSampling], type[VllmHttp]]] = {
    "vllm": (VllmSampling, VllmHttp),
    "sglang": (SglangSampling, SglangHttp),
    "ollama": (OllamaSampling, OllamaHttp),
}
"""Servers that can sample in place of this process."""


@dataclass(eq=False)
class _Connection:
    writer: asyncio.StreamWriter
    adapters: set[str] = field(default_factory=set)
    tasks: dict[int, asyncio.Task[None]] = field(default_factory=dict)


class EngineServer:
    """Serves the operations generate, load, unload, adapters, health, ping and cancel.

    An adapter stays in memory while at least one connection uses it. So the gateway and a validation can come
    and go without unloading each other's adapters.
    """

    def __init__(self, sampling: SamplingThread | VllmSampling, memory_tokens: int = 2_000_000) -> None:
        self._sampling = sampling
        self._chat = Chat(sampling.tokenizer)
        self._options = OptionReader(sampling, self._chat)
        self._max_context = sampling.max_context
        self._memory = SessionMemory(memory_tokens)
        self._prompts = PromptReader(self._chat, self._memory, self._options, self._max_context)
        self._connections: set[_Connection] = set()
        self._loaded: set[str] = set()
        self._loading = asyncio.Lock()
        self._generations = 0

    def begin(self) -> None:
        """Prepares what the first calls need, in the background."""
        self._options.begin()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = _Connection(writer)
        self._connections.add(connection)
        try:
            while (request := await wire.read_frame(reader)) is not None:
                if request.get("op") == "cancel":
                    task = connection.tasks.get(request.get("target", -1))
                    if task is not None:
                        task.cancel()
                    continue
                task = asyncio.create_task(self._answer(connection, request))
                connection.tasks[request["id"]] = task
        finally:
            for task in list(connection.tasks.values()):
                task.cancel()
            self._connections.discard(connection)
            await asyncio.shield(self._drop_unheld())
            writer.close()

    async def _answer(self, connection: _Connection, request: dict[str, Any]) -> None:
        number = request["id"]
        try:
            result = await self._perform(connection, request)
            reply: dict[str, Any] = {"id": number, "result": result}
        except RequestRefusedError as error:
            told = {"kind": "refused", "message": str(error), "param": error.param, "code": error.code}
            reply = {"id": number, "error": told}
        except TamperedError as error:
            reply = {"id": number, "error": {"kind": "tampered", "message": str(error)}}
        except OnwardError as error:
            reply = {"id": number, "error": {"kind": "engine", "message": str(error)}}
        except Exception as error:
            message = f"The engine failed with {type(error).__name__}: see logs/engine.log."
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            reply = {"id": number, "error": {"kind": "engine", "message": message}}
        finally:
            connection.tasks.pop(number, None)
        if not connection.writer.is_closing():
            connection.writer.write(wire.frame(reply))

    async def _perform(self, connection: _Connection, request: dict[str, Any]) -> Any:
        operation = request.get("op")
        if operation == "generate":
            return await self._generate(connection, request)
        if operation == "load":
            return await self._load(connection, request["digest"], Path(request["folder"]))
        if operation == "unload":
            connection.adapters.discard(request["digest"])
            await self._drop_unheld()
            return None
        if operation == "adapters":
            return sorted(self._loaded)
        if operation == "ping":
            return self._sampling.check_moving()
        if operation == "health":
            return await self._health()
        raise RequestRefusedError(f"The engine knows no operation {operation!r}.")

    async def _generate(self, connection: _Connection, request: dict[str, Any]) -> dict[str, Any]:
        adapter = request["adapter"]
        if adapter is not None and adapter not in self._loaded:
            raise EngineError(f"Adapter {adapter[:12]} is not loaded: load it first.")
        options = AnswerOptions(**given) if (given := request.get("options")) else None
        before, delta = await self._prompts.read(request, options)
        full = delta if before is None else [*before.ids, *delta]
        room = self._max_context - len(full)
        wanted = request["max_tokens"] if request["max_tokens"] is not None else min(DEFAULT_TOKENS, room)
        if room < 1 or wanted > room:
            is_raw = options is not None and options.prompt is not None
            raise context_exceeded(
                self._max_context, len(full), request["max_tokens"], param="prompt" if is_raw else "messages"
            )
        record = {
            "generation_id": str(uuid.uuid4()),
            "continues": before.generation_id if before else None,
            "prompt_ids": delta,
            "temperature": request["temperature"],
            "top_p": request["top_p"],
            "top_k": request["top_k"],
            "model_digest": adapter or self._sampling.base_digest,
        }
        fields: dict[str, Any] = {}
        grammars = before.grammars if before else frozenset[str]()
        if options is not None:
            fields, changed = await self._options.read(options, request.get("tools") or [])
            record |= changed
            grammars = state_once(record, grammars)
        sample = await self._sampling.sample(
            SampleRequest(
                request_id=record["generation_id"],
                prompt_ids=full,
                max_new_tokens=wanted,
                temperature=request["temperature"],
                top_p=request["top_p"],
                top_k=request["top_k"],
                stop_ids=self._chat.stop_ids,
                adapter=adapter,
                seed=request["seed"],
                **fields,
            ),
            self._reporter(connection, request, record, options) if request.get("progress") else None,
        )
        answer = self._remember(request, record, full, sample, options, grammars)
        if options is not None and options.top_logprobs is not None:
            if isinstance(sample, VoidSample):
                answer["logprobs"] = list(sample.entries)
            else:
                entries = LogprobEntries(self._options.token_bytes)
                answer["logprobs"] = entries.append(sample.token_ids, sample.logprobs, sample.alternatives)
        return answer

    def _reporter(
        self,
        connection: _Connection,
        request: dict[str, Any],
        record: dict[str, Any],
        options: AnswerOptions | None,
    ) -> OnTokens:
        """Returns a callback that sends progress: first the record, then tokens and their finished text."""
        text = Text(self._chat)
        entries = None
        if options is not None and options.top_logprobs is not None:
            entries = LogprobEntries(self._options.token_bytes)

        def send(progress: dict[str, Any]) -> None:
            if not connection.writer.is_closing():
                connection.writer.write(wire.frame({"id": request["id"], "progress": progress}))

        def on_tokens(ids: list[int], logprobs: list[float], alternatives: list[Alternatives]) -> None:
            new = {"text": text.append(ids), "token_ids": ids, "logprobs": list(map(float, logprobs))}
            if entries is not None:
                new["alternatives"] = entries.append(ids, logprobs, alternatives)
            send(new)

        send({"record": record})
        return on_tokens

    def _remember(
        self,
        request: dict[str, Any],
        record: dict[str, Any],
        full: list[int],
        sample: Sample,
        options: AnswerOptions | None,
        grammars: frozenset[str],
    ) -> dict[str, Any]:
        self._generations += 1
        if isinstance(sample, VoidSample):
            return sample.answer(record, len(full))
        tokens = list(sample.token_ids)
        text = self._chat.text(tokens)
        if options is None or options.prompt is None:
            ended = sample.finish_reason == "stop" and tokens[-1] in self._chat.stop_ids
            self._memory.put(
                request["session_id"],
                FinishedGeneration(
                    record["generation_id"],
                    request["adapter"],
                    request["messages"],
                    text,
                    [*full, *tokens],
                    ended,  # False after a stop string, which is no end of the turn
                    request.get("tools") or [],
                    grammars,
                ),
            )
        sampling = record | {
            "token_ids": tokens,
            "logprobs": [float(value) for value in sample.logprobs],
            "finish_reason": sample.finish_reason,
        }
        usage = {
            "prompt_tokens": len(full),
            "completion_tokens": len(tokens),
            "total_tokens": len(full) + len(tokens),
        }
        return {"text": text, "sampling": sampling, "usage": usage}

    async def _load(self, connection: _Connection, digest: str, folder: Path) -> None:
        async with self._loading:
            if digest not in self._loaded:
                manifest = await asyncio.to_thread(verify_adapter, folder, digest)
                checkpoints.refuse_other_base(manifest, self._sampling.base_digest)
                await self._sampling.load(digest, folder)
                self._loaded.add(digest)
            connection.adapters.add(digest)

    async def _drop_unheld(self) -> None:
        async with self._loading:
            held = {digest for connection in self._connections for digest in connection.adapters}
            for digest in self._loaded - held:
                self._loaded.discard(digest)
                await self._sampling.unload(digest)

    async def _health(self) -> dict[str, Any]:
        await self._sampling.check()
        told = {
            "pid": os.getpid(),
            "base_digest": self._sampling.base_digest,
            "adapters": sorted(self._loaded),
            "running": self._sampling.running,
            "generations": self._generations,
            "sessions": len(self._memory),
            "max_context": self._max_context,
        }
        if isinstance(self._sampling, VllmSampling):
            told["mismatches"] = self._sampling.mismatches
        else:
            policy, placement = self._sampling.policy, self._sampling.placement
            told |= {"path": policy.path, "path_reason": policy.reason}
            told |= {"device": placement.device, "dtype": placement.dtype}
        return told


def _sampling_of(arguments: argparse.Namespace) -> SamplingThread | VllmSampling:
    if arguments.vllm_url:
        key = os.environ.pop(wire.VLLM_KEY, "")
        sampling, http = SERVERS[arguments.server]
        more = {"keep_alive": arguments.keep_alive} if arguments.server == "ollama" else {}
        return sampling(
            arguments.model,
            http(arguments.vllm_url, key, timeout_seconds=arguments.vllm_timeout, **more),
            served_model=arguments.vllm_model,
            adapters_dir=arguments.vllm_adapters_dir,
            max_context=arguments.max_context,
        )
    return SamplingThread(
        arguments.model,
        asyncio.get_running_loop(),
        device=arguments.device,
        dtype=arguments.dtype,
        threads=arguments.threads,
        max_batch=arguments.max_batch,
        max_context=arguments.max_context,
        gather_seconds=arguments.gather_ms / 1000,
        path=arguments.path,
    )


async def _run(arguments: argparse.Namespace) -> None:
    sampling = _sampling_of(arguments)
    await sampling.start()
    engine = EngineServer(sampling)
    engine.begin()
    arguments.socket.unlink(missing_ok=True)
    server = await asyncio.start_unix_server(engine.serve, path=str(arguments.socket))
    os.chmod(arguments.socket, 0o600)
    placement = asdict(sampling.placement) if isinstance(sampling, SamplingThread) else {}
    _say({"ready": True, "base_digest": sampling.base_digest, **placement})
    async with server:
        await server.serve_forever()


def _say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def main() -> int:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent stops us
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    parser = argparse.ArgumentParser(prog="onward.serving.engines.child")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--path", choices=("auto", "transformers"), default="auto")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--max-batch", type=int, default=64)
    parser.add_argument("--max-context", type=int, default=2048)
    parser.add_argument(
        "--gather-ms", type=float, default=2.0, help="an idle engine waits this long for company"
    )
    parser.add_argument("--vllm-url", default="", help="sample from this vLLM server instead of here")
    parser.add_argument("--server", choices=sorted(SERVERS), default="vllm")
    parser.add_argument("--keep-alive", default="30m", help="ollama: time that a model stays in memory")
    parser.add_argument("--vllm-model", default="")
    parser.add_argument("--vllm-adapters-dir", default="")
    parser.add_argument("--vllm-timeout", type=float, default=600.0)
    arguments = parser.parse_args()
    try:
        asyncio.run(_run(arguments))
    except (OnwardError, OSError) as error:
        _say({"error": str(error)})
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
