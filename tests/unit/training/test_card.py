"""The model card says what a reader must know before a release, with figures worked out by hand."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from onward.training.job import card
from onward.training.job.card import Origin, Resources
from onward.training.spec.request import JobSpec


def spec(**changes: Any) -> JobSpec:
    values: dict[str, Any] = {
        "job_id": "job-1", "epoch": 2, "algorithm": "reinforce", "base_model": "tiny",
        "model_folder": "/secret/place", "start_digest": None, "learning_rate": 1e-2, "epochs": 1,
        "batch_rows": 4, "clip_epsilon": 0.2, "lora_rank": 4, "lora_alpha": 8.0, "first_lora_layer": 0.0,
        "normaliser": "token", "return_from": "outcome", "standardise": False, "negative_weight": 1.0,
        "kl_coef": 0.0, "seed": 0, "threads": 1, **changes,
    }  # fmt: skip
    return JobSpec.model_validate(values)


RESOURCES = Resources(seconds=1800, device="cpu", dtype="float32", peak_memory_gb=1.5, cost_per_hour=3.0)


def test_held_out_success_has_its_intervals() -> None:
    """8 of 10 by Wilson: 0.4902 to 0.9433; 2 of 10: 0.0567 to 0.5098. Newcombe's change from these:
    0.6 - √(.3098² + .3098²) = 0.162 to 0.6 + √(.1433² + .1433²) = 0.803."""
    figures = {"episodes": 12, "unscored": 2, "reward": 0.5}
    metrics = {"held_out": {"before": {**figures, "success": 0.2}, "after": {**figures, "success": 0.8}}}
    text = card.write_card(spec(), metrics, Origin(), RESOURCES, "base-digest")
    assert "| held-out success before | 0.200 (0.057 to 0.510) |" in text
    assert "| held-out success after | 0.800 (0.490 to 0.943) |" in text
    assert "| held-out episodes after | 10 |" in text
    assert "| change of held-out success | +0.600 (+0.162 to +0.803) |" in text


def test_data_is_named_by_its_hash_with_what_was_left_out(tmp_path: Path) -> None:
    body = b'{"a": 1}\n{"a": 2}\n'
    (tmp_path / "dataset.jsonl").write_bytes(body)
    origin = Origin.of_folder(tmp_path, {"unscored": 3})
    text = card.write_card(spec(), {"loss": 0.5}, origin, RESOURCES, "base-digest")
    assert f"2 frozen records, SHA-256 `{hashlib.sha256(body).hexdigest()}`" in text
    assert "- Left out: 3 unscored." in text
    assert "| loss | 0.5 |" in text
    assert "Nothing was held out, so no figure here says how good the policy is" in text
    assert "| learning_rate | 0.01 |" in text
    assert "/secret/place" not in text


def test_the_cost_is_the_time_by_the_price_and_unknown_without_one() -> None:
    text = card.write_card(spec(), {}, Origin(), RESOURCES, "base-digest")
    assert "- 1,800 s on cpu in float32." in text
    assert "- About 1.50 USD, at 3 USD an hour." in text
    free = Resources(seconds=1800, device="cpu", dtype="float32")
    unknown = card.write_card(spec(), {}, Origin(), free, "base-digest")
    assert "Cost unknown: `training.cost_per_hour` is not set." in unknown


def test_the_best_of_several_evaluations_is_said_to_look_better_than_it_is() -> None:
    text = card.write_card(spec(), {"handed_out": {"evaluations": 5}}, Origin(), RESOURCES, "d")
    assert "best of 5 evaluations, so its held-out figure is above" in text


@pytest.mark.parametrize("name", ['x"\ninjected: 1', "a\n---\n# Heading", "<script>", "| a | b |"])
def test_text_of_a_request_changes_nothing_of_the_card_around_it(name: str) -> None:
    text = card.write_card(spec(base_model=name), {}, Origin(), RESOURCES, "d")
    lines = text.splitlines()
    assert lines.count("---") == 2 and lines.index("---", 1) == 6
    assert not any(line.startswith(("injected", "# Heading", "<")) for line in lines)
