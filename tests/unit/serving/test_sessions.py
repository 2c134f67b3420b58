from onward.serving.engines.session_memory import FinishedGeneration, SessionMemory


def _user(text):
    return {"role": "user", "content": text}


def _said(text):
    return {"role": "assistant", "content": text}


def _remember(memory, session, generation, messages, text, ids, adapter=None):
    memory.put(session, FinishedGeneration(generation, adapter, messages, text, ids, True))


def test_a_call_continues_the_longest_conversation_that_was_answered():
    memory = SessionMemory()
    _remember(memory, "s", "g1", [_user("a")], "A", [1, 2])
    _remember(memory, "s", "g2", [_user("a"), _said("A"), _user("b")], "B", [1, 2, 3, 4])
    found = memory.find("s", None, [_user("a"), _said("A"), _user("b"), _said("B"), _user("c")])
    assert found is not None and found.generation_id == "g2"
    branch = memory.find("s", None, [_user("a"), _said("A"), _user("other")])
    assert branch is not None and branch.generation_id == "g1"


def test_edited_history_another_adapter_and_another_session_start_a_new_row():
    memory = SessionMemory()
    _remember(memory, "s", "g1", [_user("a")], "A", [1, 2], adapter="x")
    asked = [_user("a"), _said("A"), _user("b")]
    assert memory.find("s", "x", asked) is not None
    assert memory.find("s", "x", [_user("a"), _said("A "), _user("b")]) is None
    assert memory.find("s", "x", [_user("changed"), _said("A"), _user("b")]) is None
    assert memory.find("s", None, asked) is None
    assert memory.find("t", "x", asked) is None
    assert memory.find("s", "x", [_user("a")]) is None


def test_memory_is_bounded_and_the_session_used_longest_ago_goes_first():
    memory = SessionMemory(max_tokens=10, per_session=2)
    _remember(memory, "old", "g1", [_user("a")], "A", [0] * 4)
    _remember(memory, "new", "g2", [_user("a")], "A", [0] * 4)
    assert memory.find("old", None, [_user("a"), _said("A"), _user("b")]) is not None  # used: now the newest
    _remember(memory, "third", "g3", [_user("a")], "A", [0] * 4)
    assert memory.find("new", None, [_user("a"), _said("A"), _user("b")]) is None
    assert memory.find("old", None, [_user("a"), _said("A"), _user("b")]) is not None
    assert (len(memory), memory.tokens) == (2, 8)
    for number in range(3):
        _remember(memory, "old", f"h{number}", [_user(str(number))], "A", [0])
    assert memory.tokens == 4 + 2  # two generations of one token each are kept of session "old"


def test_the_same_answer_again_replaces_the_earlier_one():
    memory = SessionMemory()
    _remember(memory, "s", "g1", [_user("a")], "A", [1, 2, 3])
    _remember(memory, "s", "g2", [_user("a")], "A", [1, 2])
    found = memory.find("s", None, [_user("a"), _said("A"), _user("b")])
    assert found is not None and found.generation_id == "g2" and memory.tokens == 2
