"""Three ways to apply a configuration to TensorZero, each read back before it counts.

``Embedded`` builds a new gateway in this process and switches to it. ``ConfigFile`` writes a file and runs a
reload command. ``Endpoint`` uses TensorZero's apply endpoint, which it marks as internal and unstable; each
call reaches one process, so every replica gets its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import httpx

from onward import extras
from onward.errors import ConfigError, ConflictError, EngineError
from onward.files import write_whole
from onward.release.tensorzero.configuration import MARKER, Split, digest_of, read_back, spliced

RELOAD_SECONDS = 30.0
CALL_SECONDS = 10.0
CONFIG_PATH = "/internal/config_toml"
APPLY_PATH = "/internal/config_toml/apply"
_ALONE = "[gateway]\nobservability.enabled = false\n\n"
"""Beginning of a file that is new: TensorZero stores nothing, the gateways record."""


class Target(Protocol):
    async def apply(self, tables: str) -> None:
        """Applies the tables. Raises EngineError, ConflictError or ConfigError if they do not serve."""
        ...

    async def serves(self) -> Split:
        """Returns the split that serves, read back from the target. Raises like ``apply``."""
        ...

    async def close(self) -> None: ...


class Embedded:
    """A gateway within this process. A change builds a new one beside it (about 40 ms).

    Invariants: calls in flight end on the gateway that they began on; it is closed after the last of them.
    """

    def __init__(self, file: Path, function: str) -> None:
        """Raises MissingExtraError without the package."""
        extras.require("tensorzero", "tensorzero", "an embedded TensorZero gateway")
        self._file, self._function = file, function
        self._gateway: Any = None
        self._running: dict[int, int] = {}
        self._retired: dict[int, Any] = {}

    async def apply(self, tables: str) -> None:
        _write(self._file, tables)
        try:
            built = await _build(self._file)
        except Exception as error:  # the package raises its own types, and RuntimeError
            raise EngineError(
                f"TensorZero refuses the configuration {self._file}: {_short(error)}"
            ) from error
        old, self._gateway = self._gateway, built
        if old is not None:
            await self._retire(old)

    async def serves(self) -> Split:
        """Returns the split of the file, if the running gateway was built from exactly that one."""
        if self._gateway is None:
            return {}
        split = read_back(self._file.read_text(encoding="utf-8"), self._function)
        functions = self._gateway.experimental_get_config().functions
        try:
            functions[MARKER].variants[digest_of(split)]
            variants = functions[self._function].variants
            served = {arm: variants[arm].model for arm in split}
        except KeyError:
            raise ConflictError("TensorZero serves other routes than its file has: apply it again.") from None
        return {arm: (served[arm], weight) for arm, (_, weight) in split.items()}

    async def inference(self, **call: Any) -> Any:
        """Calls the gateway that serves now, as the package's ``inference`` does."""
        gateway = self._gateway
        if gateway is None:
            raise EngineError("TensorZero has no configuration yet: wait for the releaser to apply one.")
        key = id(gateway)
        self._running[key] = self._running.get(key, 0) + 1
        try:
            return await gateway.inference(**call)
        finally:
            self._running[key] -= 1
            if not self._running[key]:
                del self._running[key]
                if (idle := self._retired.pop(key, None)) is not None:
                    await idle.close()

    async def close(self) -> None:
        if self._gateway is not None:
            old, self._gateway = self._gateway, None
            await self._retire(old)

    async def _retire(self, gateway: Any) -> None:
        if self._running.get(id(gateway)):
            self._retired[id(gateway)] = gateway
        else:
            await gateway.close()


class ConfigFile:
    """A file that a TensorZero elsewhere reads beside those of the user, and the command that reloads it."""

    def __init__(self, file: Path, function: str, command: Sequence[str]) -> None:
        self._file, self._function, self._command = file, function, list(command)

    async def apply(self, tables: str) -> None:
        _write(self._file, tables)
        if not self._command:
            return
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as error:
            raise ConfigError(
                f"tensorzero.reload_command cannot be run ({error.strerror}): {self._command[0]}."
            ) from None
        try:
            async with asyncio.timeout(RELOAD_SECONDS):
                _, errors = await child.communicate()
        except TimeoutError:
            raise EngineError(f"tensorzero.reload_command did not end within {RELOAD_SECONDS:g} s.") from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        if child.returncode:
            said = errors.decode(errors="replace")[:200]
            raise EngineError(f"tensorzero.reload_command ended with {child.returncode}: {said}")

    async def serves(self) -> Split:
        if not self._file.exists():
            return {}
        return read_back(self._file.read_text(encoding="utf-8"), self._function)

    async def close(self) -> None:
        """Closes nothing: the file stays."""


class Endpoint:
    """The apply endpoint of one or more replicas. It compares the signature of what it was read as."""

    def __init__(self, urls: Sequence[str], token: str | None, function: str) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._urls, self._function = [url.rstrip("/") for url in urls], function
        self._client = httpx.AsyncClient(headers=headers, timeout=CALL_SECONDS)

    async def apply(self, tables: str) -> None:
        for url in self._urls:
            now = await self._read(url)
            body = {
                "toml": spliced(str(now["toml"]), tables),
                "path_contents": now.get("path_contents") or {},
                "base_signature": now["base_signature"],
            }
            answer = await self._call("POST", url + APPLY_PATH, json=body)
            if answer.status_code in (409, 412):
                raise ConflictError(f"The configuration of TensorZero at {url} was changed meanwhile.")
            self._check(answer, url)

    async def serves(self) -> Split:
        """Returns the split if every replica has the same one."""
        found = [read_back(str((await self._read(url))["toml"]), self._function) for url in self._urls]
        if any(split != found[0] for split in found):
            raise ConflictError("The replicas of TensorZero serve different routes: they are applied again.")
        return found[0]

    async def close(self) -> None:
        await self._client.aclose()

    async def _read(self, url: str) -> dict[str, Any]:
        answer = await self._call("GET", url + CONFIG_PATH)
        self._check(answer, url)
        try:
            document = cast("dict[str, Any]", answer.json())
            if not {"toml", "base_signature"} <= document.keys():
                raise KeyError("toml")
        except (ValueError, AttributeError, KeyError):
            raise EngineError(
                f"TensorZero at {url} answers {CONFIG_PATH} in a form that is not known: use apply = 'file'."
            ) from None
        return document

    async def _call(self, method: str, url: str, **more: Any) -> httpx.Response:
        try:
            return await self._client.request(method, url, **more)
        except httpx.HTTPError as error:
            raise EngineError(f"TensorZero at {url} does not answer ({type(error).__name__}).") from None

    def _check(self, answer: httpx.Response, url: str) -> None:
        if answer.status_code == 404:
            raise EngineError(
                f"TensorZero at {url} has no {CONFIG_PATH}: it needs Postgres and "
                f"TENSORZERO_INTERNAL_FLAG_ENABLE_CONFIG_IN_DATABASE=true, or use apply = 'file'."
            )
        if answer.status_code >= 400:
            raise EngineError(f"TensorZero at {url} refuses with status {answer.status_code}.")


def _write(file: Path, tables: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    before = file.read_text(encoding="utf-8") if file.exists() else _ALONE
    write_whole(file, spliced(before, tables).encode())


async def _build(file: Path) -> Any:
    from tensorzero import AsyncTensorZeroGateway

    made = AsyncTensorZeroGateway.build_embedded(config_file=str(file))
    return await cast("Awaitable[Any]", made) if inspect.isawaitable(made) else made


def _short(error: Exception) -> str:
    return str(error)[:300]
