"""A request is checked by the very settings that its job is built from, without loading torch."""

import copy
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from onward.config import Settings
from onward.contracts import TrainingRequest, examples
from onward.errors import ConfigError, TrainingError
from onward.lm.algorithm_options import OPTIONS, options_of
from onward.training.spec import learners, request
from onward.training.spec.algorithms import ALGORITHMS
from onward.training.spec.numbers import PolicyGradient
from onward.training.spec.recipes import for_model

RUBRICS = {
    "kind": "rubrics",
    "training_job_id": "job-1",
    "timestamp": "2026-01-05T13:00:00Z",
    "requester": "t",
}
CHECKER = """
import json, sys
from onward.config import Settings
from onward.contracts import TrainingRequest
from onward.contracts.training import RubricsRequest
from onward.errors import TrainingError
from onward.training.job.rubrics import plan_of
from onward.training.role.possible import refuse_impossible

settings, found = Settings.model_validate({"model": {"base": "qwen2.5-32b-instruct"}}), []
for one in json.load(sys.stdin):
    asked = (RubricsRequest if one.get("kind") == "rubrics" else TrainingRequest).model_validate(one)
    try:
        refuse_impossible(asked, settings)
        found.append(plan_of(asked).algorithm if isinstance(asked, RubricsRequest) else "accepted")
    except TrainingError as error:
        found.append(str(error))
print(json.dumps([found, [name for name in sys.modules if name.partition(".")[0] == "torch"]]))
"""


def language_model(algorithm: str, **hyperparameters: Any) -> dict[str, Any]:
    document = copy.deepcopy(examples.TRAINING_REQUEST)
    document["training_config"] |= {"algorithm": algorithm, "hyperparameters": hyperparameters}
    return document


def test_the_check_of_a_request_of_any_algorithm_imports_no_torch() -> None:
    """In a fresh interpreter: every algorithm of both kinds of jobs, accepted and refused."""
    published = ["ppo", "dpo", "rloo", "grpo", "reinforce"]
    writers = ["rloo", "grpo", "reinforce", "reinforce_pp", "reinforce_plus_plus"]
    options = {"kind": "rubrics", **RUBRICS, "algorithm": "grpo", "settings": {"options.eps": "small"}}
    asked = [
        *(language_model(name) for name in published),
        language_model("grpo", clip_epsilon=2.0),
        *({**RUBRICS, "algorithm": name} for name in writers),
        options,
    ]
    done = subprocess.run(
        [sys.executable, "-c", CHECKER], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found, torch = json.loads(done.stdout)
    assert torch == []
    assert found[:5] == ["accepted"] * 5
    assert found[5].startswith("hyperparameters.clip_epsilon is wrong")
    assert found[6:11] == ["rloo", "grpo", "reinforce", "reinforce_plus_plus", "reinforce_plus_plus"]
    assert found[11] == "The option eps of grpo is 'small': give a number."


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"type": "grpo", "normalise_std": 1}, "The option normalise_std of grpo is 1: give true or false."),
        ({"type": "ppo", "gamma": True}, "The option gamma of ppo is True: give a number."),
        ({"type": "ppo", "whiten": 2}, "The option whiten of ppo is 2: give text."),
    ],
)
def test_an_option_of_another_type_is_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        options_of(options)
    assert str(refusal.value) == sentence


def test_a_whole_number_is_a_number() -> None:
    assert options_of({"type": "reinforce", "decay": 1, "negative_weight": 0}).type == "reinforce"


def test_every_policy_gradient_of_jobs_has_options_in_the_core(make_job: Any) -> None:
    """``dr_grpo`` is the one job algorithm that the core has under another name."""
    gradients = {name for name, kind in ALGORITHMS.items() if issubclass(kind, PolicyGradient)}
    assert gradients - {"dr_grpo"} == set(OPTIONS)
    for name in gradients:
        spec = request.JobSpec.model_validate_json((make_job(algorithm=name) / "spec.json").read_bytes())
        assert learners.algorithm_options(spec).type == ("grpo" if name == "dr_grpo" else name)


def test_numbers_that_no_learner_takes_are_refused_before_the_job() -> None:
    """A recipe that spares no token, and a request that holds some: no learner takes both."""
    asked = TrainingRequest.model_validate(language_model("ppo", hold_coef=0.1))
    recipe = replace(for_model("tiny"), spare_above=None, hold_coef=0.0)
    with pytest.raises(TrainingError, match="hold_coef without spare_above") as refusal:
        request.resolve(asked, Settings(), recipe, model_folder="", start_digest=None, epoch=1)
    assert refusal.value.code == "DATA"
