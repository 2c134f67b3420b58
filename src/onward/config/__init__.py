"""Settings: ``onward.toml``, then the environment, checked once at the start.

Published environment variables (``NATS_URL``, ``RL_ALGORITHM``, ``REWARD_WEIGHT_*`` …) are read under their
own names; everything else is ``ONWARD_<SECTION>__<FIELD>``. An unknown key is an error, because a misspelt
gate that silently passes is worse than none. A service that is not configured runs embedded.
"""

from onward.config.external import LEAST_KEY, ExternalSettings
from onward.config.loading import SEED_VARIABLES, load
from onward.config.models import (
    ModelSettings,
    ModelsSettings,
    OllamaSettings,
    OpenAiSettings,
    ServerAddress,
    SglangSettings,
    VllmSettings,
)
from onward.config.release import ReleaseSettings, TensorZeroSettings, ValidationSettings
from onward.config.rubrics import RubricsSettings
from onward.config.serving import (
    PROVIDER_URLS,
    FeedbackSettings,
    GatewaySettings,
    HttpSettings,
    KeyLimits,
    ProviderSettings,
)
from onward.config.settings import Settings
from onward.config.storage import (
    CaptureSettings,
    NatsSettings,
    ObjectSettings,
    StreamSettings,
    WarehouseSettings,
)
from onward.config.training import (
    REWARD_COMPONENTS,
    Algorithm,
    CustomComponent,
    RewardSettings,
    RubricSource,
    TrainingSettings,
)

__all__ = [
    "LEAST_KEY",
    "PROVIDER_URLS",
    "REWARD_COMPONENTS",
    "SEED_VARIABLES",
    "Algorithm",
    "CaptureSettings",
    "CustomComponent",
    "ExternalSettings",
    "FeedbackSettings",
    "GatewaySettings",
    "HttpSettings",
    "KeyLimits",
    "ModelSettings",
    "ModelsSettings",
    "NatsSettings",
    "ObjectSettings",
    "OllamaSettings",
    "OpenAiSettings",
    "ProviderSettings",
    "ReleaseSettings",
    "RewardSettings",
    "RubricSource",
    "RubricsSettings",
    "ServerAddress",
    "Settings",
    "SglangSettings",
    "StreamSettings",
    "TensorZeroSettings",
    "TrainingSettings",
    "ValidationSettings",
    "VllmSettings",
    "WarehouseSettings",
    "load",
]
