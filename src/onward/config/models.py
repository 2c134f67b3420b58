"""Settings of the models, and of the engines that serve them."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, field_validator

from onward.config.section import Section


def _server_address(value: str) -> str:
    """Refuses an address that is no ``http://host:port``. Empty means that none is given."""
    if value and re.fullmatch(r"https?://[^\s/?#@]+(/v1)?/?", value) is None:
        raise ValueError("the url is not http://host:port: give scheme, host and port, no user or path")
    return value


ServerAddress = Annotated[str, AfterValidator(_server_address)]
"""Address of an inference server, or nothing."""

_VLLM_OWN = ("--model", "--served-model-name", "--host", "--port", "--uds", "--api-key")
"""Options of a vLLM server that the gateway alone gives."""


class VllmSettings(Section):
    url: ServerAddress = ""
    """Address of a server that you run: ``http://127.0.0.1:8000``, started with ``--enable-lora
    --logprobs-mode processed_logprobs`` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True. Empty: the gateway starts
    one and keeps it alive."""
    command: list[str] = Field(default_factory=list)
    """Command of the server that the gateway starts, for a vLLM in another environment:
    ``["/opt/vllm/bin/python", "-m", "vllm.entrypoints.openai.api_server"]``. Empty: the vLLM that is
    installed beside Onward."""
    options: list[str] = Field(default_factory=list)
    """Further options of that server, such as ``--dtype float32``; they take precedence over Onward's, except
    for its model, name, address and key, which cannot be given."""
    key: SecretStr = SecretStr("")
    """API key of the server (its ``--api-key``)."""
    model: str = ""
    """Name under which the server serves the base model; empty: its first model that is not an adapter."""
    adapters_dir: str = ""
    """Path of ``models/adapters`` of the data directory on the server; empty: the same path as here."""
    timeout_seconds: float = Field(600.0, gt=0)
    """Longest time for one answer, in seconds."""

    @field_validator("command", "options", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """Accepts text as a shell splits it, the form used in the environment."""
        return shlex.split(value) if isinstance(value, str) else value

    @field_validator("options")
    @classmethod
    def _leave_ours(cls, value: list[str]) -> list[str]:
        for word in value:
            name = word.partition("=")[0].replace("_", "-")  # vLLM takes both
            if len(name) > 2 and any(own.startswith(name) for own in _VLLM_OWN):  # and it takes abbreviations
                raise ValueError(
                    f"the option {word.partition('=')[0]} is set by Onward, which needs a model, name, "
                    f"address and key of its own choice: leave it out"
                )
        return value


class SglangSettings(Section):
    url: ServerAddress = ""
    """Address of a server that you run: ``http://127.0.0.1:30000``, started with ``--enable-lora``."""
    key: SecretStr = SecretStr("")
    """API key of the server (its ``--api-key``)."""
    model: str = ""
    """Name under which the server serves the base model; empty: the first that it lists."""
    adapters_dir: str = ""
    """Path of ``models/adapters`` of the data directory on the server; empty: the same path as here."""
    timeout_seconds: float = Field(600.0, gt=0)
    """Longest time for one answer, in seconds."""


class OllamaSettings(Section):
    url: ServerAddress = ""
    """Address of a server that you run: ``http://127.0.0.1:11434``."""
    model: str = ""
    """Name of the base model on the server, such as ``llama3.2:1b-instruct-fp16``: the model of
    ``model.base``. Empty: the only one that it lists."""
    keep_alive: str = "30m"
    """Time that a model stays in the server's memory after a call, in Ollama's form; ``-1`` is forever."""
    timeout_seconds: float = Field(600.0, gt=0)
    """Longest time for one answer, in seconds."""


class OpenAiSettings(Section):
    url: ServerAddress = ""
    """Address of any server with OpenAI's chat API, such as ``https://api.openai.com/v1``."""
    key: SecretStr = SecretStr("")
    """API key of the server."""
    model: str = ""
    """Name of the model on the server."""
    timeout_seconds: float = Field(600.0, gt=0)
    """Longest time for one answer, in seconds."""


class ModelsSettings(Section):
    aliases: dict[str, str] = Field(default_factory=dict)
    """Names for model folders: `"qwen2.5-32b-instruct" = "/models/qwen"`. ``model.base``, ``RL_BASE_MODEL``,
    ``--model`` and training requests may use such a name, in upper or lower case."""
    require_signature: bool = False
    """Refuses a checkpoint whose manifest no trusted key has signed (``onward keys init``)."""
    trusted_keys: list[str] = Field(default_factory=list)
    """Public keys, in base64, whose signatures count beside the key in ``run/``: those of trainers on other
    data folders, and earlier keys."""

    @field_validator("trusted_keys")
    @classmethod
    def _public_keys(cls, value: list[str]) -> list[str]:
        for key in value:
            if re.fullmatch(r"[A-Za-z0-9+/]{43}=", key) is None:
                raise ValueError(
                    f"{key[:60]!r} is no public key: give the line that 'onward keys show' prints"
                )
        return value

    @field_validator("aliases")
    @classmethod
    def _differ(cls, value: dict[str, str]) -> dict[str, str]:
        seen: dict[str, str] = {}
        for name, folder in value.items():
            if not name.strip() or not folder.strip():
                raise ValueError(f"the alias {name!r} has no name or no folder: give both")
            if name.lower() in ("tiny", "smollm2"):
                raise ValueError(
                    f"{name!r} is a model that Onward makes or pulls itself: choose another name"
                )
            if (other := seen.setdefault(name.lower(), name)) != name:
                raise ValueError(f"{name!r} and {other!r} differ in case alone: keep one of them")
        return value

    def names_of(self, name: str) -> list[str]:
        """Returns the aliases of the same folder."""
        return [alias for alias, folder in self.aliases.items() if folder == self.expand(name)]

    def expand(self, name: str) -> str:
        """Returns the folder of an alias, whatever the case of its letters; another name as it is."""
        found = {alias.lower(): folder for alias, folder in self.aliases.items()}
        return found.get(name.strip().lower(), name)


class ModelSettings(Section):
    base: str = "smollm2"
    """``smollm2``, ``tiny`` (only in a data folder of ``onward demo``, which makes it), an alias of
    ``[models.aliases]``, or a folder with a model in transformers' form (safetensors)."""
    id_pattern: str = "agent-zero-rl-v{n}"
    """Name of released models. ``{n}`` counts up; in ``…-v2.{n}`` only the last number does."""
    device: str = "auto"
    """Device of the engine and of the jobs: ``cpu``, ``cuda``, ``cuda:N``, or ``auto``, which is the first
    GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number format of the network: ``float32``, ``bfloat16``, ``float16``, or ``auto``: bfloat16 on a GPU,
    and on a CPU that a short measurement finds faster in it."""
    threads: int = Field(0, ge=0)
    """CPU threads of the engine and of a training job; 0 means all cores."""
    max_batch: int = Field(64, ge=1)
    max_context: int = Field(2048, ge=64)
    path: Literal["auto", "transformers"] = "auto"
    """Code that computes the model in jobs and the built-in engine: Onward's own forward where it knows the
    family, or always the modules of transformers."""
    engine: Literal["local", "vllm", "sglang", "ollama", "openai"] = "local"
    """Sampler: the built-in engine; the vLLM server of ``[vllm]``, which the gateway starts unless
    ``vllm.url`` is given (``base`` is then the folder of the same model here); the SGLang server of
    ``[sglang]``; the Ollama server of ``[ollama]``; or the closed model of ``[openai]``, whose answers are
    only recorded."""

    @field_validator("device")
    @classmethod
    def _device(cls, value: str) -> str:
        if re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", value) is None:
            raise ValueError(f"{value[:40]!r} is no device: give auto, cpu, cuda or cuda:N")
        return value
