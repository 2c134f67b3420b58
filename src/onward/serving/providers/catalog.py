"""The configured providers: which of them a model's name means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onward.clock import Clock
from onward.config import LEAST_KEY, ProviderSettings, Settings
from onward.errors import ConfigError
from onward.files import read_secret
from onward.serving.metrics import GatewayMetrics
from onward.serving.providers.upstream import Upstream

_STATES = {"closed": 0, "half-open": 1, "open": 2}


@dataclass(frozen=True)
class Provider:
    settings: ProviderSettings
    upstream: Upstream

    @property
    def name(self) -> str:
        return self.upstream.name


class Catalog:
    """All providers of the settings. Empty is the usual case."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        metrics: GatewayMetrics,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``environ``: None is that of the process. Raises ConfigError for a key that is not there."""
        environ = os.environ if environ is None else environ
        self._providers: dict[str, Provider] = {}
        self._listed: dict[str, tuple[Provider, str]] = {}
        self._aliases = settings.gateway.model_aliases
        for name, given in settings.providers.items():
            upstream = Upstream(name, given, key_of(name, given, environ), clock, metrics)
            provider = self._providers[name] = Provider(given, upstream)
            self._listed |= {model: (provider, model) for model in given.models}
            metrics.provider_state.labels(provider=name).set_function(
                lambda breaker=upstream.breaker: _STATES[breaker.state]
            )

    def __bool__(self) -> bool:
        return bool(self._providers)

    def find(self, model: Any) -> tuple[Provider, str] | None:
        """Returns the provider of ``NAME/model``, of a listed model or of an alias, and the model's own name;
        None if the gateway answers itself."""
        if not isinstance(model, str):
            return None
        model = self._aliases.get(model, model)
        name, _, rest = model.partition("/")
        if rest and (provider := self._providers.get(name)) is not None:
            return provider, rest
        return self._listed.get(model)

    def names(self) -> list[str]:
        """Returns the names of the listed models, as a call may give them."""
        return [
            name
            for provider in self._providers.values()
            for model in provider.settings.models
            for name in (f"{provider.name}/{model}", model)
        ]

    def states(self) -> dict[str, str]:
        """Returns the state of each provider's circuit."""
        return {name: provider.upstream.breaker.state for name, provider in self._providers.items()}

    async def close(self) -> None:
        for provider in self._providers.values():
            await provider.upstream.close()


def key_of(name: str, settings: ProviderSettings, environ: Mapping[str, str]) -> str:
    """Returns the provider's key; empty for one that needs none. Raises ConfigError."""
    if settings.key_file is not None:
        if not settings.key_file.is_file():
            raise ConfigError(f"providers.{name}.key_file names {settings.key_file}, which does not exist.")
        return read_secret(settings.key_file, "write the provider's key into it", least=LEAST_KEY)
    if settings.key_env:
        if not environ.get(settings.key_env):
            raise ConfigError(f"providers.{name}.key_env names {settings.key_env}, which is not set.")
        return environ[settings.key_env].strip()
    return settings.key.get_secret_value()
