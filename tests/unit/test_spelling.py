"""A mistyped name is answered with the one that was meant, where there is one."""

import difflib

import pytest

from onward import config
from onward.errors import ConfigError
from onward.spelling import closest_name


@pytest.mark.parametrize(
    ("given", "meant"), [("threshhold", "threshold"), ("lr", "learning_rate"), ("zzz", None)]
)
def test_a_name_is_near_by_its_letters_or_by_its_initials(given: str, meant: str | None) -> None:
    assert closest_name(given, ["threshold", "learning_rate", "epochs"]) == meant


@pytest.mark.parametrize(("given", "meant"), [("nope", None), ("note", "notes"), ("sede", "seed")])
def test_a_name_that_shares_a_few_letters_is_not_suggested(given: str, meant: str | None) -> None:
    assert closest_name(given, ["notes", "seed", "steps", "model"]) == meant


def test_only_the_beginning_of_a_huge_name_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    monkeypatch.setattr(
        difflib, "get_close_matches", lambda name, *_, **__: compared.append(name) or ["threshold"]
    )
    assert closest_name("x" * 900_000, ["threshold"]) == "threshold"
    assert compared == ["x" * 64]


def test_a_mistyped_setting_names_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"did you mean training\.threshold\? Known here are"):
        config.load(environ={}, overrides={"training": {"threshhold": 3}})
