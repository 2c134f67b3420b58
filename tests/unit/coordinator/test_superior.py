"""What a sentence of the superior agent asks for, and what is not guessed."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.coordinator.superior import Ask, ask_of, read
from onward.errors import ContractError


@pytest.mark.parametrize(
    ("words", "size", "days", "algorithm"),
    [
        ("Trigger training job with 10K samples from last 30 days", 10_000, 30, None),
        ("Start a DPO training job on 5,000 trajectories", 5000, None, "dpo"),
        ("please run retraining with 2.5k samples", 2500, None, None),
        ("Train on the last 7 days", None, 7, None),
        ("initiate RL training", None, None, None),
        ("Could you start a training job?", None, None, None),
    ],
)
def test_size_period_and_algorithm_are_read(words, size, days, algorithm):
    assert ask_of(words) == Ask(words, size, days, algorithm)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("What is the state of the training?", "not_understood"),
        ("Do not start the training", "not_understood"),
        ("Don\u2019t start the training", "not_understood"),
        ("You shouldn't run a training now", "not_understood"),
        ("When did you start the training?", "not_understood"),
        ("Did the request for training arrive?", "not_understood"),
        ("Cancel the training that you started", "not_understood"),
        ("Execute coding task: implement binary search in Python", "not_understood"),
        ("Trigger training with 0 samples", "out_of_range"),
        ("Trigger training with 99999999999999999999999999 samples", "out_of_range"),
        ("Trigger training from last 100000 days", "out_of_range"),
    ],
)
def test_anything_else_is_refused_in_one_sentence(words, code):
    with pytest.raises(ContractError) as caught:
        ask_of(words)
    assert caught.value.reason == code and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "not_json"),
        (b"\xff", "not_json"),
        (b"[" * 100_000, "not_json"),
        (b"[]", "no_message"),
        (b"{}", "no_message"),
        (b'{"message": 5}', "no_message"),
        (json.dumps({"message": "train " * 1000}).encode(), "no_message"),
        (b'{"profile": "coder", "message": "Start training"}', "wrong_profile"),
    ],
)
def test_a_wrong_body_is_refused_in_one_sentence(body, code):
    with pytest.raises(ContractError) as caught:
        read(body)
    assert caught.value.reason == code and "\n" not in str(caught.value)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda t: json.dumps({"message": t}).encode()))
def test_whatever_arrives_is_an_ask_or_a_contract_error(body):
    try:
        assert isinstance(read(body), Ask)
    except ContractError:
        return
