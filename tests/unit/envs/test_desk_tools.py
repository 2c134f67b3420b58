"""Each tool of the desk: one right call, and what it says to a wrong one."""

import pytest

from onward.envs.desk.tools import Office, ToolError, calculate, search, use


@pytest.fixture
def office() -> Office:
    return Office(
        documents={"Mara phone": "19", "Mara room": "24", "lamp price": "7"},
        calendar={"monday": "lunch"},
        notes={"travel": "monday"},
    )


@pytest.mark.parametrize(
    ("expression", "value"),
    [("7*4", "28"), (" 2 + 3*4 ", "14"), ("(2+3)*4", "20"), ("-3+1", "-2"), ("7/2", "3.5"), ("6/3", "2")],
)
def test_calculator_evaluates(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    ["", "7*", "a+1", "__import__('os')", "2**9", "1/0", "9" * 40, "1+" * 40 + "1", "True+1", "[1]", "1e999"],
)
def test_calculator_refuses_what_is_not_plain_arithmetic(expression: str) -> None:
    with pytest.raises(ToolError):
        calculate(expression)


def test_search_gives_the_closest_title_and_the_first_of_equals(office: Office) -> None:
    assert search(office, "room of mara") == "Mara room 24"
    assert search(office, "Mara") == "Mara phone 19"
    with pytest.raises(ToolError, match="nothing found"):
        search(office, "weather")


def test_notes_are_saved_and_read_whatever_the_case(office: Office) -> None:
    assert use(office, "notes_save", {"name": "Party", "text": "cake"}) == "saved"
    assert use(office, "notes_read", {"name": "party"}) == "cake"
    assert use(office, "notes_read", {"name": "TRAVEL"}) == "monday"
    with pytest.raises(ToolError, match="no note garden"):
        use(office, "notes_read", {"name": "garden"})


def test_calendar_names_the_event_of_a_day(office: Office) -> None:
    assert use(office, "calendar", {"day": "Monday"}) == "lunch"
    with pytest.raises(ToolError, match="no day sunday"):
        use(office, "calendar", {"day": "sunday"})


@pytest.mark.parametrize(
    ("tool_name", "tool_args"),
    [
        ("email", {"to": "x"}),
        ("response", {"text": "x"}),
        ("calculator", {}),
        ("calculator", {"expression": 7}),
        ("calculator", {"expression": "1", "more": "2"}),
        ("notes_save", {"name": "x"}),
    ],
)
def test_wrong_tool_or_arguments_are_refused(office: Office, tool_name: str, tool_args: dict) -> None:
    with pytest.raises(ToolError):
        use(office, tool_name, tool_args)
