"""The running service that the tools act on: its bus, its training service and its admin API.

Addresses come from the settings (``AGENTGYM_RL_URL``, ``TENSORZERO_BASE_URL``, ``NATS_URL``), else from the
loop that runs on the data folder. They are looked up at each call: a restarted loop listens elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pydantic import SecretStr

from onward.attach import attached, endpoints_of
from onward.bus import Bus
from onward.config import Settings
from onward.errors import ConfigError, nothing_runs
from onward.files import read_secret
from onward.http.client import Address

KEY_VARIABLE = "ONWARD_API_KEY"
"""Key for a service whose address is set and whose own key is not."""


class Service:
    """Finds the parts of one service."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def training(self) -> Address:
        """Returns the address of the api role, which is also the training service. Raises ConfigError."""
        external = self.settings.external
        return self._address(
            "api_url", external.agentgym_rl_url, external.agentgym_rl_api_key, "AGENTGYM_RL_URL"
        )

    def gateway(self) -> Address:
        """Returns the address of the gateway with its admin API. Raises ConfigError."""
        external = self.settings.external
        return self._address(
            "gateway_url",
            external.tensorzero_base_url,
            external.tensorzero_admin_token,
            "TENSORZERO_BASE_URL",
        )

    @asynccontextmanager
    async def bus(self) -> AsyncIterator[Bus]:
        """Opens a connection to the bus. Raises ConfigError if nothing runs, BusError."""
        async with attached(self.settings) as (bus, _):
            yield bus

    def _address(self, part: str, url: str | None, key: SecretStr | None, setting: str) -> Address:
        if url:
            given = key.get_secret_value() if key is not None else os.environ.get(KEY_VARIABLE)
            return Address(url, given or self._local_key(), setting)
        found = endpoints_of(self.settings).get(part)
        if not isinstance(found, str):
            raise ConfigError(nothing_runs(self.settings.data_dir, f"set {setting}"))
        return Address(found, self._local_key())

    def _local_key(self) -> str | None:
        path = self.settings.run_dir / "api.key"
        return read_secret(path, "delete it and restart the loop") if path.exists() else None
