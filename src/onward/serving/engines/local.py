"""The engine child as seen from the control process: a client, and the process that keeps it alive.

A client remembers the adapters it loaded and loads them again after the child was replaced. So a killed
engine costs only the calls in flight. No torch here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from onward import children
from onward.clock import Clock
from onward.config import OllamaSettings, Settings
from onward.errors import ConfigError, EngineError, TamperedError
from onward.processes import COMPUTING
from onward.serving.base_models import resolve
from onward.serving.engines import (
    AnswerOptions,
    Generation,
    Messages,
    OnProgress,
    Progress,
    RequestRefusedError,
    wire,
)
from onward.serving.engines.vllm_server import SERVED, VllmServer
from onward.telemetry import logs

_log = logs.get("engine")
_START_SECONDS = 1800.0
"""Time limit for loading a model; a large one on a slow disk takes many minutes."""


class LocalEngine:
    """Client of one engine child over its Unix socket; concurrent calls share the connection."""

    def __init__(self, socket: Path, others: Callable[[], Iterable[Path]] = tuple) -> None:
        """``others``: sockets of engines that serve in place of the one at ``socket`` while it is away."""
        self._socket, self._others = socket, others
        self._wanted: dict[str, Path] = {}
        self._numbers = itertools.count(1)
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._listening: dict[int, OnProgress] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()

    async def generate(
        self,
        messages: Messages,
        *,
        session_id: str,
        adapter: str | None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        max_tokens: int | None = None,
        seed: int | None = None,
        tools: Sequence[dict[str, Any]] = (),
        on_progress: OnProgress | None = None,
        options: AnswerOptions | None = None,
    ) -> Generation:
        """Returns one answer; see ``Engine.generate``. ``max_tokens`` None means the free context."""
        more = {} if options is None else {"options": vars(options)}
        result = await self._call(
            "generate",
            on_progress,
            tools=list(tools),
            messages=list(messages),
            session_id=session_id,
            adapter=adapter,
            temperature=float(temperature),
            top_p=float(top_p),
            top_k=top_k,
            max_tokens=max_tokens,
            seed=seed,
            **more,
        )
        return Generation(result["text"], result["sampling"], result["usage"], result.get("logprobs") or ())

    async def load_adapter(self, digest: str, folder: Path) -> None:
        await self._call("load", digest=digest, folder=str(folder.absolute()))
        self._wanted[digest] = folder

    async def unload_adapter(self, digest: str) -> None:
        self._wanted.pop(digest, None)
        await self._call("unload", digest=digest)

    async def adapters(self) -> list[str]:
        return await self._call("adapters")

    async def health(self) -> dict[str, Any]:
        return await self._call("health")

    async def check_alive(self) -> None:
        """Returns when the child answers, however many calls it serves. Raises EngineError."""
        await self._call("ping")

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
        self.disconnected()

    async def _call(self, operation: str, on_progress: OnProgress | None = None, **arguments: Any) -> Any:
        writer = self._writer or await self._connect()
        return await self._exchange(writer, operation, arguments, on_progress)

    async def _exchange(
        self,
        writer: asyncio.StreamWriter,
        operation: str,
        arguments: dict[str, Any],
        on_progress: OnProgress | None = None,
    ) -> Any:
        number = next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        if on_progress is not None:
            self._listening[number] = on_progress
            arguments = {**arguments, "progress": True}
        try:
            writer.write(wire.frame({"id": number, "op": operation, **arguments}))
            return await future
        except asyncio.CancelledError:
            if not writer.is_closing():
                writer.write(wire.frame({"id": 0, "op": "cancel", "target": number}))
            raise
        finally:
            self._pending.pop(number, None)
            self._listening.pop(number, None)

    async def _connect(self) -> asyncio.StreamWriter:
        async with self._connecting:
            if self._writer is not None:
                return self._writer
            reader, writer = await self._open()
            self._reading = asyncio.create_task(self._read(reader), name="engine-client")
            for digest, folder in list(self._wanted.items()):
                try:
                    await self._exchange(writer, "load", {"digest": digest, "folder": str(folder.absolute())})
                except TamperedError as error:  # its calls fail from now on; the others go on
                    del self._wanted[digest]
                    _log.error("adapter refused after a restart", digest=digest[:12], reason=str(error))
            self._writer = writer
            return writer

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to the first engine that answers. Raises EngineError."""
        why = ""
        for socket in (self._socket, *self._others()):
            try:
                return await asyncio.open_unix_connection(str(socket))
            except OSError as error:
                why = why or str(error.strerror)
        raise EngineError(f"The engine is away ({why}): it is being started again.")

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while (reply := await wire.read_frame(reader)) is not None:
            future = self._pending.get(reply["id"])
            if future is None or future.done():
                continue
            if (progress := reply.get("progress")) is not None:
                if (listener := self._listening.get(reply["id"])) is not None:
                    listener(Progress(**progress))
            elif error := reply.get("error"):
                future.set_exception(_error(error))
            else:
                future.set_result(reply.get("result"))
        self.disconnected()

    def disconnected(self) -> None:
        """Fails the calls in flight; the next one connects again."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for future in self._pending.values():
            if not future.done():
                future.set_exception(EngineError("The engine ended during the call."))


def _error(told: dict[str, Any]) -> Exception:
    """Returns the exception that the child reports."""
    if told["kind"] == "refused":
        return RequestRefusedError(told["message"], told.get("param"), told.get("code"))
    return (TamperedError if told["kind"] == "tampered" else EngineError)(told["message"])


class EngineProcess:
    """Starts the engine child, restarts it when it dies, stops it."""

    def __init__(
        self, settings: Settings, *, clock: Clock, folder: Path | None = None, name: str = "engine"
    ) -> None:
        """``folder``: the base model; without it, ``settings.model.base`` is resolved. ``name``: that of the
        socket and the log, which no other process may have."""
        self._settings, self._folder, self._name = settings, folder, name
        self._clock = clock
        self._vllm: VllmServer | None = None
        self.socket = wire.socket_path(settings.run_dir, name)
        self.engine = LocalEngine(self.socket)
        self.keeper = children.Keeper(
            "engine",
            self._spawn,
            clock=clock,
            longest_pause=30.0,
            on_death=self.engine.disconnected,
            probe=self.engine.check_alive,
        )

    @property
    def pid(self) -> int | None:
        """Process id of the child, or None while none runs."""
        return self.keeper.pid

    @property
    def restarts(self) -> int:
        """Number of children that died and were replaced."""
        return self.keeper.restarts

    async def start(self) -> LocalEngine:
        """Spawns the child and waits for its model, after the vLLM server if one is to be started here.
        Raises NotFoundError (no such model), ConfigError, EngineError."""
        if self._settings.model.engine == "vllm" and not self._settings.vllm.url:
            self._vllm = VllmServer(
                self._settings,
                self._base(),
                clock=self._clock,
                name=f"{self._name}-vllm",
                start_seconds=_START_SECONDS,
                on_move=lambda: self.keeper.restart("its vLLM server has another address", 0.0),
            )
            await self._vllm.start()
        try:
            await self.keeper.start()
        except BaseException:
            if self._vllm is not None:
                await self._vllm.stop()
            raise
        return self.engine

    async def stop(self) -> None:
        await self.keeper.stop(5.0)
        await self.engine.close()
        if self._vllm is not None:
            await self._vllm.stop()
        self.socket.unlink(missing_ok=True)

    def _base(self) -> Path:
        settings = self._settings
        return self._folder or resolve(settings.model.base, settings.data_dir / "models", settings.models)

    def _server(self) -> tuple[list[str], str]:
        """Returns the child's options for the server that samples, and its key. Raises ConfigError."""
        settings, own, name = self._settings, self._vllm, self._settings.model.engine
        given = {"vllm": settings.vllm, "sglang": settings.sglang, "ollama": settings.ollama}[name]
        url, served = (given.url, given.model) if own is None else (own.url, SERVED)
        if not url:
            raise ConfigError(
                f'model.engine is "{name}" and {name}.url is empty: give the address of the server, such as '
                f"{_ADDRESS[name]}."
            )
        options = ["--vllm-url", url, "--vllm-model", served, "--vllm-timeout", str(given.timeout_seconds)]
        if isinstance(given, OllamaSettings):
            return [*options, "--keep-alive", given.keep_alive], ""
        key = given.key.get_secret_value() if own is None else own.key
        return [*options, "--vllm-adapters-dir", given.adapters_dir], key

    async def _spawn(self) -> asyncio.subprocess.Process:
        """Starts a child and waits until its model is loaded. Raises EngineError when it is not."""
        model = self._settings.model
        folder = self._base()
        command = ["--socket", str(self.socket), "--model", str(folder), "--device", model.device]
        command += ["--dtype", model.dtype]
        command += ["--threads", str(model.threads), "--max-batch", str(model.max_batch)]
        command += ["--max-context", str(model.max_context), "--path", model.path]
        environment = {"TOKENIZERS_PARALLELISM": "false"}
        if model.engine != "local":
            more, environment[wire.VLLM_KEY] = self._server()
            command += ["--server", model.engine, *more]
        log = self._settings.data_dir / "logs" / f"{self._name}.log"
        child = await children.start(
            "onward.serving.engines.child", *command, log=log, environment=environment, passed=COMPUTING
        )
        try:
            async with asyncio.timeout(_START_SECONDS):
                await _wait_ready(child)
        except BaseException as error:
            await children.end(child, 5.0)
            if isinstance(error, TimeoutError):
                raise EngineError(
                    f"The engine did not load its model within {_START_SECONDS:g} s: see logs/engine.log."
                ) from None
            raise
        return child


_ADDRESS = {"sglang": "http://127.0.0.1:30000", "ollama": "http://127.0.0.1:11434"}


async def _wait_ready(child: asyncio.subprocess.Process) -> None:
    """Reads events of the child until it reports that it is ready. Raises EngineError if it never does."""
    async for event in children.events(child):
        if event.get("ready"):
            if "device" in event:
                _log.info("engine ready", **{name: event[name] for name in ("device", "dtype", "why")})
            return
        if "error" in event:
            raise EngineError(f"The engine did not start: {event['error']}")
    raise EngineError(f"The engine ended at its start with code {await child.wait()}: see logs/engine.log.")
