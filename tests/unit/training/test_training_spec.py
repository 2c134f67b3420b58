"""The union of algorithms: which number each one uses, and that every number explains itself."""

import copy
from pathlib import Path
from typing import Any

import pytest

from onward import config
from onward.contracts import TrainingRequest, examples
from onward.errors import ConfigError, ContractError, TrainingError
from onward.training.job.run_options import RunOptions
from onward.training.spec import algorithms, numbers, request
from onward.training.spec import environment_plan as plans
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.environment_plan import EnvironmentPlan
from onward.training.spec.recipes import for_model
from onward.training.spec.request import JobSpec

POLICY_GRADIENTS = {"ppo", "rloo", "grpo", "dr_grpo", "reinforce", "reinforce_plus_plus"}


@pytest.mark.parametrize(
    ("name", "users"),
    [
        ("clip_epsilon", POLICY_GRADIENTS),
        ("spare_above", POLICY_GRADIENTS),
        ("gamma", {"ppo", "reinforce_plus_plus"}),
        ("gae_lambda", {"ppo"}),
        ("beta", {"dpo"}),
        ("min_reward", {"sft", "dpo", "rloo", "grpo", "dr_grpo"}),
        ("learning_rate", set(ALGORITHMS)),
    ],
)
def test_a_number_belongs_to_the_algorithms_that_use_it(name: str, users: set[str]) -> None:
    assert {algorithm for algorithm, kind in ALGORITHMS.items() if name in kind.model_fields} == users


def test_the_short_name_of_an_algorithm_is_the_same_in_options_and_stored_runs(make_job: Any) -> None:
    options = RunOptions("reinforce_pp", "tiny", None, Path("out"))
    stored = JobSpec.model_validate_json((make_job(algorithm="reinforce_pp") / "spec.json").read_bytes())
    assert (options.algorithm, stored.algorithm) == ("reinforce_plus_plus", "reinforce_plus_plus")


def test_every_number_of_an_algorithm_is_in_the_job_file_and_explained() -> None:
    for kind in ALGORITHMS.values():
        assert set(kind.model_fields) <= set(JobSpec.model_fields)
    for spec in (JobSpec, EnvironmentPlan):
        for name in numbers.options(spec):
            assert spec.model_fields[name].description, name


def test_a_request_gets_the_numbers_of_its_algorithm_alone_and_a_recipe_the_rest() -> None:
    recipe = for_model("tiny")
    asked = {"batch_size": 4, "gamma": 0.5, "clip_epsilon": 0.1, "unheard_of": 1}
    found = algorithms.read("rloo", asked, recipe)
    assert (found["batch_rows"], found["clip_epsilon"], found["epochs"]) == (4, 0.1, recipe.epochs)
    assert "gamma" not in found and "unheard_of" not in found
    assert "clip_epsilon" not in algorithms.read("dpo", asked, recipe)


@pytest.mark.parametrize("value", [0.0, 1.0, float("nan"), float("inf")])
def test_a_bound_is_the_same_in_a_request_and_on_the_command_line(value: float) -> None:
    with pytest.raises(TrainingError, match=r"hyperparameters\.clip_epsilon is wrong"):
        algorithms.read("ppo", {"clip_epsilon": value}, for_model("tiny"))
    with pytest.raises(ConfigError, match=r"--clip is .*: give a number greater than 0 and less than 1"):
        numbers.refuse_out_of_range(JobSpec, {"clip_epsilon": value})


def test_values_inside_the_bounds_pass() -> None:
    given: dict[str, Any] = {"clip_epsilon": 0.5, "gae_lambda": 1.0, "first_lora_layer": 0.99, "epochs": 3}
    numbers.refuse_out_of_range(JobSpec, given)


LISTED = ["https://envs.example.org/webshop", "http://127.0.0.1:9000", "my.games:CHESS"]


@pytest.mark.parametrize(
    "place",
    [
        "maze", "my.games:CHESS", "https://envs.example.org/webshop", "https://envs.example.org:443/webshop/a",
        "https://ENVS.example.org/webshop/", "http://127.0.0.1:9000", "http://127.0.0.1:9000/any/path",
    ],
)  # fmt: skip
def test_a_message_may_name_what_is_built_in_or_listed(place: str) -> None:
    assert plans.is_listed(place, LISTED)


@pytest.mark.parametrize(
    "place",
    [
        "os:system", "my.games:OTHER", "http://127.0.0.1:9001", "http://localhost:9000", "http://127.0.0.1",
        "https://envs.example.org", "https://envs.example.org/webshop2", "http://envs.example.org/webshop",
        "https://envs.example.org/webshop/../admin", "https://envs.example.org/webshop/%2e%2e/admin",
        "https://envs.example.org@evil.example/webshop", "https://envs.example.org:8443/webshop",
        "https://evil.example/?https://envs.example.org/webshop", "https://envs.example.org\\@evil.example/webshop",
        "https://envs.example.org/webshop?to=http://127.0.0.1", "file:///etc/passwd", "ftp://envs.example.org/webshop",
        "http://169.254.169.254/latest", "http://[::1]:9000", "http://2130706433:9000", "://", "",
    ],
)  # fmt: skip
def test_a_message_may_name_nothing_else(place: str) -> None:
    assert not plans.is_listed(place, LISTED)


def _request(**changes: Any) -> TrainingRequest:
    document = copy.deepcopy(examples.TRAINING_REQUEST)
    document["training_config"] |= {
        "base_model": "tiny",
        "algorithm": "reinforce",
        "hyperparameters": {},
        "dataset": {"source": "local", "sample_size": 4, "environment": changes.pop("environment", {})},
    }
    return TrainingRequest.model_validate({**document, **changes})


@pytest.mark.parametrize(
    "place", [{"url": "http://127.0.0.1:1/internal"}, {"name": "os:environ"}, {"name": 5}]
)
def test_a_request_for_a_place_that_is_not_listed_is_refused_before_anything_is_called(
    place: dict[str, Any],
) -> None:
    settings = config.load(environ={}, overrides={"model": {"base": "tiny"}})
    with pytest.raises(TrainingError, match=r"let the operator list it in training\.environments") as caught:
        request.check(_request(environment=place), settings)
    assert caught.value.code == "DATA" and "127.0.0.1" not in str(caught.value)


def test_a_listed_place_and_a_built_in_one_pass() -> None:
    listed = {"model": {"base": "tiny"}, "training": {"environments": ["http://127.0.0.1:1"]}}
    settings = config.load(environ={}, overrides=listed)
    request.check(_request(environment={"url": "http://127.0.0.1:1/internal"}), settings)
    request.check(_request(environment={"name": "maze"}), settings)


def test_the_list_refuses_an_address_with_a_login_or_a_query() -> None:
    for entry in ("http://user:word@host", "http://host/?a", "no address", "ftp://host"):
        with pytest.raises(ConfigError, match=r"neither http://HOST:PORT/PATH"):
            config.load(environ={}, overrides={"training": {"environments": [entry]}})


def test_no_message_skips_the_validation_of_its_result() -> None:
    for given in (True, 1, "yes"):
        with pytest.raises(ContractError, match="cannot skip the validation") as caught:
            request.refuse_operators_rights(_request(metadata={"skip_validation": given}))
        assert caught.value.reason == "operator_only"
    request.refuse_operators_rights(_request(metadata={"skip_validation": False}))
    request.refuse_operators_rights(_request(metadata={"notes": "by hand"}))
