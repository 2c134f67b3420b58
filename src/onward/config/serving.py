"""Settings of the ports: keys, gateway, providers, feedback."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from onward.config.section import Section, split_at_commas


class KeyLimits(Section):
    """Limits of one API key: ``[http.key_limits.SHA256]``."""

    requests_per_minute: int = Field(0, ge=0)
    """Model calls of the key, at once and then in each minute; 0 means no limit."""
    tokens_per_minute: int = Field(0, ge=0)
    """Tokens of prompts and answers in the same sense; 0 means no limit."""


class HttpSettings(Section):
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


class GatewaySettings(Section):
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


class ProviderSettings(Section):
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


class FeedbackSettings(Section):
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
        return split_at_commas(value)

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
