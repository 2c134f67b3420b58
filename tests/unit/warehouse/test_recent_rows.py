"""Rows that a neighbour takes without asking the warehouse: the newest of an id, once, and within bounds."""

from onward.warehouse.recent_rows import RecentRows


def row(name: str, stream_seq: int, payload: str = "x") -> dict:
    return {"trajectory_id": name, "stream_seq": stream_seq, "payload": payload}


def test_the_newest_row_of_an_id_is_taken_once():
    rows = RecentRows()
    rows.put([row("a", 2), row("b", 3)])
    rows.put([row("a", 1)])
    assert rows.pop(["a", "c"]) == {"a": row("a", 2)}
    assert rows.pop(["a", "b"]) == {"b": row("b", 3)}


def test_the_oldest_are_forgotten_when_there_is_no_room():
    rows = RecentRows(max_bytes=10)
    rows.put([row("a", 1, "x" * 6), row("b", 2, "x" * 4)])
    rows.put([row("c", 3, "x" * 3)])
    assert rows.pop("abc").keys() == {"b", "c"}
    rows.put([row("d", 4, "x" * 11)])
    assert rows.pop("d") == {}
