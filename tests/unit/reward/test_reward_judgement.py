"""Success, completion and status: told, derived, and told but contradicted. Every line by hand."""

import pytest
from reward_documents import trajectory, turn

from onward.reward import ScoringContext
from onward.reward.components import TaskCompletion, UserFeedback
from onward.reward.measures import facts
from onward.reward.measures.baselines import Baselines
from onward.reward.measures.judgement import completion_score, earned_score, evidence, judge

SUCCESS = "completed_successfully"


def checked(n: int, tests) -> dict:
    found = turn(n, tool="run_tests")
    found["result"]["checks"] = {"tests": tests}
    return found


def delegated(n: int, *, success: bool = True) -> dict:
    found = turn(n, success=success)
    found["action"] = {"type": "subordinate_call"}
    return found


def said(n: int, message: str) -> dict:
    found = turn(n)
    found["observation"]["content"] = message
    return found


def with_metadata(item, **more):
    item.metadata.__pydantic_extra__ = more
    return item


def ended(n: int, **how) -> dict:
    found = turn(n)
    found["action"] |= how
    return found


DERIVED = {
    # 0.25 · shares · (1 − error rate) · 0.5 after a correction
    "answered": ([turn(1, tool="a"), turn(2)], "partial_completion", 0.25),
    "one answer alone": ([turn(1)], "partial_completion", 0.25),
    "one of four failed": (
        [turn(1, tool="a"), turn(2, tool="b", success=False), turn(3, tool="c"), turn(4)],
        "partial_completion",
        0.25 * 0.75,
    ),
    "three of four tests": (
        [checked(1, {"passed": 3, "failed": 1}), turn(2)],
        "partial_completion",
        0.25 * 0.75,
    ),
    "refused at the end": ([turn(1, tool="a"), ended(2, refusal="I must not say.")], "failed", 0.0),
    "no test passed": ([checked(1, {"passed": 0, "failed": 2}), turn(2)], "failed", 0.0),
    "one of two subordinates": (
        [delegated(1), delegated(2, success=False), turn(3)],
        "partial_completion",
        0.25 * 0.5 * 2 / 3,
    ),
    "corrected": ([turn(1), said(2, "That is wrong, try again.")], "partial_completion", 0.125),
    "last result failed": ([turn(1, tool="a"), turn(2, success=False)], "failed", 0.0),
    "no answer": ([turn(1, tool="a"), turn(2, tool="b")], "abandoned", 0.0),
    "an answer by a tool": ([turn(1, tool="a"), turn(2, tool="response")], "partial_completion", 0.25),
    "empty": ([turn(1, output="")], "failed", 0.0),
}


@pytest.mark.parametrize("turns, status, completion", DERIVED.values(), ids=DERIVED.keys())
def test_what_nobody_told_is_derived_and_never_upwards(turns, status, completion):
    judgement = judge(trajectory(status=None, turns=turns))
    assert (judgement.status, judgement.success, judgement.derived) == (status, False, True)
    assert judgement.completion == pytest.approx(completion)
    assert completion_score(judgement) == judgement.completion and earned_score(judgement) == 0.0
    assert evidence(judgement) == 0.5 and judgement.why.startswith("no status was given; ")


def test_memory_written_after_the_answer_does_not_hide_it():
    last = turn(3, success=False)
    last["action"] = {"type": "memory_update"}
    assert judge(trajectory(status=None, turns=[turn(1, tool="a"), turn(2), last])).completion == (
        pytest.approx(0.25 * 2 / 3)
    )
    assert not judge(trajectory(turns=[turn(1, tool="a"), turn(2), last])).contradictions


CONTRADICTED = {
    "last_result_failed": [turn(1, tool="a"), turn(2, success=False)],
    "nothing_succeeded": [turn(1, tool="a", success=False), turn(2, success=False)],
    "tests_failed": [checked(1, {"passed": 9, "failed": 1}), turn(2)],
    "no_final_response": [turn(1, tool="a"), turn(2, tool="b")],
    "empty_response": [turn(1, tool="a"), turn(2, output="  ")],
    "unparsable_at_the_end": [turn(1, tool="a"), turn(2, success=False, error="unparsable: no object")],
    "nothing_recorded": [turn(1, output="")],
    "answer_withheld": [turn(1, tool="a"), ended(2, finish_reason="content_filter")],
}


@pytest.mark.parametrize("why, turns", CONTRADICTED.items())
def test_a_told_success_that_its_results_contradict_counts_as_if_it_had_not_been_told(why, turns):
    told, silent = judge(trajectory(turns=turns)), judge(trajectory(status=None, turns=turns))
    assert why in told.contradictions and told.reported == SUCCESS and told.derived and not told.success
    assert (told.status, told.completion) == (silent.status, silent.completion)
    assert evidence(told) == 0.25


def test_a_refusal_contradicts_a_success_unless_an_environment_judged_it():
    refused = [turn(1, tool="a"), ended(2, refusal="I must not say.")]
    assert judge(trajectory(turns=refused)).contradictions == ("answer_withheld",)
    assert judge(with_metadata(trajectory(turns=refused), environment="desk")).success
    assert judge(trajectory(turns=[turn(1, tool="a"), ended(2, finish_reason="stop")])).success
    assert judge(trajectory(turns=[ended(1, refusal="No."), turn(2)])).success


def test_an_answer_cut_at_its_limit_of_tokens_contradicts_no_success():
    """The agent may have done its task with what it got; the turn itself stays without success."""
    cut = ended(1, finish_reason="length", raw_response="A long")
    cut["result"] = {"success": False, "error": "truncated: the limit of tokens"}
    assert judge(trajectory(turns=[cut])).success
    assert judge(trajectory(status=None, turns=[cut])).status == "failed"
    assert judge(trajectory(turns=[turn(1, tool="a", success=False), {**cut, "turn_id": 2}])).success
    unknown = {**cut, "action": ended(1, raw_response="A long")["action"]}
    assert judge(trajectory(turns=[unknown])).contradictions == ("nothing_succeeded", "last_result_failed")


def test_subtasks_of_its_own_that_are_open_contradict_a_success():
    item = with_metadata(trajectory(), subtasks=[{"status": "done"}, {"status": "pending"}])
    assert judge(item).contradictions == ("subtasks_open",)
    assert judge(item).completion == pytest.approx(0.125)
    assert not judge(with_metadata(trajectory(), subtasks=[{"done": True}])).contradictions
    assert facts.subtasks_done(with_metadata(trajectory(), subtasks={"done": 3, "total": 4})) == 0.75
    assert facts.subtasks_done(with_metadata(trajectory(), subtasks=["buy", "sell"])) is None


def test_a_part_is_contradicted_only_where_nothing_worked():
    failed_at_the_end = [turn(1, tool="a"), turn(2, success=False)]
    honest = judge(trajectory(status="partial_completion", completion=0.4, turns=failed_at_the_end))
    assert not honest.contradictions and completion_score(honest) == 0.7
    nothing = judge(trajectory(status="partial_completion", completion=0.9, turns=[turn(1, success=False)]))
    assert nothing.contradictions == ("nothing_succeeded",) and completion_score(nothing) == 0.0
    tested = [checked(1, False), turn(2)]
    assert judge(trajectory(status="partial_completion", completion=0.9, turns=tested)).contradictions


TOLD_TOO_MUCH = {
    # what the results show → the completion that counts of 0.9
    "tests_failed": ([checked(1, {"passed": 1, "failed": 4}), turn(2)], None, 0.2),
    "subtasks_open": ([turn(1)], {"done": 3, "total": 10}, 0.3),
    "both": ([checked(1, {"passed": 1, "failed": 4}), turn(2)], {"done": 1, "total": 10}, 0.1),
}


@pytest.mark.parametrize("why", TOLD_TOO_MUCH)
def test_a_part_counts_as_far_as_its_own_tests_and_subtasks_go(why):
    """Else whoever calls a tenth of the work nine tenths is paid for it: so it pays to tell the truth."""
    turns, subtasks, shown = TOLD_TOO_MUCH[why]
    item = trajectory(status="partial_completion", completion=0.9, turns=turns)
    judgement = judge(item if subtasks is None else with_metadata(item, subtasks=subtasks))
    assert (judgement.completion, judgement.derived) == (shown, False)
    assert completion_score(judgement) == pytest.approx(0.5 + 0.5 * shown)
    names = ("tests_failed", "subtasks_open") if why == "both" else (why,)
    assert judgement.contradictions == names and evidence(judgement) == 0.25
    assert "partial_completion of 0.9 was reported, but " in judgement.why
    modest = judge(trajectory(status="partial_completion", completion=0.1, turns=turns))
    assert modest.completion == 0.1 and not modest.contradictions and evidence(modest) == 1.0


@pytest.mark.parametrize("why, turns", CONTRADICTED.items())
def test_a_part_that_claims_to_be_whole_is_contradicted_like_a_success(why, turns):
    told = judge(trajectory(status="partial_completion", completion=1.0, turns=turns))
    assert why in told.contradictions and told.derived and completion_score(told) <= 0.25


def test_a_failure_is_complete_only_as_far_as_something_worked():
    """The learner's return is the completion, so it must not be had by failing."""
    assert (
        judge(trajectory(status="failed", completion=1.0, turns=[turn(1, success=False)])).completion == 0.0
    )
    assert judge(trajectory(status="abandoned", completion=1.0, turns=[turn(1, output="")])).completion == 0.0
    tested = [checked(1, {"passed": 1, "failed": 3}), turn(2)]
    assert judge(trajectory(status="failed", completion=0.9, turns=tested)).completion == 0.25
    assert judge(trajectory(status="failed", completion=0.1, turns=tested)).completion == 0.1


def test_a_failure_is_believed():
    for status in ("failed", "abandoned"):
        judgement = judge(trajectory(status=status, turns=[turn(1, success=False)]))
        assert not judgement.contradictions and not judgement.derived


def test_work_that_an_environment_judged_or_whose_tests_passed_needs_no_final_response():
    turns = [turn(1, tool="go"), turn(2, tool="go")]
    judged = judge(with_metadata(trajectory(turns=turns), environment="desk"))
    assert judged.success and judged.reported_by == "environment"
    assert judge(trajectory(turns=[turn(1, tool="edit"), checked(2, {"passed": 4, "failed": 0})])).success
    lost = judge(with_metadata(trajectory(turns=[turn(1, tool="go", success=False)]), environment="desk"))
    assert "last_result_failed" in lost.contradictions


def test_who_tells_is_noted():
    captured = with_metadata(trajectory(), capture={"source": "gateway", "closed": "close"})
    assert judge(captured).reported_by == "gateway" and judge(trajectory()).reported_by == "agent"
    assert judge(trajectory(status=None)).reported_by == "nobody"


def test_contradictions_are_shown_where_a_person_looks():
    item = trajectory(turns=CONTRADICTED["last_result_failed"])
    answer = TaskCompletion().score(item, ScoringContext(judge(item), Baselines()))
    assert answer.raw_data["contradictions"] == ["last_result_failed"] and answer.raw_data["told"] == SUCCESS
    assert "completed_successfully was reported, but the last result is a failure" in answer.reasoning
    assert (answer.score, answer.evidence) == (0.0, 0.25)


@pytest.mark.parametrize(
    "tests, share",
    [
        ({"passed": 3, "failed": 1}, 0.75),
        ({"passed": 2, "failed": 1, "errors": 1}, 0.5),
        ({"passed": 3, "total": 4}, 0.75),
        ({"passed": True}, 1.0),
        ({"pass_rate": 0.5}, 0.5),
        (0.5, 0.5),
        (False, 0.0),
        ({"passed": 0, "failed": 0}, None),
        ({"passed": 5, "total": 4}, None),
        ({"passed": 3}, None),
        ({"pass_rate": 7}, None),
        ("all", None),
        (None, None),
        ({"passed": "3", "failed": 1}, None),
    ],
)
def test_results_of_tests_in_every_form(tests, share):
    item = trajectory(turns=[checked(1, {"passed": 1, "failed": 1}), checked(2, tests)])
    assert facts.tests_passed(item) == (0.5 if share is None else share)  # else what was said before


def test_a_request_to_correct_is_an_implicit_signal():
    item = trajectory(turns=[turn(1), said(2, "Nein, das ist falsch.")])
    answer = UserFeedback().score(item, ScoringContext(judge(item), Baselines()))
    assert (answer.score, answer.evidence, answer.raw_data["signal"]) == (0.2, 0.5, "correction")
    first = trajectory(turns=[said(1, "That is wrong, try again."), turn(2)])
    assert UserFeedback().score(first, ScoringContext(judge(first), Baselines())).raw_data["default"]


def test_the_text_of_an_answer_wherever_it_stands():
    def last(**action):
        found = turn(1, output=action.pop("output", None))
        found["action"] |= action
        return facts.answer_text(trajectory(turns=[found]).turns[0])

    assert last(raw_response="It is 4.") == "It is 4."
    assert last(raw_response="thoughts", output="It is 4.") == "It is 4."
    assert last(tool_args={"text": "4"}, raw_response="{}") == "4"
    assert last(raw_response='{"tool_name": "response", "tool_args": {"text": "4"}}') == "4"
    assert last(raw_response='{"tool_name": ') == '{"tool_name": '
    assert last() is None
