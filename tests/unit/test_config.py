"""Settings: the seed's variables work under their own names, and nothing misspelt passes."""

from pathlib import Path

import pytest

from onward import config
from onward.errors import ConfigError

SEED_ENVIRONMENT = {
    "NATS_URL": "nats://nats:4222",
    "AGENTZERO_JETSTREAM": "true",
    "AGENTGYM_RL_URL": "http://agentgym-rl:8100",
    "AGENTGYM_RL_API_KEY": "not-a-key",
    "TENSORZERO_BASE_URL": "http://tensorzero-gateway:3000",
    "TENSORZERO_ADMIN_TOKEN": "not-a-token",
    "MODEL_STORAGE_PATH": "s3://pmoves-models/rl-checkpoints/",
    "TRAJECTORY_STORAGE_PATH": "s3://pmoves-data/trajectories/",
    "RL_ALGORITHM": "ppo",
    "RL_BASE_MODEL": "qwen2.5-32b-instruct",
    "RL_TRAINING_THRESHOLD": "5000",
    "RL_SCHEDULE_CRON": "0 2 * * *",
    "REWARD_WEIGHT_TASK_COMPLETION": "0.40",
    "REWARD_WEIGHT_EFFICIENCY": "0.20",
    "REWARD_WEIGHT_CODE_QUALITY": "0.15",
    "REWARD_WEIGHT_USER_FEEDBACK": "0.25",
    "CANARY_INITIAL_TRAFFIC": "0.10",
    "CANARY_RAMP_HOURS": "4",
    "ROLLBACK_ERROR_THRESHOLD": "0.05",
    "ROLLBACK_REWARD_THRESHOLD": "-0.05",
}


def test_the_seeds_environment_is_read_under_its_own_names() -> None:
    settings = config.load(environ=SEED_ENVIRONMENT)
    assert settings.nats.url == "nats://nats:4222"
    assert settings.objects.models_url == "s3://pmoves-models/rl-checkpoints/"
    assert (settings.training.algorithm, settings.training.threshold) == ("ppo", 5000)
    assert settings.release.steps == [0.10, 0.25, 0.50, 1.0]
    assert (settings.release.error_ceiling, settings.release.reward_margin) == (0.05, 0.05)
    # The seed's ramp: 25 % after 60 minutes, 50 % after 120, 100 % after 240.
    assert [settings.release.step_seconds(step) / 60 for step in range(3)] == [60, 60, 120]
    assert settings.training.schedule == "0 2 * * *"
    assert settings.datasets_at == "s3://pmoves-data/trajectories/"
    scopes = {settings.key_names()[digest]: given for digest, given in settings.api_keys().items()}
    assert scopes == {"agentgym-rl": ["train", "read"], "tensorzero-admin": ["deploy", "read", "chat"]}


def test_secrets_do_not_show_when_settings_are_printed() -> None:
    assert "not-a-key" not in repr(config.load(environ=SEED_ENVIRONMENT))
    assert "not-a-token" not in repr(config.load(environ=SEED_ENVIRONMENT))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[training]\ntreshold = 3\n", "Unknown setting 'training.treshold'"),
        ("[trainin]\n", "Unknown setting 'trainin'"),
        ("[training]\nthreshold = 0\n", "greater than or equal to 1"),
        ('[training]\nschedule = "daily"\n', "not a cron expression"),
        ('[training]\nschedule = ""\n', "not a cron expression"),
        ("[reward]\nefficiency = 0.5\n", "sum to 1.3"),
        ("[release]\nsteps = [0.5, 0.1, 0.2, 1.0]\n", "must rise"),
        ("[release\n", "not valid TOML"),
        ('[release]\nstrategy = "fast"\n', "'auto', 'canary' or 'immediate'"),
        ('[http]\nnames = ["http://agents.example.org"]\n', "not a host name"),
        ('[external]\nagentgym_rl_api_key = "short"\n', "fewer than 8 characters"),
        ('[external]\nagentgym_rl_url = "agentgym-rl:8100"\n', "not http://host:port"),
    ],
)
def test_a_wrong_file_gets_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "onward.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=sentence) as caught:
        config.load(file, environ={})
    assert "\n" not in str(caught.value)


def test_a_list_that_is_none_is_one_sentence_with_an_example() -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(environ={"ONWARD_RELEASE__MIN_SESSIONS": "many"})
    assert str(caught.value) == (
        "Setting 'release.min_sessions' (from the environment) is not valid: "
        "expected a list in brackets, such as [10, 20, 40]."
    )


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "onward.toml"
    file.write_text("[training]\nthreshold = 7\nlearning_rate = 0.5\n")
    settings = config.load(file, environ={"RL_TRAINING_THRESHOLD": "9"})
    assert (settings.training.threshold, settings.training.learning_rate) == (9, 0.5)


def test_time_scale_scales_time_and_never_the_minimum_of_sessions() -> None:
    least = {"release": {"min_sessions": [50, 100, 200, 0]}}
    settings = config.load(environ={"ONWARD_RELEASE__TIME_SCALE": "0.01"}, overrides=least)
    assert settings.release.step_seconds(0) == pytest.approx(36.0)
    assert settings.release.min_sessions == [50, 100, 200, 0]


def test_aliases_of_models_are_found_in_any_case_and_checked() -> None:
    settings = config.load(environ={}, overrides={"models": {"aliases": {"Qwen-32B": "/models/qwen"}}})
    assert settings.models.expand("qwen-32b") == settings.models.expand("QWEN-32B") == "/models/qwen"
    assert settings.models.expand("another") == "another"
    for wrong, sentence in (
        ({"a": "/x", "A": "/y"}, "differ in case alone"),
        ({"SmolLM2": "/x"}, "that Onward makes or pulls"),
        ({"a": " "}, "no name or no folder"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            config.load(environ={}, overrides={"models": {"aliases": wrong}})


def test_the_command_of_a_vllm_server_is_split_as_a_shell_does() -> None:
    environ = {
        "ONWARD_VLLM__COMMAND": "/opt/v/bin/python -m 'a b'",
        "ONWARD_VLLM__OPTIONS": "--dtype float32",
    }
    vllm = config.load(environ=environ).vllm
    assert vllm.command == ["/opt/v/bin/python", "-m", "a b"]
    assert vllm.options == ["--dtype", "float32"]


def test_options_of_vllm_that_the_gateway_gives_itself_are_refused() -> None:
    for word in ("--port", "--port=80", "--host", "--served_model_name=x", "--served-model-name",
                 "--api-key=k", "--model", "--uds", "--po"):  # fmt: skip
        with pytest.raises(
            ConfigError, match=f"the option {word.partition('=')[0]} is set by Onward"
        ) as told:
            config.load(environ={}, overrides={"vllm": {"options": ["--dtype", "float32", word]}})
        assert "=k" not in str(told.value)
    options = ["--model-impl", "auto", "--api-server-count=1", "--hf-token", "x", "-O3", "--", "port"]
    assert config.load(environ={}, overrides={"vllm": {"options": options}}).vllm.options == options


@pytest.mark.parametrize(
    ("model", "served", "id_"),
    [
        ({}, "", "smollm2"),
        ({"base": "/models/mine"}, "", "base"),
        ({"base": "smollm2", "engine": "openai"}, "gpt-5-mini", "gpt-5-mini"),
        ({"base": "smollm2", "engine": "openai"}, "meta-llama/Llama-3.3-70B", "meta-llama-Llama-3-3-70B"),
        ({"base": "smollm2"}, "gpt-5-mini", "smollm2"),
    ],
)
def test_the_work_of_a_closed_model_has_its_name_and_not_that_of_the_base(
    model: dict[str, str], served: str, id_: str
) -> None:
    given = {"model": model, "openai": {"url": "http://127.0.0.1:1", "model": served}}
    assert config.load(environ={}, overrides=given).base_model_id == id_
