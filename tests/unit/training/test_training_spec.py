"""The union of algorithms: which number each one uses, and that every number explains itself."""

from typing import Any

import pytest

from onward.errors import ConfigError, TrainingError
from onward.training.spec import algorithms, numbers
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.environment_plan import EnvironmentPlan
from onward.training.spec.recipes import for_model
from onward.training.spec.request import JobSpec

POLICY_GRADIENTS = {"ppo", "rloo", "grpo", "dr_grpo", "reinforce", "reinforce_pp"}


@pytest.mark.parametrize(
    ("name", "users"),
    [
        ("clip_epsilon", POLICY_GRADIENTS),
        ("spare_above", POLICY_GRADIENTS),
        ("gamma", {"ppo", "reinforce_pp"}),
        ("gae_lambda", {"ppo"}),
        ("beta", {"dpo"}),
        ("min_reward", {"sft", "dpo", "rloo", "grpo", "dr_grpo"}),
        ("learning_rate", set(ALGORITHMS)),
    ],
)
def test_a_number_belongs_to_the_algorithms_that_use_it(name: str, users: set[str]) -> None:
    assert {algorithm for algorithm, kind in ALGORITHMS.items() if name in kind.model_fields} == users


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
