"""The gateway under load: requests a second, latency and CPU time per request, with capture on.

An OpenAI-compatible stub is the engine, and a provider behind the gateway as well: the same stub by another
way. The gateway runs in a process of its own with a real nats-server, as `onward up` does, and each request
is a conversation of its own, so each becomes a trajectory. Clients are plain sockets, `--clients` of them,
each with one request in flight. Where the package `tensorzero` can be imported, its embedded gateway asks the
same stub, and so does LiteLLM's proxy where ``--litellm`` names its program. All take turns, five a case, so
that other work on the machine meets them alike. ``--memory`` follows the memory over many calls.

"cpu_ms" is the CPU time of a side's own process per request, with all that it records after its answers; for
TensorZero's embedded gateway it is that of the clients, which it runs in. It says more than requests a second
on a machine with other work: the load is printed with the results.

Measured on two cores at a load of 14 to 17 of other work, 20 s a case, at a lower priority than that work:

    side                  CPU, ms     p50 at 1     requests/s at 1, 8, 32    times LiteLLM's
    stub alone            0.01-0.02   0.04 ms      16,784  15,354  11,859
    gateway, its engine   1.52-1.72   0.90 ms         321     289     140    17, 35, 13
    gateway, as proxy     2.05-2.32   1.42 ms         203     147     106    11, 18, 10
    TensorZero embedded   0.37-0.60   0.59 ms       1,018   1,029     789
    LiteLLM's proxy        13-19      37 ms            19       8      11

So the gateway adds 0.9 ms to a call of its engine and 1.4 ms to one of a provider, TensorZero 0.6 ms without
any record. p50 at 32 in flight, which is 32 divided by the rate, says nothing at such a load.

Before and after the last changes, two gateways by turns at a load of 13 (bursts of 200 to 300 requests,
median of five or six pairs): with its engine 1.83 → 1.47 ms of CPU (0.80 of it), 677 → 805 requests a second,
p50 at 32 in flight 28 → 25 ms; as proxy 3.60 → 1.52 ms (0.43), 236 → 762 a second, p50 at 16 in flight 52 →
17 ms. What did it: calls pass by the framework's layers (`http/direct.py`), calls to providers by those of
httpx's own transport (`http/lean_transport.py`: it took half of a call), pydantic-core writes answers and
journal rows, and lists of ids are not walked number by number. What is left with an engine, by a profile: a
third is recording, in a thread that the event loop waits for; the signature and the JSON of 160 numbers are a
tenth. The next step is to record in a child process.

At rest (a load of 1.1, 8 s a case, `results/gateway.json`): 832 and 1,291 requests a second at 1 and 32 in
flight, p50 at 32 23.0 ms and p99 54 ms; as proxy 594 and 933, 31 and 72 ms; TensorZero 1,976 and 3,061, 9.9
and 24 ms.

Earlier, on another machine, at a load of 2 to 3 and without these changes: 1,158 and 1,300 requests a second
at 32 in flight, p50 24.7 and 22.7 ms, beside 2,955 and 10.8 ms of TensorZero's.

Memory in MiB at each tenth of 20,000 calls, when all is recorded and free memory was returned, as the service
does each minute. With its engine 120.8, 120.7, 121.1, 126.2, 126.0, 127.6, 125.8, 125.1, 126.1, 127.6; as
proxy 114.0, 115.4, 116.4, 117.5, 121.8, 120.5, 123.2, 122.2, 121.4, 121.6. Both stay over their second half,
and Python's objects were as many after 5,000 calls as after 2,000. 30,000 calls without any pause ended at
282 MiB, before a return of free memory: what each thread keeps, and work that waits to be recorded.

    python benchmarks/gateway.py [--quick] [--clients 32] [--seconds 10] [--json FILE] [--profile FILE]
        [--litellm VENV/bin/litellm] [--memory 20000 [--memory-only]]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from machine import until_told

WORDS = "the agent reads the ticket looks up the order and tells the customer when the parcel will arrive "
PROMPT, ANSWER = (WORDS * 4)[:300], (WORDS * 2)[:160]
TOKENS = 40
STUB_ANSWER = {
    "id": "stub",
    "object": "chat.completion",
    "created": 0,
    "model": "stub",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 80, "completion_tokens": TOKENS, "total_tokens": 80 + TOKENS},
}


# HTTP over plain sockets: the load must cost less than what it measures.


class Connection:
    """One connection that is kept alive. One request at a time."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._host, self._port = host, int(port)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def post(self, path: str, body: bytes, headers: str = "") -> tuple[int, bytes]:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        assert self._reader is not None
        self._writer.write(
            f"POST {path} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n{headers}"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        return int(head[9:12]), await self._reader.readexactly(length)


class _Stub(asyncio.Protocol):
    """Answers every request with the same completion."""

    BODY = json.dumps(STUB_ANSWER).encode()
    REPLY = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY
    )

    def __init__(self) -> None:
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        while b"\r\n\r\n" in self._got:
            head, _, rest = self._got.partition(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(rest) < length:
                return
            self._got = rest[length:]
            self._transport.write(self.REPLY)  # type: ignore[attr-defined]


async def serve_stub() -> None:
    server = await asyncio.get_running_loop().create_server(_Stub, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


# The gateway.


class StubEngine:
    """An engine that asks the stub over HTTP, with tokens that are made up."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._free: list[Connection] = []
        self._ids = list(range(100, 100 + TOKENS))
        self._logprobs = [-0.125] * TOKENS

    async def generate(self, messages: Any, *, session_id: str, adapter: str | None, **asked: Any) -> Any:
        from onward.ids import new_id
        from onward.serving.engines import Generation

        connection = self._free.pop() if self._free else Connection(self._url)
        body = json.dumps({"model": "stub", "messages": list(messages)}).encode()
        status, data = await connection.post("/v1/chat/completions", body)
        assert status == 200
        self._free.append(connection)
        answer = json.loads(data)
        sampling = {
            "generation_id": new_id(),
            "continues": None,
            "prompt_ids": list(range(80)),
            "token_ids": list(self._ids),
            "logprobs": list(self._logprobs),
            "temperature": asked.get("temperature", 1.0),
            "top_p": asked.get("top_p", 1.0),
            "finish_reason": "stop",
            "model_digest": "0" * 64,
        }
        return Generation(answer["choices"][0]["message"]["content"], sampling, answer["usage"])

    async def load_adapter(self, digest: str, folder: Path) -> None: ...

    async def unload_adapter(self, digest: str) -> None: ...

    async def adapters(self) -> list[str]:
        return []

    async def health(self) -> dict[str, Any]:
        return {"base_digest": "0" * 64, "adapters": [], "running": 0}


async def serve_gateway(stub: str, folder: Path, profile: str) -> None:
    from onward import host
    from onward.bus import Bus, NatsServer
    from onward.clock import SystemClock
    from onward.config import load
    from onward.context import Context
    from onward.serving.http.gateway import SWITCH_SECONDS, Gateway
    from onward.telemetry import Alerts, Metrics, logs
    from onward.warehouse import Objects

    logs.setup("warning")
    sys.setswitchinterval(SWITCH_SECONDS)
    settings = load(
        environ={},
        overrides={
            "data_dir": str(folder),
            "http": {"gateway_port": 0},
            "model": {"base": "tiny"},
            "capture": {"grace_seconds": GRACE_SECONDS},
            "providers": {"far": {"base_url": f"{stub}/v1", "models": ["stub"]}},
        },
    )
    server = NatsServer(folder)
    await server.start()
    bus = await Bus.connect(server.url, token=server.token, name="benchmark")
    await bus.ensure_streams()
    clock, metrics = SystemClock(), Metrics()
    ctx = Context(
        settings=settings,
        clock=clock,
        bus=bus,
        warehouse=None,  # type: ignore[arg-type]
        objects=Objects.open(settings.objects_at),
        metrics=metrics,
        alerts=Alerts(bus, clock, metrics),
    )
    gateway = Gateway(ctx, StubEngine(stub))
    host.collect_rarely()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _free_memory)
    await gateway.start()
    print(f"{gateway.server.url} {server.pid}", flush=True)
    started = time.process_time()
    await until_told(profile)
    await gateway.stop()  # records what is open
    info = await bus.js.stream_info("RL_TRAJECTORIES")
    print(info.state.last_seq, time.process_time() - started, flush=True)
    await bus.close()
    await server.stop()


def _free_memory() -> None:
    from onward import host

    gc.collect()
    host.return_free_memory()


GRACE_SECONDS = 2.0
"""A conversation is recorded this long after its answer: within the run, as in a steady state."""


# Measuring.


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


Ask = Callable[[int], Awaitable[None]]


async def load_with(ask_with: Callable[[], Ask], clients: int, seconds: float) -> tuple[list[float], float]:
    """Runs ``clients`` loops of requests. Returns the seconds of each request, and those of all."""
    taken: list[float] = []
    until = time.monotonic() + seconds
    first = next(_NUMBERS)

    async def client(number: int) -> None:
        ask = ask_with()
        count = 0
        while time.monotonic() < until:
            started = time.monotonic()
            await ask((first + number) * 1_000_000 + count)
            taken.append(time.monotonic() - started)
            count += 1

    started = time.monotonic()
    await asyncio.gather(*(client(number) for number in range(clients)))
    return taken, time.monotonic() - started


_NUMBERS = itertools.count(0, 1000)
"""Each run has numbers of its own, so that each request is a task of its own."""


ENGINE, PROVIDER = "onward", "far/stub"
"""The two models of the gateway: that of its engine, and that of a provider, the same stub by another way."""


def request_body(number: int, model: str = ENGINE) -> dict[str, Any]:
    text = f"{number} {PROMPT}"
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": TOKENS}


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def say(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@dataclass
class Side:
    """One of those that are compared."""

    what: str
    ask_with: Callable[[], Ask]
    pid: int
    """Process whose CPU time is counted; for an embedded gateway, that of the clients."""
    settles: float = 0.0
    """Seconds after which everything of a run is recorded, and its CPU time counted."""
    taken: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    wall: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    cpu: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    def run(self, runner: asyncio.Runner, clients: int, seconds: float) -> None:
        before = cpu_seconds(self.pid)
        taken, wall = runner.run(load_with(self.ask_with, clients, seconds))
        time.sleep(self.settles)
        self.cpu[clients] += cpu_seconds(self.pid) - before
        self.taken[clients] += taken
        self.wall[clients] += wall

    def results(self) -> list[dict[str, Any]]:
        found = []
        for clients, taken in self.taken.items():
            cuts = statistics.quantiles(taken, n=100)
            found.append(
                {
                    "what": self.what,
                    "clients": clients,
                    "requests": len(taken),
                    "per_second": len(taken) / self.wall[clients],
                    "p50_ms": 1e3 * cuts[49],
                    "p90_ms": 1e3 * cuts[89],
                    "p99_ms": 1e3 * cuts[98],
                    "cpu_ms": 1e3 * self.cpu[clients] / len(taken),
                }
            )
        return found


def by_turns(sides: list[Side], counts: list[int], seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Measures all sides in turns, so that other work on the machine meets all of them alike."""
    with asyncio.Runner() as runner:
        for side in sides:
            runner.run(load_with(side.ask_with, max(counts), 1.0))
        for clients in counts:
            for _ in range(rounds):
                for side in sides:
                    side.run(runner, clients, seconds / rounds)
    return [one for side in sides for one in side.results()]


@contextmanager
def gateway_sides(stub: str, profile: str) -> Iterator[list[Side]]:
    """The gateway with its engine, and as the proxy of a provider."""
    with tempfile.TemporaryDirectory() as folder:
        process = start("--serve", stub, "--dir", folder, "--profile", profile)
        try:
            url, _ = say(process).split()
            key = (Path(folder) / "run" / "api.key").read_text().strip()

            def asks(model: str) -> Callable[[], Ask]:
                def ask_with() -> Ask:
                    connection = Connection(url)

                    async def ask(number: int) -> None:
                        headers = f"authorization: Bearer {key}\r\nonward-session: s{number}-{RUN}\r\n"
                        body = json.dumps(request_body(number, model)).encode()
                        status, data = await connection.post("/v1/chat/completions", body, headers)
                        assert status == 200, data

                    return ask

                return ask_with

            sides = [
                Side(what, asks(model), process.pid, GRACE_SECONDS + 0.6)
                for what, model in (("onward", ENGINE), ("onward as proxy", PROVIDER))
            ]
            yield sides
            assert process.stdin is not None
            process.stdin.write("stop\n")
            process.stdin.flush()
            made = sum(len(taken) for side in sides for taken in side.taken.values())
            print(f"{say(process).split()[0]} trajectories published of {made} requests and the first ones")
            process.wait(120)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


RUN = secrets.token_hex(4)

TENSORZERO = """
[models.stub]
routing = ["stub"]
[models.stub.providers.stub]
type = "openai"
model_name = "stub"
api_base = "{url}/v1/"
api_key_location = "none"
[functions.chat]
type = "chat"
[functions.chat.variants.stub]
type = "chat_completion"
model = "stub"
"""


@contextmanager
def tensorzero_sides(stub: str) -> Iterator[list[Side]]:
    """TensorZero's embedded gateway, which stores nothing here."""
    try:
        from tensorzero import AsyncTensorZeroGateway  # type: ignore[import-not-found]
    except ImportError:
        print("TensorZero is left out: install the package tensorzero.")
        yield []
        return
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "tensorzero.toml"
        config.write_text(TENSORZERO.format(url=stub))
        built: list[Any] = []
        building = asyncio.Lock()

        async def gateway() -> Any:
            async with building:
                if not built:
                    made: Any = AsyncTensorZeroGateway.build_embedded(config_file=str(config))
                    built.append(await made if hasattr(made, "__await__") else made)
            return built[0]

        def ask_with() -> Ask:
            async def ask(number: int) -> None:
                message = request_body(number)["messages"][0]
                await (await gateway()).inference(function_name="chat", input={"messages": [message]})

            return ask

        yield [Side("tensorzero embedded", ask_with, os.getpid())]


LITELLM = """
model_list:
  - model_name: stub
    litellm_params: {{model: openai/stub, api_base: "{url}/v1", api_key: none}}
"""


@contextmanager
def litellm_sides(program: str, stub: str) -> Iterator[list[Side]]:
    """The proxy of LiteLLM, one worker, without key and without any record."""
    if not program or not Path(program).is_file():
        print("LiteLLM is left out: give --litellm PATH of its program, in an environment of its own.")
        yield []
        return
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "litellm.yaml"
        config.write_text(LITELLM.format(url=stub))
        command = [program, "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environ["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
        environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
        null = subprocess.DEVNULL
        process = subprocess.Popen(command, env=environ, stdout=null, stderr=null)
        try:
            url = f"http://127.0.0.1:{port}"
            asyncio.run(_answers(url))
            yield [Side("litellm", _plain_asks(url), process.pid)]
        finally:
            process.terminate()
            process.wait(30)


def _plain_asks(url: str) -> Callable[[], Ask]:
    def ask_with() -> Ask:
        connection = Connection(url)

        async def ask(number: int) -> None:
            body = json.dumps(request_body(number, "stub")).encode()
            status, data = await connection.post("/v1/chat/completions", body)
            assert status == 200, data

        return ask

    return ask_with


async def _answers(url: str) -> None:
    """Waits until a server answers a call."""
    async with asyncio.timeout(180):
        while True:
            try:
                body = json.dumps(request_body(0, "stub")).encode()
                status, _ = await Connection(url).post("/v1/chat/completions", body)
                if status == 200:
                    return
            except (OSError, asyncio.IncompleteReadError):
                pass
            await asyncio.sleep(0.5)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def memory_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def measure_memory(stub: str, calls: int, model: str = ENGINE) -> list[dict[str, Any]]:
    """Returns the gateway's resident memory at each tenth of ``calls`` calls, each a task of its own: under
    load, and when all is recorded and free memory was returned, as the service does each minute."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        process = start("--serve", stub, "--dir", folder)
        try:
            url, _ = say(process).split()
            key = (Path(folder) / "run" / "api.key").read_text().strip()
            for tenth in range(10):
                asyncio.run(_calls(url, key, tenth * calls // 10, (tenth + 1) * calls // 10, model))
                made, loaded = (tenth + 1) * calls // 10, memory_mib(process.pid)
                time.sleep(GRACE_SECONDS + 2.0)  # all is recorded
                process.send_signal(signal.SIGUSR1)
                time.sleep(1.0)
                used = memory_mib(process.pid)
                found.append(
                    {"what": "memory", "model": model, "calls": made, "loaded_mib": loaded, "rss_mib": used}
                )
                print(f"{model}: {made} calls, {loaded:.1f} MiB, at rest {used:.2f} MiB", flush=True)
        finally:
            process.kill()
            process.wait()
    return found


async def _calls(url: str, key: str, first: int, last: int, model: str) -> None:
    numbers = iter(range(first, last))

    async def client() -> None:
        connection = Connection(url)
        for number in numbers:
            headers = f"authorization: Bearer {key}\r\nonward-session: m{number}-{RUN}\r\n"
            body = json.dumps(request_body(number, model)).encode()
            status, data = await connection.post("/v1/chat/completions", body, headers)
            assert status == 200, data

    await asyncio.gather(*(client() for _ in range(16)))


def ratios(results: list[dict[str, Any]]) -> dict[str, float]:
    """Returns what the gateway adds to the stub with one call in flight, and its rate beside LiteLLM's."""
    found = {(one["what"], one.get("clients")): one for one in results}
    shown: dict[str, float] = {}
    alone = found.get(("stub alone", 1))
    for what in ("onward", "onward as proxy"):
        name = what.replace(" ", "_")
        if alone and (ours := found.get((what, 1))):
            shown[f"{name}_overhead_p50_ms"] = ours["p50_ms"] - alone["p50_ms"]
        for (peer, clients), one in found.items():
            beside = found.get((what, clients))
            if peer in ("litellm", "tensorzero embedded") and beside:
                times = beside["per_second"] / one["per_second"]
                shown[f"{name}_times_{peer.partition(' ')[0]}_at_{clients}"] = times
    return shown


def _loaded(url: str, stub: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures the stub itself, the gateway both ways, and the peers."""
    sides = [Side("stub alone", _plain_asks(url), stub)]
    with ExitStack() as opened:
        sides += opened.enter_context(gateway_sides(url, options.profile))
        sides += opened.enter_context(tensorzero_sides(url))
        sides += opened.enter_context(litellm_sides(options.litellm, url))
        return by_turns(sides, options.clients, options.seconds, 1 if options.quick else 5)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--clients", type=int, nargs="*", default=[1, 32])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--quick", action="store_true", help="two seconds a case: only to see that it works")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", default="")
    parser.add_argument("--litellm", default="", help="program of LiteLLM's proxy, in a venv of its own")
    parser.add_argument("--memory", type=int, default=0, help="calls over which memory is followed, each way")
    parser.add_argument("--memory-only", action="store_true", help="leaves the load out")
    parser.add_argument("--stub", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", default="", help=argparse.SUPPRESS)
    parser.add_argument("--dir", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.seconds = 2.0 if options.quick else options.seconds
    if options.stub:
        asyncio.run(serve_stub())
        return 0
    if options.serve:
        asyncio.run(serve_gateway(options.serve, options.dir, options.profile))
        return 0
    stub = start("--stub")
    try:
        url = say(stub)
        results = [] if options.memory_only else _loaded(url, stub.pid, options)
        for model in (ENGINE, PROVIDER) if options.memory else ():
            results += measure_memory(url, options.memory, model)
    finally:
        stub.kill()
        stub.wait()
    load = os.getloadavg()
    for result in results:
        print("  ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in result.items()))
    for name, value in ratios(results).items():
        print(f"{name} {value:.2f}")
    print(f"load average {load[0]:.1f} of {os.cpu_count()} cores")
    if options.json:
        options.json.write_text(json.dumps({"results": results, "load": load[0]}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
