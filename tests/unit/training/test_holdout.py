"""The split by task: all attempts at a task on one side, the same side in every job."""

from typing import Any

import pytest

from onward.training.job import holdout


def _line(name: str, **fields: Any) -> dict[str, Any]:
    return {"trajectory_id": name, "group_key": None, **fields}


def _call(*prompt: int) -> list[dict[str, Any]]:
    return [{"generation_id": "g", "continues": None, "prompt_ids": list(prompt), "token_ids": [1]}]


def test_no_task_is_on_both_sides_and_nothing_is_lost() -> None:
    lines = [_line(f"t{n}", group_key=f"g{n % 50}") for n in range(400)]
    split = holdout.split(lines, 0.2, seed=0)
    sides = [{line["group_key"] for line in side} for side in (split.train, split.held_out)]
    assert not sides[0] & sides[1] and len(sides[0] | sides[1]) == split.tasks == 50
    assert sorted(line["trajectory_id"] for line in (*split.train, *split.held_out)) == sorted(
        line["trajectory_id"] for line in lines
    )
    assert split.reason is None and len(split.held_out) == 8 * len(sides[1])


def test_about_the_share_is_held_out_and_another_seed_holds_out_others() -> None:
    lines = [_line(f"t{n}", task_id=f"task-{n}") for n in range(1000)]
    chosen = [
        {line["trajectory_id"] for line in holdout.split(lines, 0.1, seed).held_out} for seed in range(5)
    ]
    assert all(70 < len(one) < 130 for one in chosen)  # 100 with a deviation of 9.5
    assert len(chosen[0] & chosen[1]) < 30


def test_a_task_keeps_its_side_when_the_data_grows() -> None:
    """Otherwise the next job would train on what this one was judged by, and be judged by what it knows."""
    lines = [_line(f"t{n}", task_id=f"task-{n}") for n in range(300)]
    few = {line["task_id"] for line in holdout.split(lines[100:200], 0.3, 7).held_out}
    all_of_them = {line["task_id"] for line in holdout.split(lines, 0.3, 7).held_out}
    assert few == {name for name in all_of_them if 100 <= int(name[5:]) < 200}


def test_lines_are_of_one_task_by_group_by_id_or_by_the_same_prompt() -> None:
    lines = [
        _line("a", group_key="g", task_id="x"),
        _line("b", group_key="h", task_id="x"),  # another start state of the same task
        _line("c", group_key="h", task_id="random-1"),
        _line("d", task_id="random-2", calls=_call(1, 2, 3)),  # the recorder gave it an id of its own
        _line("e", task_id="random-3", calls=_call(1, 2, 3)),
        _line("f", messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]),
        _line("g", messages=[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "No"}]),
        _line("h", messages=[{"role": "user", "content": "Hello"}]),
        _line("i"),
    ]
    names = holdout.task_names(lines)
    assert [names.index(name) for name in names] == [0, 0, 0, 3, 3, 5, 5, 7, 8]


@pytest.mark.parametrize(("count", "share"), [(40, 0.001), (1, 0.5)])
def test_too_few_tasks_hold_nothing_out_and_the_reason_says_so(count: int, share: float) -> None:
    lines = [_line(f"t{n}", group_key=f"g{n % count}") for n in range(40)]
    split = holdout.split(lines, share, seed=0)
    assert (len(split.train), split.held_out) == (40, [])
    assert split.reason is not None and split.reason.startswith(f"the data has {count} tasks, and")


def test_no_share_splits_nothing() -> None:
    lines = [_line("a"), _line("b")]
    assert holdout.split(lines, 0.0, 0) == holdout.Holdout(lines, [])
