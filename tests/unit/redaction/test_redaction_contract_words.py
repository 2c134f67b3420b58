"""The words of the contract that redaction states are those of the models."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from onward.contracts import trajectory
from onward.redaction import contract_words

MODELS = (
    trajectory.Trajectory,
    trajectory.Turn,
    trajectory.Observation,
    trajectory.ObservationContext,
    trajectory.Action,
    trajectory.Sampling,
    trajectory.Result,
    trajectory.TaskContext,
    trajectory.TrajectoryMetadata,
    trajectory.Outcome,
    trajectory.ReleaseTag,
)


def fields() -> Iterator[tuple[str, Any]]:
    for model in MODELS:
        for name, field in model.model_fields.items():
            yield name, field.annotation


def holds_number(annotation: Any) -> bool:
    return annotation in (int, float) or any(holds_number(part) for part in get_args(annotation))


def members(annotation: Any) -> set[str]:
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    return {member for part in get_args(annotation) for member in members(part)}


def test_every_field_of_a_trajectory_keeps_its_name() -> None:
    assert {name for name, _ in fields()} == contract_words.FIELD_NAMES


def test_every_number_of_a_trajectory_is_kept() -> None:
    assert {name for name, kind in fields() if holds_number(kind)} == contract_words.NUMBER_FIELDS


def test_every_enumeration_of_a_trajectory_is_kept() -> None:
    assert set().union(*(members(kind) for _, kind in fields())) == contract_words.ENUM_VALUES


def test_no_model_within_a_trajectory_is_forgotten() -> None:
    """Walks from Trajectory through every annotation, by hand of pydantic's own fields."""
    found, pending = set(), [trajectory.Trajectory]
    while pending:
        model = pending.pop()
        found.add(model)
        nested = [part for field in model.model_fields.values() for part in parts(field.annotation)]
        pending += [part for part in nested if part not in found]
    assert found == set(MODELS)


def parts(annotation: Any) -> Iterator[Any]:
    if hasattr(annotation, "model_fields"):
        yield annotation
    for part in get_args(annotation):
        yield from parts(part)
