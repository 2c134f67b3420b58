"""Settings: ``onward.toml``, then the environment, checked once at the start.

Published environment variables (``NATS_URL``, ``RL_ALGORITHM``, ``REWARD_WEIGHT_*`` …) are read under their
own names; everything else is ``ONWARD_<SECTION>__<FIELD>``. An unknown key is an error, because a misspelt
gate that silently passes is worse than none. A service that is not configured runs embedded.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from onward.contracts.cron import OFF, is_cron
from onward.errors import ConfigError
from onward.spelling import closest_name

Algorithm = Literal["ppo", "dpo", "rloo", "grpo", "reinforce"]
REWARD_COMPONENTS = (
    "task_completion", "efficiency", "code_quality", "user_feedback", "safety", "accuracy", "rubric",
)  # fmt: skip
"""Names of the built-in reward components, each with a weight of its own."""
LEAST_KEY = 8
"""Least characters of an API key that the environment gives."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _split_at_commas(value: Any) -> Any:
    """Accepts text with commas, the form used in the environment, in place of a list."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class NatsSettings(_Section):
    url: str | None = None
    """Server to use, for example ``nats://nats:4222``. Empty: an embedded server is started."""
    port: int = Field(4222, ge=0, le=65535)
    """Port of the embedded server; 0 picks a free one at every start."""
    token: SecretStr | None = None
    """Token for ``url``. The embedded server generates its own."""
    user: str | None = None
    """User for ``url``, such as ``service`` or a role of ``onward nats config``."""
    password: SecretStr | None = None
    """Password of ``user``."""
    sync: Literal["always", "relaxed"] = "always"
    """Embedded server only. ``always`` fsyncs every message; ``relaxed`` may lose seconds on power loss."""


class StreamSettings(_Section):
    expected_gb_per_month: float = Field(3.0, gt=0, le=1e6)
    """Gigabytes of trajectories that agents publish in a month, the time that streams keep them. Byte limits
    follow from it with a quarter to spare. They are raised at the next start and never lowered."""
    trajectories_bytes: int | None = Field(None, ge=64 << 20)
    """Byte limit of RL_TRAJECTORIES alone. Empty: it follows from ``expected_gb_per_month``."""


class WarehouseSettings(_Section):
    url: str | None = None
    """ClickHouse HTTP address, for example ``http://clickhouse:8123``. Empty: chDB is embedded."""
    user: str = "default"
    password: SecretStr = SecretStr("")
    database: str = "rl"

    @field_validator("url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if (
            value
            and re.fullmatch(r"https?://([^\s/?#@]*@)?(\[[^\s/]+\]|[^\s/?#@:\[\]]+)(:\d{1,5})?/?", value)
            is None
        ):
            raise ValueError(
                "the url is not http://host:port: give scheme, host and port, and user and password as "
                "settings of their own"
            )
        return value


class ObjectSettings(_Section):
    models_url: str | None = None
    """Address for checkpoints, for example ``s3://bucket/rl-checkpoints/``. Empty: a local folder."""
    trajectories_url: str | None = None
    """Address of frozen datasets, and of trajectories that a request of source ``s3`` may name, for example
    ``s3://bucket/trajectories/``. Empty: datasets go to the store of checkpoints."""


class CaptureSettings(_Section):
    opt_out: str = ""
    """Patterns, separated by commas, on session, agent or ``metadata.user_hash``: a match is never stored."""
    quarantine_key: SecretStr | None = None
    """Base64 key of 32 bytes for quarantined bodies. Empty: ``run/quarantine.key``, made at first use."""
    optional_kinds: list[str] = Field(default_factory=list)
    """Kinds that are redacted only when listed: WALLET, SEED_PHRASE, GPS, DATE_OF_BIRTH, PASSPORT."""
    known_secrets_file: Path | None = None
    """File with your own secrets, one a line, read at the start: each is replaced wherever it occurs."""
    redaction_rules_file: Path | None = None
    """TOML file with redaction rules of your own and an allow list, read at the start."""
    gateway: bool = True
    """Records the calls that the gateway answers. A call overrides this with ``Onward-Capture: on|off``."""
    off_keys: list[str] = Field(default_factory=list)
    """SHA-256 hashes, in hex, of the API keys whose calls the gateway does not record."""
    grace_seconds: float = Field(60, ge=0)
    """Seconds after a final answer in which an outcome or a further message still belongs to the task."""
    idle_seconds: float = Field(300, gt=0)
    """Seconds without a call after which a recorded task is closed as it is."""
    max_open: int = Field(10_000, ge=1)
    """Conversations followed at once; beyond it the least recently used one is closed and recorded."""
    max_open_bytes: int = Field(256 << 20, ge=1 << 20)
    """The same limit in bytes of text and tokens, approximately."""

    @field_validator("optional_kinds", mode="before")
    @classmethod
    def _kinds(cls, value: Any) -> Any:
        return _split_at_commas(value)

    @field_validator("off_keys")
    @classmethod
    def _hashes(cls, value: list[str]) -> list[str]:
        if not all(re.fullmatch(r"[0-9a-fA-F]{64}", key) for key in value):
            raise ValueError("a key is not a SHA-256 of 64 hex digits: never write the key itself")
        return value


class KeyLimits(_Section):
    """Limits of one API key: ``[http.key_limits.SHA256]``."""

    requests_per_minute: int = Field(0, ge=0)
    """Model calls of the key, at once and then in each minute; 0 means no limit."""
    tokens_per_minute: int = Field(0, ge=0)
    """Tokens of prompts and answers in the same sense; 0 means no limit."""


class HttpSettings(_Section):
    host: str = "127.0.0.1"
    gateway_port: int = Field(3000, ge=0, le=65535)
    """Port of the OpenAI-compatible gateway; 0 picks a free one."""
    api_port: int = Field(8100, ge=0, le=65535)
    """Port of health, metrics, status and feedback; 0 picks a free one."""
    names: list[str] = Field(default_factory=list)
    """Further host names under which clients may call the services, without port: ``agents.example.org``."""
    keys: dict[str, list[str]] = Field(default_factory=dict)
    """SHA-256 of an API key, in hex → its scopes: ingest, read, train, deploy, admin, chat, feedback."""
    key_names: dict[str, str] = Field(default_factory=dict)
    """SHA-256 of an API key, in hex → its name, which a training job gets as ``requester``."""
    auth: Literal["keys", "none"] = "keys"
    """``none`` serves every call without a key, also beyond this machine: only for a network that keeps
    others out, such as that of a compose file."""
    key_limits: dict[str, KeyLimits] = Field(default_factory=dict)
    """SHA-256 of an API key, in hex → its `{requests_per_minute, tokens_per_minute}` for model calls."""
    role_port: int = Field(0, ge=0, le=65535)
    """Port of health and metrics of a role that runs alone (``onward run collector``); 0 picks a free one."""
    wrong_keys_per_minute: int = Field(60, ge=0)
    """Wrong keys of one network address, at once and then in each minute, that are answered 401; further ones
    are answered 429. A valid key is served all the same; 0 means no limit."""
    max_connections: int = Field(512, ge=8)
    """Connections to one port at once, at most a quarter of the process's file descriptors. Beyond it the
    oldest one that waits for a request is closed."""

    @field_validator("key_limits")
    @classmethod
    def _limited_keys(cls, value: dict[str, KeyLimits]) -> dict[str, KeyLimits]:
        if not all(re.fullmatch(r"[0-9a-fA-F]{64}", key) for key in value):
            raise ValueError("a key is not a SHA-256 of 64 hex digits: never write the key itself")
        return {key.lower(): limits for key, limits in value.items()}

    @field_validator("names")
    @classmethod
    def _host_names(cls, value: list[str]) -> list[str]:
        for name in value:
            if re.fullmatch(r"[A-Za-z0-9._-]{1,253}", name) is None:
                raise ValueError(f"{name!r} is not a host name: give the name alone, without scheme or port")
        return value


class GatewaySettings(_Section):
    model_aliases: dict[str, str] = Field(default_factory=dict)
    """Model name in a call → the name that it stands for: ``{"gpt-4o" = "onward"}``, or the id of a model
    that serves. ``/v1/models`` lists them."""

    @field_validator("model_aliases")
    @classmethod
    def _no_chains(cls, value: dict[str, str]) -> dict[str, str]:
        for alias, name in value.items():
            if not alias or not name or alias == "onward" or name in value:
                raise ValueError(
                    f"{alias!r} = {name!r} is no alias: give a name other than 'onward', and 'onward' or a "
                    f"model id as what it stands for"
                )
        return value


PROVIDER_URLS = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}


class ProviderSettings(_Section):
    """A service with models of its own, to which the gateway passes calls: ``[providers.NAME]``."""

    kind: Literal["openai", "anthropic"] = "openai"
    """The API that it serves: OpenAI's, as most do, or Anthropic's."""
    base_url: str = ""
    """Its address as a client of that API is given it: ``https://api.openai.com/v1``, or
    ``https://api.anthropic.com`` without ``/v1``. Empty: one of these two."""
    key: SecretStr = SecretStr("")
    """Its API key. Better in a file or a variable."""
    key_file: Path | None = None
    """File that holds the key, read at the start."""
    key_env: str = ""
    """Environment variable that holds the key."""
    models: list[str] = Field(default_factory=list)
    """Models that are listed, and may be named alone; any other of its models as ``NAME/model``."""
    timeout_seconds: float = Field(600.0, gt=0)
    """Longest silence of the provider during a call, in seconds."""
    connect_seconds: float = Field(10.0, gt=0)
    """Longest time to connect."""
    retries: int = Field(2, ge=0, le=10)
    """Further tries after HTTP 408, 409, 429, 5xx or a failed connection."""
    breaker_failures: int = Field(5, ge=1)
    """Failures in a row after which calls are refused without asking it."""
    breaker_seconds: float = Field(30.0, gt=0)
    """Seconds until it is then asked once more."""
    standby: str = ""
    """Model that answers while the provider's circuit is open: ``current`` on this gateway's engine, or that
    of another provider, such as ``ollama/{current}``. Empty: none, calls are refused meanwhile."""
    max_tokens: int = Field(4096, ge=1)
    """``anthropic`` only: longest answer of a call that gives no limit, which that API demands."""

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str) -> str:
        if value and re.fullmatch(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", value) is None:
            raise ValueError("the base_url is not http://host:port/path: leave out user, password and query")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _one_key(self) -> ProviderSettings:
        if sum((bool(self.key.get_secret_value()), self.key_file is not None, bool(self.key_env))) > 1:
            raise ValueError("key, key_file and key_env exclude each other: give one of them")
        return self

    @property
    def url(self) -> str:
        """The address, or that of the service whose API it is."""
        return self.base_url or PROVIDER_URLS[self.kind]


class FeedbackSettings(_Section):
    origins: list[str] = Field(default_factory=list)
    """Web origins that may send feedback from a browser: ``https://chat.example.org``; none by default."""
    token_days: float = Field(7, gt=0, le=30)
    """Days after which a feedback token expires."""
    hand_out_tokens: bool = False
    """Adds ``Onward-Feedback-Token`` to the gateway's answers, for chat backends to forward."""
    per_session_per_minute: int = Field(20, ge=0)
    """Votes allowed on one session, at once and then in each minute; 0 means no limit."""
    per_address_per_minute: int = Field(120, ge=0)
    """The same limit for one network address without an API key. Behind a proxy it counts the proxy's
    address: raise it."""
    per_key_per_minute: int = Field(6000, ge=0)
    """The same limit for one API key."""

    @field_validator("origins", mode="before")
    @classmethod
    def _origins_text(cls, value: Any) -> Any:
        return _split_at_commas(value)

    @field_validator("origins")
    @classmethod
    def _origins(cls, value: list[str]) -> list[str]:
        for origin in value:
            if (
                re.fullmatch(r"https?://(\[[0-9A-Fa-f:]+\]|[A-Za-z0-9._-]{1,253})(:[0-9]{1,5})?", origin)
                is None
            ):
                raise ValueError(
                    f"{origin!r} is not an origin: give scheme, host and port alone, "
                    "for example 'https://chat.example.org'"
                )
        return [origin.lower() for origin in value]


def _server_address(value: str) -> str:
    """Refuses an address that is no ``http://host:port``. Empty means that none is given."""
    if value and re.fullmatch(r"https?://[^\s/?#@]+(/v1)?/?", value) is None:
        raise ValueError("the url is not http://host:port: give scheme, host and port, no user or path")
    return value


ServerAddress = Annotated[str, AfterValidator(_server_address)]
"""Address of an inference server, or nothing."""
_VLLM_OWN = ("--model", "--served-model-name", "--host", "--port", "--uds", "--api-key")
"""Options of a vLLM server that the gateway alone gives."""


class VllmSettings(_Section):
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


class ModelsSettings(_Section):
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


class SglangSettings(_Section):
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


class OllamaSettings(_Section):
    url: ServerAddress = ""
    """Address of a server that you run: ``http://127.0.0.1:11434``."""
    model: str = ""
    """Name of the base model on the server, such as ``llama3.2:1b-instruct-fp16``: the model of
    ``model.base``. Empty: the only one that it lists."""
    keep_alive: str = "30m"
    """Time that a model stays in the server's memory after a call, in Ollama's form; ``-1`` is forever."""
    timeout_seconds: float = Field(600.0, gt=0)
    """Longest time for one answer, in seconds."""


class OpenAiSettings(_Section):
    url: ServerAddress = ""
    """Address of any server with OpenAI's chat API, such as ``https://api.openai.com/v1``."""
    key: SecretStr = SecretStr("")
    """API key of the server."""
    model: str = ""
    """Name of the model on the server."""
    timeout_seconds: float = Field(600.0, gt=0)
    """Longest time for one answer, in seconds."""


class ModelSettings(_Section):
    base: str = "smollm2"
    """``tiny``, ``smollm2``, an alias of ``[models.aliases]``, or a folder with a model in transformers' form
    (safetensors)."""
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


class CustomComponent(_Section):
    """A user-defined reward component: ``[reward.custom.NAME]``."""

    source: str = ""
    """``module:function``; empty: the entry point of that name in ``onward.reward_components``."""
    weight: float = Field(ge=0, le=1)


class RewardSettings(_Section):
    task_completion: float = Field(0.40, ge=0, le=1)
    efficiency: float = Field(0.20, ge=0, le=1)
    code_quality: float = Field(0.15, ge=0, le=1)
    user_feedback: float = Field(0.25, ge=0, le=1)
    safety: float = Field(0.0, ge=0, le=1)
    """Weight of the safety rules. At 0 a component is scored and shown but does not count."""
    accuracy: float = Field(0.0, ge=0, le=1)
    """Weight of the comparison with the task's expected answer."""
    rubric: float = Field(0.0, ge=0, le=1)
    """Weight of the score by a rubric document."""
    custom: dict[str, CustomComponent] = Field(default_factory=dict)
    """User-defined components: name → `{source, weight}`; their weights count towards the sum of 1."""
    normalization: Literal["z-score", "min-max", "none"] = "z-score"
    window: int = Field(1000, ge=30, le=10_000)
    feedback_default: Literal["neutral", "exclude"] = "neutral"
    """Behaviour without feedback: ``neutral`` scores 0.5, ``exclude`` leaves the component out."""
    code_isolation: Literal["preferred", "required"] = "preferred"
    """``preferred``: without Landlock (Linux 5.13) the linter may read this machine's files, and a warning is
    logged; ``required``: code then stays unscored."""
    dense: bool = False
    """Adds each turn's part of the reward, in ``metadata.dense``."""

    def weights(self) -> dict[str, float]:
        """Component → weight, as configured; they sum to 1."""
        own = {name: custom.weight for name, custom in self.custom.items()}
        return {name: float(getattr(self, name)) for name in REWARD_COMPONENTS} | own

    @field_validator("custom")
    @classmethod
    def _names(cls, value: dict[str, CustomComponent]) -> dict[str, CustomComponent]:
        for name in value:
            if re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) is None:
                raise ValueError(f"{name!r} is not a name of a component: use a-z, 0-9 and _, a letter first")
            if name in (*REWARD_COMPONENTS, "raw_total"):
                raise ValueError(f"{name!r} is a name that Onward uses itself: choose another")
        return value

    @model_validator(mode="after")
    def _sum_to_one(self) -> RewardSettings:
        total = math.fsum(self.weights().values())
        if abs(total - 1.0) > 1e-6:
            raise ValueError(
                f"the reward weights sum to {total:g}: they must sum to 1 (0.40, 0.20, 0.15, 0.25 by default)"
            )
        return self


class TrainingSettings(_Section):
    algorithm: Algorithm = "ppo"
    """Algorithm of the requests that Onward makes itself. If it is not set, the data decides: ``dpo`` with
    enough corrections, ``rloo`` for repeated tasks, else ``reinforce``."""
    min_corrections: int = Field(64, ge=1)
    """Least number of new trajectories with a corrected answer for which ``dpo`` is requested: four steps of
    16 pairs. Fewer wait for the next job."""
    threshold: int = Field(5000, ge=1)
    """Number of rewarded trajectories of the current policy, since the last snapshot, that starts a job."""
    schedule: str = "0 2 * * *"
    """Cron expression, UTC, of scheduled jobs, or ``off``. A run that was missed is made once."""
    min_new: int = Field(64, ge=1)
    """Least number of rewarded trajectories since the last snapshot for a job by the schedule or by
    degradation (``threshold``, if that is lower): the same data is not trained on again."""
    cooldown_minutes: float = Field(60.0, ge=0)
    """Time after a failed or cancelled job, or a candidate that was not promoted, without a job by threshold,
    schedule or degradation. A manual one starts all the same."""
    degradation_drop: float = Field(0.10, gt=0, le=1)
    """Fall of the current policy's mean raw total below its frozen baseline that counts as degradation. 1
    switches the test off."""
    degradation_alpha: float = Field(0.045, gt=0, lt=1)
    """Budget of false alarms of the degradation test, over the whole life of one policy."""
    learning_rate: float = Field(1e-5, gt=0)
    batch_size: int = Field(32, ge=1)
    epochs: int = Field(3, ge=1)
    clip_epsilon: float = Field(0.2, gt=0)
    sample_size: int = Field(10_000, ge=1)
    max_unscored_share: float = Field(0.2, ge=0, le=1)
    """Share of unscored trajectories above which a job fails with code DATA."""
    max_masked_share: float = Field(0.5, ge=0, le=1)
    """Share of sampled answers without tokens to train on (redacted, or continuing redacted ones) above which
    a policy gradient fails with code DATA, so that nothing trains silently on a remnant."""
    preset: Literal["default", "seed"] = "default"
    """``seed``: the requests that Onward makes itself are the RL trainer profile's, word for word (PPO, 1e-5,
    32, 3 epochs …). The default leaves the numbers to the model's recipe, which learns more."""
    strict: bool = False
    """A job fails with code DATA if a part of its request cannot be met, instead of reporting it."""
    checkpoint_days: float = Field(90, ge=0)
    """Days after a job's end for which its checkpoints are kept; 0 keeps all. Those of the current and the
    previous model and of a release under way are never deleted."""
    cost_per_hour: float = Field(0, ge=0)
    """Price of an hour of the training machine in US dollars, for the cost in a job's status and card."""
    trackers: list[Literal["wandb", "mlflow"]] = Field(default_factory=list)
    """Trackers that jobs report to beside TensorBoard: ``wandb``, ``mlflow``, each an extra of its own."""
    max_attempts: int = Field(3, ge=1)
    """Attempts of a job that may end by its own fault. Kills and outages do not count."""
    infra_pause_seconds: float = Field(600.0, gt=0)
    """Longest pause before the next attempt of a job that a part which is away has interrupted. The first
    pause is 5 s, and each one in a row is twice as long."""
    timeout_seconds: float = Field(86_400.0, gt=0)
    """Longest time of one attempt. It is then ended (TIMEOUT), and the next one continues from its state."""
    max_kl: float = Field(10.0, gt=0)
    """KL divergence of a step, in nats per token, above which an attempt ends with CONVERGENCE."""
    min_entropy: float = Field(0.0, ge=0)
    """Entropy of a step below which an attempt ends with CONVERGENCE. 0: never, since a policy that has
    learnt its task has little."""
    falling_evaluations: int = Field(3, ge=2)
    """Evaluations in a row with a falling reward after which an attempt ends with CONVERGENCE, if the whole
    fall is more than chance explains."""
    lease_seconds: float = Field(15.0, gt=0)
    return_from: Literal["outcome", "raw_total"] = "outcome"
    environments: list[str] = Field(default_factory=list)
    """Environments that a training request on the bus may name besides the built-in ones: addresses, such as
    ``https://envs.example.org/webshop`` (and what is below it), and ``package.module:object``."""
    data_roots: list[str] = Field(default_factory=list)
    """Folders with trajectories that a training request of source ``local`` may name files in; none by
    default."""
    unparsable_penalty: float = Field(0.5, ge=0, le=1)
    """Penalty subtracted from the return of a trajectory with an answer that could not be parsed. 0 counts it
    like any other failure, and the policy then loses its output format while it learns the task."""

    @field_validator("environments", "data_roots", "trackers", mode="before")
    @classmethod
    def _text_with_commas(cls, value: Any) -> Any:
        return _split_at_commas(value)

    @field_validator("environments")
    @classmethod
    def _places(cls, value: list[str]) -> list[str]:
        for place in value:
            address = re.fullmatch(r"https?://[^\s/?#@\\]+(/[^\s?#\\]*)?", place)
            if address is None and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", place) is None:
                raise ValueError(
                    "an entry is neither http://HOST:PORT/PATH (no user, no query) nor package.module:object"
                )
        return value

    @field_validator("schedule")
    @classmethod
    def _cron(cls, value: str) -> str:
        if value != OFF and not is_cron(value):
            raise ValueError(
                f"{value!r} is not a cron expression: five fields, for example '0 2 * * *', or 'off'"
            )
        return value


class ReleaseSettings(_Section):
    steps: list[float] = Field(default=[0.10, 0.25, 0.50, 1.0])
    """The candidate's share of new sessions in each step."""
    step_minutes: list[float] = Field(default=[60, 60, 120, 0])
    """Least time in each step, in minutes. The share changes at 0, 60, 120 and 240 minutes."""
    min_sessions: list[int] = Field(default=[])
    """Candidate sessions with a known outcome that a step needs before it may end: one at least, and lost
    sessions do not count. Empty: a third of what the traffic of the last days brings in the step's time,
    at most 50, 100 and 200. ``time_scale`` never lowers numbers."""
    time_scale: float = Field(1.0, gt=0)
    """Factor on the times of the schedule: 1 is real time; 0.01 is a hundred times faster."""
    bake_minutes: float = Field(60, ge=0)
    bake_share: float = Field(0.05, ge=0, le=0.5)
    """Share that stays on the previous model while the release bakes at 100 %."""
    alpha: float = Field(0.045, gt=0, lt=1)
    """Total false-rollback budget of all gates together."""
    error_ceiling: float = Field(0.05, gt=0, lt=1)
    reward_margin: float = Field(0.05, ge=0, lt=1)
    """Tolerated drop of the mean reward (ROLLBACK_REWARD_THRESHOLD, sign dropped)."""
    reward_signal: Literal["both", "outcome"] = "both"
    """Numbers that the reward gate judges: the outcome of a session and the raw total of its reward where it
    is known, or the outcome alone. Both are from 0 to 1."""
    error_maturity_seconds: float = Field(30, ge=0)
    reward_maturity_seconds: float = Field(120, ge=0)
    lost_after_seconds: float = Field(600, gt=0)
    """Seconds without any outcome after which a session counts as lost on its arm."""
    max_bake: float = Field(4.0, ge=0)
    """Most hours of the last step: it is prolonged so far until "not worse" is shown; 0: never prolonged.
    ``on_inconclusive`` decides what happens then."""
    on_inconclusive: Literal["promote", "hold", "ask"] = "promote"
    step_deadline_minutes: float = Field(24 * 60, gt=0)
    """Minutes after which a step with too few sessions is inconclusive: it holds and alerts."""
    min_delta: float = Field(-0.05, le=0)
    """Paired difference to the current model below which validation fails."""
    strategy: Literal["auto", "canary", "immediate"] = "auto"
    """``auto`` follows the measured improvement: from 0.15 blue-green, from 0.05 canary, from 0 a careful
    canary that starts at 5 %, below 0 no release. ``canary``: every release goes through all steps, down to
    ``min_delta``. ``immediate``: the candidate gets all traffic but ``bake_share`` at once."""
    mode: Literal["release", "shadow"] = "release"
    """``shadow``: candidates are trained and validated, and none is released."""
    approval: Literal["never", "critical", "always"] = "never"
    """Releases that wait for a person's approval. ``critical``: those not validated or not shown, with a
    safety check that is not passed, or with nearly all traffic at once."""
    approval_hours: float = Field(24.0, gt=0)
    """Hours after which ``on_approval_timeout`` decides about a release that waits."""
    on_approval_timeout: Literal["refuse", "approve", "wait"] = "refuse"
    """Decision if no person has answered by then."""
    gates: Literal["sequential", "threshold"] = "sequential"
    """``sequential``: E-values with a budget of false alarms. ``threshold``: fixed limits, read every
    ``threshold_minutes``; at low traffic they often take back a model that is as good."""
    threshold_minutes: float = Field(5.0, gt=0)
    """Minutes between two checks of the limits; each reads the last 30 minutes."""
    consecutive: int = Field(1, ge=1, le=12)
    """Checks in a row that must break a limit (gates = "threshold" alone)."""
    threshold_sessions: int = Field(20, ge=1)
    """Least sessions of an arm in a window of the threshold rule: with fewer it counts neither as broken nor
    as passed."""
    canary_ramp_hours: float = Field(4.0, gt=0)
    """Hours of the ramp (CANARY_RAMP_HOURS); scales ``step_minutes`` by n/4."""

    @model_validator(mode="before")
    @classmethod
    def _moved(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and not {"suite", "suite_size"}.isdisjoint(given):
            raise ValueError(
                'release.suite and release.suite_size have moved: set validation.suites = ["desk"] and '
                "validation.size"
            )
        return given

    @model_validator(mode="after")
    def _same_length(self) -> ReleaseSettings:
        given = self.min_sessions or self.steps
        if not (len(self.steps) == len(self.step_minutes) == len(given)):
            raise ValueError("release.steps, step_minutes and min_sessions must have the same length")
        if sorted(self.steps) != list(self.steps) or self.steps[-1] != 1.0 or self.steps[0] <= 0:
            raise ValueError("release.steps must rise from above 0 to exactly 1.0")
        return self

    def step_seconds(self, step: int) -> float:
        """Least duration of step ``step`` in seconds, after both time scalings."""
        return self.step_minutes[step] * 60.0 * self.time_scale * (self.canary_ramp_hours / 4.0)


class ValidationSettings(_Section):
    suites: list[str] = []
    """Suites that a candidate is validated with, such as ``recorded:agent=NAME,days=30``. Empty: a release
    says "not validated"."""
    other_tasks: list[str] = []
    """Suites of other tasks than the candidate was trained for: they may only stop a release. ``auto``: every
    environment that is known here and that the candidate did not play in training."""
    size: int = Field(100, ge=10)
    """Most items of a suite that can choose how many it has; both models get the same ones."""
    regression: Literal["interval", "point"] = "interval"
    """Number that must not be below ``release.min_delta``: the lower end of the difference's interval, or the
    difference."""
    required: bool = False
    """Reject a candidate whose validation is "not shown" or "not validated"."""
    max_unscored: float = Field(0.1, ge=0, le=1)
    """Share of a suite's items that may be left unjudged; above it the suite shows nothing."""
    rubric: str | None = None
    """``module:function`` that judges recorded tasks, in place of the recorded outcome."""


class ExternalSettings(_Section):
    """Published settings of the two services that Onward takes the place of."""

    agentgym_rl_url: str | None = None
    """Address of the training service: ``onward training start`` sends its request there, and its host
    name is one under which clients may call."""
    agentgym_rl_api_key: SecretStr | None = None
    """API key with the scopes train and read: of clients, and of ``onward training start``."""
    tensorzero_base_url: str | None = None
    """Address of the gateway; its host name is one under which clients may call."""
    tensorzero_admin_token: SecretStr | None = None
    """API key with the scopes deploy, read and chat."""

    @field_validator("agentgym_rl_url", "tensorzero_base_url")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        if value and re.fullmatch(r"https?://[A-Za-z0-9._-]{1,253}(:\d{1,5})?/?", value) is None:
            raise ValueError("the url is not http://host:port: give scheme, host and port alone")
        return value

    @field_validator("agentgym_rl_api_key", "tensorzero_admin_token")
    @classmethod
    def _long_enough(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < LEAST_KEY:
            raise ValueError(f"the key has fewer than {LEAST_KEY} characters: give a longer one")
        return value

    def keys(self) -> dict[str, tuple[str, list[str]]]:
        """Returns the keys as SHA-256 → (name, scopes)."""
        given = (
            (self.agentgym_rl_api_key, "agentgym-rl", ["train", "read"]),
            (self.tensorzero_admin_token, "tensorzero-admin", ["deploy", "read", "chat"]),
        )
        return {
            hashlib.sha256(secret.get_secret_value().encode()).hexdigest(): (name, scopes)
            for secret, name, scopes in given
            if secret is not None
        }

    def names(self) -> list[str]:
        """Returns the host names of the addresses."""
        given = (self.agentgym_rl_url, self.tensorzero_base_url)
        return [name for name in (urlsplit(url).hostname for url in given if url) if name]


class TensorZeroSettings(_Section):
    """A TensorZero gateway that follows the releases beside the built-in ones."""

    apply: Literal["", "embedded", "file", "endpoint"] = ""
    """The way on which routes reach it: a gateway within the releaser's process, ``config_file`` and
    ``reload_command``, or its own apply endpoint. Empty: there is none."""
    config_file: str = ""
    """File for ``embedded`` and ``file``; what else it contains stays. Empty: ``run/tensorzero.toml``."""
    reload_command: list[str] = Field(default_factory=list)
    """Command that makes TensorZero read ``config_file`` again, such as ``["docker", "restart", "t0"]``."""
    urls: list[str] = Field(default_factory=list)
    """Addresses of all replicas for ``endpoint``. Empty: ``external.tensorzero_base_url``."""
    function: str = Field("agent", pattern=r"[a-z][a-z0-9_]{0,63}")
    """Function whose variants split the traffic."""
    upstream: str = ""
    """Address of the OpenAI-compatible engine behind it. Empty: this gateway, which serves both models by
    name."""
    upstream_key: str = ""
    """Place of that engine's key in TensorZero's form, such as ``env::ENGINE_KEY``. Empty: none is sent."""

    @field_validator("reload_command", mode="before")
    @classmethod
    def _words(cls, value: Any) -> Any:
        """Accepts text as a shell splits it, the form used in the environment."""
        return shlex.split(value) if isinstance(value, str) else value


class Settings(_Section):
    data_dir: Path = Path("onward-data")
    nats: NatsSettings = Field(default_factory=lambda: NatsSettings.model_validate({}))
    streams: StreamSettings = Field(default_factory=lambda: StreamSettings.model_validate({}))
    warehouse: WarehouseSettings = WarehouseSettings()
    objects: ObjectSettings = ObjectSettings()
    capture: CaptureSettings = Field(default_factory=lambda: CaptureSettings.model_validate({}))
    http: HttpSettings = Field(default_factory=lambda: HttpSettings.model_validate({}))
    gateway: GatewaySettings = Field(default_factory=lambda: GatewaySettings.model_validate({}))
    providers: dict[str, ProviderSettings] = Field(default_factory=dict)
    """Providers behind the gateway, by name."""
    feedback: FeedbackSettings = Field(default_factory=lambda: FeedbackSettings.model_validate({}))
    model: ModelSettings = Field(default_factory=lambda: ModelSettings.model_validate({}))
    models: ModelsSettings = Field(default_factory=lambda: ModelsSettings.model_validate({}))
    reward: RewardSettings = Field(default_factory=lambda: RewardSettings.model_validate({}))
    training: TrainingSettings = Field(default_factory=lambda: TrainingSettings.model_validate({}))
    release: ReleaseSettings = Field(default_factory=lambda: ReleaseSettings.model_validate({}))
    validation: ValidationSettings = Field(default_factory=lambda: ValidationSettings.model_validate({}))
    external: ExternalSettings = ExternalSettings()
    tensorzero: TensorZeroSettings = Field(default_factory=lambda: TensorZeroSettings.model_validate({}))
    vllm: VllmSettings = Field(default_factory=lambda: VllmSettings.model_validate({}))
    sglang: SglangSettings = Field(default_factory=lambda: SglangSettings.model_validate({}))
    ollama: OllamaSettings = Field(default_factory=lambda: OllamaSettings.model_validate({}))
    openai: OpenAiSettings = Field(default_factory=lambda: OpenAiSettings.model_validate({}))
    agentzero_jetstream: bool = True

    @model_validator(mode="after")
    def _has_an_address(self) -> Settings:
        if self.tensorzero.apply == "endpoint" and not (
            self.tensorzero.urls or self.external.tensorzero_base_url
        ):
            raise ValueError("tensorzero.apply is endpoint: give tensorzero.urls or TENSORZERO_BASE_URL")
        return self

    @field_validator("providers")
    @classmethod
    def _provider_names(cls, value: dict[str, ProviderSettings]) -> dict[str, ProviderSettings]:
        taken: dict[str, str] = {"onward": "the gateway"}
        for name, provider in value.items():
            if re.fullmatch(r"[a-z][a-z0-9_-]{0,63}", name) is None or name == "onward":
                raise ValueError(f"{name!r} is not a provider's name: use a-z, 0-9, _ and -, a letter first")
            for model in provider.models:
                other = taken.setdefault(model, name)
                if not model or other != name:
                    said = f"{model!r} is a model of {other}" if model else "a name is empty"
                    raise ValueError(f"{said}: list each model of {name} once, by its own name")
        return value

    @property
    def run_dir(self) -> Path:
        """Folder of sockets, tokens and pid files; mode 0700."""
        return self.data_dir / "run"

    @property
    def objects_at(self) -> str:
        """Address of checkpoints and quarantined bodies: a URL, or a folder within ``data_dir``."""
        return self.objects.models_url or str(self.data_dir / "objects")

    @property
    def datasets_at(self) -> str:
        """Address of frozen datasets and, for source ``s3``, of trajectories to learn from."""
        return self.objects.trajectories_url or self.objects_at

    def api_keys(self) -> dict[str, list[str]]:
        """Returns every configured API key as SHA-256 → scopes, from ``http.keys`` and the environment."""
        own = {digest: scopes for digest, (_, scopes) in self.external.keys().items()}
        return {**own, **self.http.keys}

    def key_names(self) -> dict[str, str]:
        """Returns the names of the API keys, by SHA-256."""
        own = {digest: name for digest, (name, _) in self.external.keys().items()}
        return {**own, **self.http.key_names}


# Published variable (docs/compatibility.md) → (section, field). Values stay text; pydantic converts them.
SEED_VARIABLES: dict[str, tuple[str, ...]] = {
    "NATS_URL": ("nats", "url"),
    "NATS_TOKEN": ("nats", "token"),
    "AGENTZERO_JETSTREAM": ("agentzero_jetstream",),
    "AGENTGYM_RL_URL": ("external", "agentgym_rl_url"),
    "AGENTGYM_RL_API_KEY": ("external", "agentgym_rl_api_key"),
    "TENSORZERO_BASE_URL": ("external", "tensorzero_base_url"),
    "TENSORZERO_ADMIN_TOKEN": ("external", "tensorzero_admin_token"),
    "MODEL_STORAGE_PATH": ("objects", "models_url"),
    "TRAJECTORY_STORAGE_PATH": ("objects", "trajectories_url"),
    "RL_CAPTURE_OPT_OUT": ("capture", "opt_out"),
    "RL_ALGORITHM": ("training", "algorithm"),
    "RL_BASE_MODEL": ("model", "base"),
    "RL_TRAINING_THRESHOLD": ("training", "threshold"),
    "RL_SCHEDULE_CRON": ("training", "schedule"),
    "REWARD_WEIGHT_TASK_COMPLETION": ("reward", "task_completion"),
    "REWARD_WEIGHT_EFFICIENCY": ("reward", "efficiency"),
    "REWARD_WEIGHT_CODE_QUALITY": ("reward", "code_quality"),
    "REWARD_WEIGHT_USER_FEEDBACK": ("reward", "user_feedback"),
    "REWARD_WEIGHT_SAFETY": ("reward", "safety"),
    "REWARD_WEIGHT_ACCURACY": ("reward", "accuracy"),
    "REWARD_WEIGHT_RUBRIC": ("reward", "rubric"),
    "CANARY_RAMP_HOURS": ("release", "canary_ramp_hours"),
    "ROLLBACK_ERROR_THRESHOLD": ("release", "error_ceiling"),
}


def load(
    file: Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Settings:
    """Reads ``file`` (or ``./onward.toml`` if it exists), then ``environ``, then ``overrides``.

    ``overrides`` is nested like the file: ``{"model": {"base": "tiny"}}``. Raises ConfigError, whose message
    names the first wrong key and the expected value.
    """
    environ = os.environ if environ is None else environ
    tree: dict[str, Any] = {}
    if file is None and Path("onward.toml").is_file():
        file = Path("onward.toml")
    if file is not None:
        try:
            tree = tomllib.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{file} does not exist: give the path of an onward.toml.") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not valid TOML: {error}.") from None
    for name, path in SEED_VARIABLES.items():
        if environ.get(name):
            _put(tree, path, environ[name])
    if environ.get("CANARY_INITIAL_TRAFFIC"):
        _set_first_step(tree, environ["CANARY_INITIAL_TRAFFIC"])
    if environ.get("ROLLBACK_REWARD_THRESHOLD"):
        _put(tree, ("release", "reward_margin"), environ["ROLLBACK_REWARD_THRESHOLD"].lstrip("-"))
    for name, value in environ.items():
        if name.startswith("ONWARD_") and "__" in name:
            _put(tree, tuple(name.removeprefix("ONWARD_").lower().split("__")), value)
    if environ.get("ONWARD_DATA_DIR"):
        tree["data_dir"] = environ["ONWARD_DATA_DIR"]
    _merge(tree, overrides or {})
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        raise ConfigError(_sentence(error, file)) from None


def _put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    node = tree
    for part in path[:-1]:
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(f"{part!r} in onward.toml must be a section, not a value.")
    node[path[-1]] = value


def _set_first_step(tree: dict[str, Any], text: str) -> None:
    try:
        share = float(text)
    except ValueError:
        raise ConfigError(f"CANARY_INITIAL_TRAFFIC is {text!r}: expected a share such as 0.10.") from None
    release = tree.setdefault("release", {})
    later = [step for step in release.get("steps", ReleaseSettings.model_validate({}).steps)[1:]]
    release["steps"] = [share, *later]


def _merge(tree: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            _merge(tree.setdefault(key, {}), value)
        else:
            tree[key] = value


def _sentence(error: ValidationError, file: Path | None) -> str:
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the settings"
    source = f" (in {file} or the environment)" if file else " (from the environment)"
    if first["type"] == "extra_forbidden":
        section: Any = Settings
        for part in first["loc"][:-1]:
            field = getattr(section, "model_fields", {}).get(str(part))
            section = field.annotation if field else get_args(section)[1]
        known = ", ".join(sorted(section.model_fields))
        near = closest_name(str(first["loc"][-1]), section.model_fields)
        if near is None:
            return f"Unknown setting {where!r}{source}: expected one of {known}."
        meant = ".".join([*(str(part) for part in first["loc"][:-1]), near])
        return f"Unknown setting {where!r}{source}: did you mean {meant}? Known here are {known}."
    if first["type"] in ("list_type", "tuple_type"):
        return f"Setting {where!r}{source} is not valid: expected a list in brackets, such as [10, 20, 40]."
    return f"Setting {where!r}{source} is not valid: {first['msg'].removeprefix('Value error, ')}."
