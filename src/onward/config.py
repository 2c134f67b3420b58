"""Settings: ``onward.toml``, then the environment, checked once at the start.

Published environment variables (``NATS_URL``, ``RL_ALGORITHM``, ``REWARD_WEIGHT_*`` …) are read under their
own names; everything else is ``ONWARD_<SECTION>__<FIELD>``. An unknown key is an error, because a misspelt
gate that silently passes is worse than none. A service that is not configured runs embedded.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    field_validator,
    model_validator,
)

from onward.contracts.cron import is_cron
from onward.errors import ConfigError
from onward.spelling import closest_name

Algorithm = Literal["ppo", "dpo", "rloo", "grpo", "reinforce"]
REWARD_COMPONENTS = (
    "task_completion", "efficiency", "code_quality", "user_feedback", "safety", "accuracy", "rubric",
)  # fmt: skip
"""Names of the built-in reward components, each with a weight of its own."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


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
    """Address for datasets and archives. Empty: a local folder."""


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
        """Accepts text with commas, the form used in the environment."""
        return (
            [kind.strip() for kind in value.split(",") if kind.strip()] if isinstance(value, str) else value
        )

    @field_validator("off_keys")
    @classmethod
    def _hashes(cls, value: list[str]) -> list[str]:
        if not all(re.fullmatch(r"[0-9a-fA-F]{64}", key) for key in value):
            raise ValueError("a key is not a SHA-256 of 64 hex digits: never write the key itself")
        return value


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
    wrong_keys_per_minute: int = Field(60, ge=0)
    """Wrong keys of one network address, at once and then in each minute, that are answered 401; further ones
    are answered 429. A valid key is served all the same; 0 means no limit."""
    max_connections: int = Field(512, ge=8)
    """Connections to one port at once, at most a quarter of the process's file descriptors. Beyond it the
    oldest one that waits for a request is closed."""

    @field_validator("names")
    @classmethod
    def _host_names(cls, value: list[str]) -> list[str]:
        for name in value:
            if re.fullmatch(r"[A-Za-z0-9._-]{1,253}", name) is None:
                raise ValueError(f"{name!r} is not a host name: give the name alone, without scheme or port")
        return value


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
        """Accepts text with commas, the form used in the environment."""
        return (
            [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        )

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


class VllmSettings(_Section):
    url: str = ""
    """Address of the server: ``http://127.0.0.1:8000``. It must be started with ``--enable-lora
    --logprobs-mode processed_logprobs`` and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True."""
    key: SecretStr = SecretStr("")
    """API key of the server (its ``--api-key``)."""
    model: str = ""
    """Name under which the server serves the base model; empty: its first model that is not an adapter."""
    adapters_dir: str = ""
    """Path of ``models/adapters`` of the data directory on the server; empty: the same path as here."""
    timeout_seconds: float = Field(600.0, gt=0)
    """Longest time for one answer, in seconds."""

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        if value and re.fullmatch(r"https?://[^\s/?#@]+(/v1)?/?", value) is None:
            raise ValueError("the url is not http://host:port: give scheme, host and port, no user or path")
        return value


class ModelSettings(_Section):
    base: str = "smollm2"
    """``tiny``, ``smollm2``, or a folder with a Llama-shaped safetensors model and its tokenizer."""
    id_pattern: str = "agent-zero-rl-v{n}"
    """Name of released models. ``{n}`` counts up; in ``…-v2.{n}`` only the last number does."""
    device: str = "cpu"
    threads: int = Field(0, ge=0)
    """CPU threads of the engine and of a training job; 0 means all cores."""
    max_batch: int = Field(64, ge=1)
    max_context: int = Field(2048, ge=64)
    engine: Literal["local", "vllm"] = "local"
    """Sampler: the built-in engine, or the vLLM server of ``[vllm]`` (``base`` is then the folder of the same
    model here, for its tokenizer and its identity)."""


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
    """Cron expression, UTC. Parsed and shown; not active yet."""
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
    max_attempts: int = Field(3, ge=1)
    lease_seconds: float = Field(15.0, gt=0)
    return_from: Literal["outcome", "raw_total"] = "outcome"
    environments: list[str] = Field(default_factory=list)
    """Environments that a training request on the bus may name besides the built-in ones: addresses, such as
    ``https://envs.example.org/webshop`` (and what is below it), and ``package.module:object``."""
    unparsable_penalty: float = Field(0.5, ge=0, le=1)
    """Penalty subtracted from the return of a trajectory with an answer that could not be parsed. 0 counts it
    like any other failure, and the policy then loses its output format while it learns the task."""

    @field_validator("environments", mode="before")
    @classmethod
    def _environments_text(cls, value: Any) -> Any:
        """Accepts text with commas, the form used in the environment."""
        return (
            [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value
        )

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
        if not is_cron(value):
            raise ValueError(f"{value!r} is not a cron expression: five fields, for example '0 2 * * *'")
        return value


class ReleaseSettings(_Section):
    steps: list[float] = Field(default=[0.10, 0.25, 0.50, 1.0])
    """The candidate's share of new sessions in each step."""
    step_minutes: list[float] = Field(default=[60, 60, 120, 0])
    """Least time in each step, in minutes. The share changes at 0, 60, 120 and 240 minutes."""
    min_sessions: list[int] = Field(default=[50, 100, 200, 0])
    """Candidate sessions with a known outcome that a step needs before it may end: one at least, and lost
    sessions do not count. ``time_scale`` never lowers it."""
    time_scale: float = Field(1.0, gt=0)
    """Factor on the times of the schedule: 1 is real time; 0.01 is a hundred times faster."""
    bake_minutes: float = Field(60, ge=0)
    bake_share: float = Field(0.05, ge=0, le=0.5)
    """Share that stays on the previous model while the release bakes at 100 %."""
    alpha: float = Field(0.045, gt=0, lt=1)
    """Total false-rollback budget of all gates together."""
    error_ceiling: float = Field(0.05, gt=0, lt=1)
    reward_margin: float = Field(0.05, ge=0, lt=1)
    """Tolerated drop of the mean outcome (ROLLBACK_REWARD_THRESHOLD, sign dropped)."""
    error_maturity_seconds: float = Field(30, ge=0)
    reward_maturity_seconds: float = Field(120, ge=0)
    lost_after_seconds: float = Field(600, gt=0)
    """Seconds without any outcome after which a session counts as lost on its arm."""
    on_inconclusive: Literal["promote", "hold", "ask"] = "promote"
    step_deadline_minutes: float = Field(24 * 60, gt=0)
    """Minutes after which a step with too few sessions is inconclusive: it holds and alerts."""
    min_delta: float = Field(-0.05, le=0)
    """Paired difference to the current model below which validation fails."""
    strategy: Literal["canary", "auto"] = "canary"
    """``canary``: every release goes through all steps. ``auto`` follows the measured improvement: from 0.15
    blue-green, from 0.05 canary, below that a canary that starts at 5 %."""
    suite: str = "desk"
    suite_size: int = Field(100, ge=10)
    canary_ramp_hours: float = Field(4.0, gt=0)
    """Hours of the ramp (CANARY_RAMP_HOURS); scales ``step_minutes`` by n/4."""

    @model_validator(mode="after")
    def _same_length(self) -> ReleaseSettings:
        if not (len(self.steps) == len(self.step_minutes) == len(self.min_sessions)):
            raise ValueError("release.steps, step_minutes and min_sessions must have the same length")
        if sorted(self.steps) != list(self.steps) or self.steps[-1] != 1.0 or self.steps[0] <= 0:
            raise ValueError("release.steps must rise from above 0 to exactly 1.0")
        return self

    def step_seconds(self, step: int) -> float:
        """Least duration of step ``step`` in seconds, after both time scalings."""
        return self.step_minutes[step] * 60.0 * self.time_scale * (self.canary_ramp_hours / 4.0)


class ExternalSettings(_Section):
    """Published settings without an effect yet: parsed, checked and shown as not active."""

    agentgym_rl_url: str | None = None
    agentgym_rl_api_key: SecretStr | None = None
    tensorzero_base_url: str | None = None
    tensorzero_admin_token: SecretStr | None = None


class Settings(_Section):
    data_dir: Path = Path("onward-data")
    nats: NatsSettings = Field(default_factory=lambda: NatsSettings.model_validate({}))
    streams: StreamSettings = Field(default_factory=lambda: StreamSettings.model_validate({}))
    warehouse: WarehouseSettings = WarehouseSettings()
    objects: ObjectSettings = ObjectSettings()
    capture: CaptureSettings = Field(default_factory=lambda: CaptureSettings.model_validate({}))
    http: HttpSettings = Field(default_factory=lambda: HttpSettings.model_validate({}))
    feedback: FeedbackSettings = Field(default_factory=lambda: FeedbackSettings.model_validate({}))
    model: ModelSettings = Field(default_factory=lambda: ModelSettings.model_validate({}))
    reward: RewardSettings = Field(default_factory=lambda: RewardSettings.model_validate({}))
    training: TrainingSettings = Field(default_factory=lambda: TrainingSettings.model_validate({}))
    release: ReleaseSettings = Field(default_factory=lambda: ReleaseSettings.model_validate({}))
    external: ExternalSettings = ExternalSettings()
    vllm: VllmSettings = Field(default_factory=lambda: VllmSettings.model_validate({}))
    agentzero_jetstream: bool = True

    @model_validator(mode="after")
    def _has_a_server(self) -> Settings:
        if self.model.engine == "vllm" and not self.vllm.url:
            raise ValueError("model.engine is vllm but vllm.url is empty: give the address of the server")
        return self

    @property
    def run_dir(self) -> Path:
        """Folder of sockets, tokens and pid files; mode 0700."""
        return self.data_dir / "run"

    @property
    def objects_at(self) -> str:
        """Address of checkpoints and quarantined bodies: a URL, or a folder within ``data_dir``."""
        return self.objects.models_url or str(self.data_dir / "objects")

    def inactive(self) -> dict[str, str]:
        """Returns the configured settings that have no effect yet, each with the reason."""
        shown: dict[str, str] = {}
        if self.external.agentgym_rl_url or self.external.agentgym_rl_api_key:
            shown["AGENTGYM_RL_*"] = "training runs inside Onward; an outside service is not called yet"
        if self.external.tensorzero_base_url or self.external.tensorzero_admin_token:
            shown["TENSORZERO_*"] = "the built-in gateway serves; TensorZero is not driven yet"
        if "schedule" in self.training.model_fields_set:
            shown["RL_SCHEDULE_CRON"] = "scheduled training is not active yet"
        if self.objects.trajectories_url:
            shown["TRAJECTORY_STORAGE_PATH"] = "trajectories are archived in the warehouse only"
        return shown


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
