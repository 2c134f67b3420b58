"""Records that a client fetches: by its own key, in order, bounded in memory and time."""

from onward.clock import ManualClock
from onward.serving.recording.kept_records import SECONDS, KeptRecords


def answer(number: int) -> dict:
    return {"onward": {"model_id": "m", "release": None, "sampling": {"token_ids": [number]}}}


def test_records_are_in_order_and_of_their_own_key() -> None:
    kept = KeptRecords(ManualClock())
    kept.add("key-1", "task", answer(1), "one")
    kept.add("key-1", "task", answer(2), "two")
    kept.add("key-1", "task", {"onward": {"sampling": None}}, "of a closed model")
    assert [(one["text"], one["sampling"]["token_ids"]) for one in kept.get("key-1", "task")] == [
        ("one", [1]),
        ("two", [2]),
    ]
    assert kept.get("key-2", "task") == [] and kept.get("key-1", "other") == []


async def test_the_oldest_names_go_when_there_is_no_room_and_each_goes_in_time() -> None:
    clock = ManualClock()
    kept = KeptRecords(clock, limit=1000)
    for number in range(8):
        kept.add("key", f"task-{number}", answer(number), "x" * 200)
    assert [bool(kept.get("key", f"task-{number}")) for number in range(8)] == [False] * 5 + [True] * 3
    await clock.advance(SECONDS + 1)
    assert kept.get("key", "task-7") == []


def test_a_key_with_many_records_pushes_out_its_own_and_none_of_another_key() -> None:
    kept = KeptRecords(ManualClock(), limit=4000)
    kept.add("quiet", "task", answer(1), "first of all")
    for number in range(100):
        kept.add("busy", f"task-{number}", answer(number), "x" * 200)
    assert [one["text"] for one in kept.get("quiet", "task")] == ["first of all"]
    left = [number for number in range(100) if kept.get("busy", f"task-{number}")]
    assert left == list(range(100 - len(left), 100)) and len(left) > 10  # what others leave is used


def test_keys_that_all_want_more_get_equal_shares() -> None:
    kept = KeptRecords(ManualClock(), limit=6000)
    for key in ("first", "second", "third"):  # one after the other: the first had all the room
        for number in range(40):
            kept.add(key, f"task-{number}", answer(number), "x" * 200)
    left = [
        sum(bool(kept.get(key, f"task-{number}")) for number in range(40))
        for key in ("first", "second", "third")
    ]
    assert max(left) - min(left) <= 1 and min(left) >= 5
