"""Addresses and keys of other services, as published environment variables give them."""

from __future__ import annotations

import hashlib
import re
from urllib.parse import urlsplit

from pydantic import SecretStr, field_validator

from onward.config.section import Section

LEAST_KEY = 8
"""Least characters of an API key that the environment gives."""


class ExternalSettings(Section):
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
