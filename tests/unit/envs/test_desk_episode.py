"""Success, completion and status of an attempt, worked out by hand for each kind."""

import pytest

from onward.envs.desk import KINDS, MAX_STEPS, Episode, constant_policies, play, solve, success_rate, tasks
from onward.envs.desk.reference import call, scripted
from onward.envs.desk.tasks import Task


def one(kind: str, split: str = "train", seed: int = 0) -> Task:
    return next(t for t in tasks(split, 10, seed) if t.kind == kind)


def run(task: Task, *answers: str):
    return play(task, scripted(answers))[1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_reference_solution_succeeds(kind: str, split: str) -> None:
    for task in (t for t in tasks(split, 100) if t.kind == kind):
        assert run(task, *solve(task)).success
        assert len(solve(task)) == {"direct": 1, "calculate": 2, "lookup": 2}.get(kind, 3) <= MAX_STEPS


@pytest.mark.parametrize("kind", ["calculate", "lookup", "total", "agenda"])
def test_knowing_the_answer_without_the_tool_is_no_success(kind: str) -> None:
    outcome = run(one(kind), call("response", text=one(kind).answer))
    assert (outcome.success, outcome.completion, outcome.status) == (False, 0.0, "failed")


def test_direct_tasks_want_no_tool() -> None:
    task = one("direct")
    wanted = call("response", text=task.answer)
    assert run(task, wanted).success
    assert not run(task, call("calendar", day="monday"), wanted).success


@pytest.mark.parametrize("kind", ["total", "agenda"])
def test_completion_counts_the_stages_of_a_two_tool_task(kind: str) -> None:
    task = one(kind)
    first, second, _ = solve(task)
    wrong = call("response", text="pardon")
    assert run(task, wrong).completion == 0
    assert run(task, first, wrong).completion == pytest.approx(1 / 6)
    assert run(task, second, wrong).completion == 0
    outcome = run(task, first, second, wrong)
    assert (outcome.success, outcome.status) == (False, "partial_completion")
    assert outcome.completion == pytest.approx(1 / 3)


def test_a_needless_call_costs_a_step_and_not_the_success() -> None:
    task = one("calculate")
    assert run(task, call("calendar", day="monday"), *solve(task)).success
    assert run(task, call("calculator", expression="(("), *solve(task)).success


def test_running_out_of_steps_is_abandoned() -> None:
    outcome = run(one("calculate"), call("calendar", day="monday"))
    assert (outcome.success, outcome.status) == (False, "abandoned")


def test_saving_the_wrong_text_does_not_count() -> None:
    task = next(t for t in tasks("train", 100) if any(s.leaves_note for s in t.stages))
    first, second, last = solve(task)
    name = dict(task.stages[1].tool_args)["name"]
    assert run(task, first, second, last).success
    assert not run(task, first, call("notes_save", name=name, text="nothing"), last).success
    assert not run(task, first, call("notes_save", name="attic", text=task.answer), last).success


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "hello",
        "[]",
        "{}",
        '{"tool_name": "response"}',
        '{"tool_name": 3, "tool_args": {}}',
        '{"tool_name": "response", "tool_args": "x"}',
        '{"tool_name": "response", "tool_args": {"text": "x"}} and more',
        '{"tool_name": "response", "tool_args": {"text": NaN}}',
        '{"tool_name": "response", "tool_args": {"text": "x"}, "reply": 1}',
        "[" * 1500,
        "{" + " " * 3000 + "}",
    ],
)
def test_unparsable_answer_ends_the_episode_and_says_so(answer: str) -> None:
    episode = Episode(one("calculate"))
    step = episode.step(answer)
    assert step.done and step.error is not None and step.error.startswith("unparsable")
    assert episode.unparsable and episode.outcome().status == "failed"
    with pytest.raises(ValueError, match="done"):
        episode.step(answer)


def test_thoughts_are_welcome_and_prose_around_the_value_too() -> None:
    task = one("calculate")
    first = solve(task)[0]
    last = (
        f'{{"thoughts": ["done"], "tool_name": "response", "tool_args": {{"text": "It is {task.answer}."}}}}'
    )
    assert run(task, first, last).success


def test_a_list_of_guesses_is_no_answer() -> None:
    task = one("direct")
    others = [t.answer for t in tasks("train", 100) if t.kind == "direct" and t.answer != task.answer]
    assert not run(task, call("response", text=f"{task.answer} {others[0]}")).success


def test_a_response_of_the_wrong_form_is_an_error_that_can_be_parsed() -> None:
    episode = Episode(one("direct"))
    step = episode.step('{"tool_name": "response", "tool_args": {"answer": "x"}}')
    assert step.done and step.error == "error: response takes text: text"
    assert not episode.unparsable


def test_tool_errors_are_read_by_the_agent() -> None:
    episode = Episode(one("calculate"))
    step = episode.step(call("calculator", expression="("))
    assert step.observation == "Result: error: not an expression" and not step.done


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_no_constant_policy_gets_anywhere(split: str) -> None:
    panel = tasks(split, 100)
    rates = {name: success_rate(answers, panel) for name, answers in constant_policies().items()}
    assert len(rates) >= 10
    assert max(rates.values()) <= 0.05, rates


def test_attempts_do_not_share_notes() -> None:
    task = one("agenda")
    episode = Episode(task)
    episode.step(call("notes_save", name="attic", text="x"))
    assert "attic" not in task.office.notes
    assert Episode(task).step(call("notes_read", name="attic")).error == "error: no note attic"
