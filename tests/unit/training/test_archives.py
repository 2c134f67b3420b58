"""Trajectories in files: the forms that exports have, newest first, redacted, and what is refused by name."""

from __future__ import annotations

import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from trainer_world import World
from trajectory_store import reward, trajectory

from onward.errors import TrainingError
from onward.export import writers
from onward.export.columns import row
from onward.export.records import Record
from onward.training.data import archives
from onward.training.data.archives import File, Newest

NOW = datetime(2026, 3, 20, tzinfo=UTC)


def lines(*records: dict[str, Any]) -> File:
    return File("a.jsonl", "".join(json.dumps(one) + "\n" for one in records).encode())


def names(newest: Newest) -> list[tuple[str, float | None]]:
    return [
        (found["trajectory_id"], scored and scored["metadata"]["raw_total"])
        for page in newest.pages(2)
        for found, scored in page
    ]


def test_every_form_is_read_and_the_newest_reward_counts() -> None:
    newest = Newest(10)
    left_out = newest.add(
        lines(
            {"trajectory": trajectory("a", hours=1), "reward": reward("a", 0.5)},
            trajectory("b", hours=3),
            reward("b", 0.25) | {"timestamp": "2026-03-02T00:00:00Z"},
            reward("b", 0.75) | {"timestamp": "2026-03-03T00:00:00Z"},
            {"trajectory": trajectory("c", hours=2), "reward": None},
            {"trajectory": trajectory("a", hours=1), "reward": None},
        )
    )
    assert names(newest) == [("b", 0.75), ("c", None), ("a", 0.5)] and left_out == {"duplicate": 1}


def test_the_parquet_file_of_an_export_is_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    with writers.parquet(path) as put:
        put(row(Record(trajectory("a", hours=1), reward("a", 0.5))))
        put(row(Record(trajectory("b", hours=2), None)))
    newest = Newest(10)
    newest.add(File("a.parquet", path.read_bytes()))
    assert names(newest) == [("b", None), ("a", 0.5)]


def test_memory_is_bounded_and_the_oldest_are_left_out() -> None:
    newest = Newest(2)
    left_out = newest.add(lines(*(trajectory(f"t{n}", hours=n) for n in (3, 1, 4, 2))))
    assert [name for name, _ in names(newest)] == ["t4", "t3"] and left_out == {"older": 2}


async def test_old_archives_are_redacted_like_new_messages(tmp_path: Path) -> None:
    """Nothing in a file is trusted to be redacted, and its age is no reason to refuse it."""
    settings = World(tmp_path).settings
    secret = "AKIAQ3EGRIBBR4AQPXYZ"
    left_out: Counter[str] = Counter()
    told = trajectory("11111111-1111-4111-8111-111111111111", answer=f"the key is {secret}")
    page = [(told, reward(told["trajectory_id"], 0.5)), ({**trajectory("b"), "turns": []}, None)]
    later = datetime(2036, 1, 1, tzinfo=UTC)
    (found,) = await archives.judged(settings, page, later, left_out)
    assert secret not in json.dumps(found.trajectory) and "AKIA" not in json.dumps(found.trajectory)
    assert found.reward is not None and found.reward["metadata"]["raw_total"] == 0.5 and found.identity
    assert left_out.total() == 1


async def test_a_reward_that_breaks_its_contract_is_counted_and_not_used(tmp_path: Path) -> None:
    left_out: Counter[str] = Counter()
    page = [(trajectory("a"), reward("a", 0.5) | {"total_reward": "much"})]
    assert await archives.judged(World(tmp_path).settings, page, NOW, left_out) == []
    assert left_out == {"bad_reward": 1}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{not json\n", r"a\.jsonl, line 1, is no JSON object"),
        (b"\n[1]\n", r"a\.jsonl, line 2, is no JSON object"),
        (b'{"messages": []}\n', "train from files of other forms with 'onward train --data'"),
        (b'{"turns": []}\n', "no id or no end_timestamp"),
    ],
)
def test_a_file_of_another_form_is_refused_with_file_and_line(body: bytes, words: str) -> None:
    with pytest.raises(TrainingError, match=words) as refused:
        Newest(10).add(File("a.jsonl", body))
    assert refused.value.code == "DATA"


def test_a_damaged_parquet_file_is_named() -> None:
    pytest.importorskip("pyarrow")
    with pytest.raises(TrainingError, match=r"a\.parquet is not a Parquet file"):
        Newest(10).add(File("a.parquet", b"PAR1 and no more"))


async def test_objects_below_the_configured_store_are_read_and_no_others(tmp_path: Path) -> None:
    store = tmp_path / "store"
    settings = World(tmp_path / "data", objects={"trajectories_url": str(store)}).settings
    (store / "day").mkdir(parents=True)
    for name in ("day/a.jsonl", "b.jsonl", "day/note.txt"):
        (store / name).write_text("{}")
    found = [file.name async for file in archives.stored_files(settings, "day")]
    assert found == ["day/a.jsonl"]
    for path in ("../data", "s3://other/x", "/etc", "day/../.."):
        with pytest.raises(TrainingError, match="Object key"):
            _ = [file async for file in archives.stored_files(settings, path)]
    with pytest.raises(TrainingError, match=r"'none' has no \.jsonl or \.parquet object"):
        _ = [file async for file in archives.stored_files(settings, "none")]
