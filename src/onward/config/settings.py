"""All settings of a data folder."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from onward.config.external import ExternalSettings
from onward.config.models import (
    ModelSettings,
    ModelsSettings,
    OllamaSettings,
    OpenAiSettings,
    SglangSettings,
    VllmSettings,
)
from onward.config.release import ReleaseSettings, TensorZeroSettings, ValidationSettings
from onward.config.rubrics import RubricsSettings
from onward.config.section import Section
from onward.config.serving import FeedbackSettings, GatewaySettings, HttpSettings, ProviderSettings
from onward.config.storage import (
    CaptureSettings,
    NatsSettings,
    ObjectSettings,
    StreamSettings,
    WarehouseSettings,
)
from onward.config.training import RewardSettings, TrainingSettings
from onward.ids import is_id


class Settings(Section):
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
    rubrics: RubricsSettings = Field(default_factory=lambda: RubricsSettings.model_validate({}))
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
    def base_model_id(self) -> str:
        """Id under which the base model's work is recorded: its name, or `base` for a folder. With a closed
        model as the engine it is that model's name, with a hyphen for what an id cannot have."""
        closed = self.model.engine == "openai"
        name = re.sub(r"[^A-Za-z0-9_-]", "-", self.openai.model) if closed else self.model.base
        return name if is_id(name) else "base"

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
