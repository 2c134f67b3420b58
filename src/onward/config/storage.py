"""Settings of what is captured, and of bus, warehouse and objects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator

from onward.config.section import Section, split_at_commas


class NatsSettings(Section):
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


class StreamSettings(Section):
    expected_gb_per_month: float = Field(3.0, gt=0, le=1e6)
    """Gigabytes of trajectories that agents publish in a month, the time that streams keep them. Byte limits
    follow from it with a quarter to spare. They are raised at the next start and never lowered."""
    trajectories_bytes: int | None = Field(None, ge=64 << 20)
    """Byte limit of RL_TRAJECTORIES alone. Empty: it follows from ``expected_gb_per_month``."""


class WarehouseSettings(Section):
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


class ObjectSettings(Section):
    models_url: str | None = None
    """Address for checkpoints, for example ``s3://bucket/rl-checkpoints/``. Empty: a local folder."""
    trajectories_url: str | None = None
    """Address of frozen datasets, and of trajectories that a request of source ``s3`` may name, for example
    ``s3://bucket/trajectories/``. Empty: datasets go to the store of checkpoints."""


class CaptureSettings(Section):
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
        return split_at_commas(value)

    @field_validator("off_keys")
    @classmethod
    def _hashes(cls, value: list[str]) -> list[str]:
        if not all(re.fullmatch(r"[0-9a-fA-F]{64}", key) for key in value):
            raise ValueError("a key is not a SHA-256 of 64 hex digits: never write the key itself")
        return value
