"""Samples by task domain: shares, the rule for shortage, recency and the seed, against numbers by hand."""

from __future__ import annotations

from typing import Any

import pytest

from onward.contracts.training import DatasetSpec
from onward.errors import TrainingError
from onward.training.data.sampling import Sample, fill, stratified
from onward.training.spec.dataset_mix import shares_of

MIX = {"coding": 0.4, "research": 0.3, "general": 0.3}


def drawn(counts: dict[str, int], total: int, **options: Any) -> Sample:
    """A sample of the domains in ``counts``, whose trajectories are ``coding-0`` (the newest) and so on."""
    lines = [
        {"trajectory_id": f"{name}-{n}", "group_key": f"{name}-{n // 4}"}
        for name, count in counts.items()
        for n in range(count)
    ]
    domains = {line["trajectory_id"]: line["trajectory_id"].split("-")[0] for line in lines}
    shares = options.pop("shares", MIX)
    return stratified(lines, domains, shares, total, **{"seed": 0, "grouped": False} | options)


def taken(sample: Sample) -> dict[str, int]:
    return {name: one.taken for name, one in sample.strata.items()}


def test_enough_of_each_domain_gives_exactly_the_mix() -> None:
    sample = drawn({"coding": 500, "research": 500, "general": 500}, 100)
    assert taken(sample) == {"coding": 40, "research": 30, "general": 30} and sample.shortages() == []


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        ({"coding": 10, "research": 500, "general": 500}, {"coding": 10, "research": 45, "general": 45}),
        # 40 + 0 + 30, and the 30 that are missing 4 : 3; 30 × 4/7 = 17.14 → 17
        ({"coding": 500, "research": 0, "general": 500}, {"coding": 57, "research": 0, "general": 43}),
        # general runs out of its part of the filling: research has the rest
        ({"coding": 10, "research": 500, "general": 35}, {"coding": 10, "research": 55, "general": 35}),
        ({"coding": 10, "research": 20, "general": 5}, {"coding": 10, "research": 20, "general": 5}),
    ],
)
def test_what_a_domain_lacks_is_filled_from_the_others_in_proportion(
    available: dict[str, int], expected: dict[str, int]
) -> None:
    assert fill(MIX, available, 100) == expected


def test_a_shortage_is_reported_with_its_numbers() -> None:
    sample = drawn({"coding": 10, "research": 500, "general": 500}, 100)
    assert sample.shortages() == [
        "The dataset was to have 40 trajectories of coding and has 10, since 10 were found; others fill in "
        "(research +15, general +15)."
    ]
    assert drawn({"coding": 10}, 100, shares={"coding": 1.0}).shortages() == [
        "The dataset was to have 100 trajectories of coding and has 10, since 10 were found; no other domain "
        "fills in."
    ]


def test_balanced_takes_equal_parts_of_the_domains_that_there_are() -> None:
    sample = drawn({"coding": 900, "writing": 50, "debugging": 50}, 90, shares=None)
    assert taken(sample) == {"coding": 30, "debugging": 30, "writing": 30}


def test_the_seed_decides_and_a_sample_stays_in_order_of_time() -> None:
    counts = {"coding": 200, "research": 200, "general": 200}
    one, again, other = (drawn(counts, 50, seed=seed) for seed in (7, 7, 8))
    assert one.lines == again.lines != other.lines
    ages = [
        int(line["trajectory_id"].split("-")[1]) for line in one.lines if "coding" in line["trajectory_id"]
    ]
    assert ages == sorted(ages)


def test_recent_work_is_drawn_more_often() -> None:
    """With a quota of 1 the chance halves with each newer one: 1/2, 1/4, 1/8 …"""
    found = [0] * 60
    for seed in range(1000):
        (line,) = drawn({"coding": 60}, 1, shares={"coding": 1.0}, seed=seed).lines
        found[int(line["trajectory_id"].split("-")[1])] += 1
    assert found[:3] == pytest.approx([500, 250, 125], abs=50)  # three standard deviations and more


def test_attempts_that_are_compared_are_drawn_together() -> None:
    sample = drawn({"coding": 40, "research": 40, "general": 40}, 30, grouped=True)
    groups: dict[str, int] = {}
    for line in sample.lines:
        groups[line["group_key"]] = groups.get(line["group_key"], 0) + 1
    assert set(groups.values()) == {4} and taken(sample) == {"coding": 12, "research": 8, "general": 8}


def test_a_domain_whose_groups_are_larger_than_its_part_is_not_left_out_in_silence() -> None:
    sample = drawn({"coding": 40, "research": 40, "general": 40}, 10, grouped=True)
    assert taken(sample) == {"coding": 4, "research": 0, "general": 0}
    assert sample.shortages() == [
        f"The dataset was to have 3 trajectories of {name} and has 0, since attempts at one task are drawn "
        f"together and no more of them fit: raise sample_size."
        for name in ("research", "general")
    ]


@pytest.mark.parametrize(
    "given", [{"coding": 40, "research": 30, "general": 30}, {"coding": 0.4, "general": 0.6}]
)
def test_shares_are_parts_or_percent(given: dict[str, float]) -> None:
    found = shares_of(DatasetSpec(source="clickhouse", sample_size=9, domain_mix=given))
    assert (
        found is not None
        and found["coding"] == pytest.approx(0.4)
        and sum(found.values()) == pytest.approx(1)
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"coding": 40, "research": 30}, "sums to 70"),
        ({"cooking": 100}, "names 'cooking', which is none of coding"),
        ({"coding": -1, "research": 101}, "no share above 0 for coding"),
        ({"coding": "40"}, "no share above 0"),
        ({"coding": True}, "no share above 0"),
        ({}, "no object with shares"),
    ],
)
def test_a_mix_that_is_none_is_refused_with_an_example(given: dict[str, Any], words: str) -> None:
    with pytest.raises(TrainingError, match=words) as refused:
        shares_of(DatasetSpec(source="clickhouse", sample_size=9, domain_mix=given))
    assert refused.value.code == "DATA" and '"coding": 40' in str(refused.value)
