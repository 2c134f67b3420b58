"""The real engine in its child process: durability over kills, duplicates, errors, every query."""

import asyncio
import hashlib
import os
import signal
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import pytest_asyncio

from onward.config import load
from onward.errors import WarehouseError
from onward.warehouse import EmbeddedWarehouse, connect, queries
from onward.warehouse.client import read_address

pytestmark = pytest.mark.asyncio(loop_scope="module")
DAY = datetime(2026, 3, 1, 12, tzinfo=UTC)


def trajectory(name: str, seq: int, **changes) -> dict:
    payload = changes.get("payload", f'{{"trajectory_id":"{name}"}}')
    row = {
        "trajectory_id": name, "session_id": f"s-{name}", "agent_id": "a", "model_digest": "m1",
        "model_version": "v1", "release_id": "r1", "arm": "current", "task_id": "k", "task_type": "one",
        "group_key": "g", "domain": "general", "start_ts": DAY, "end_ts": DAY + timedelta(seconds=5),
        "n_turns": 2, "success": 1, "completion": 1.0, "tokens": 30, "stream_seq": seq,
        "payload_sha256": hashlib.sha256(payload.encode()).hexdigest(), "payload": payload,
    }  # fmt: skip
    return row | changes


def reward(name: str, seq: int, raw: float, **changes) -> dict:
    row = {
        "reward_id": f"w-{name}", "trajectory_id": name, "session_id": f"s-{name}", "ts": DAY,
        "total_reward": 0.5, "raw_total": raw, "success": 1, "completion": 1.0, "unparsable": 0,
        "model_digest": "m1", "release_id": "r1", "task_type": "one", "confidence": 0.75,
        "revision": 0, "stream_seq": seq, "payload": f'{{"raw":{raw}}}',
    }  # fmt: skip
    return row | changes


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def embedded(tmp_path_factory):
    warehouse = EmbeddedWarehouse(tmp_path_factory.mktemp("wh"))
    warehouse.client = await warehouse.start()
    yield warehouse
    await warehouse.stop()
    assert warehouse.keeper.child.returncode == 0, "the engine was not closed cleanly"


@pytest_asyncio.fixture(loop_scope="module")
async def w(embedded):
    for table in ("trajectories", "rewards", "unscored", "outcomes", "deployments", "status"):
        await embedded.client.command(f"TRUNCATE TABLE {table}")
    return embedded.client


async def trajectory_ids(w):
    """Every id in the public view, as often as it is there."""
    return [row["trajectory_id"] for row in await w.query("SELECT trajectory_id FROM trajectories_v")]


async def test_the_control_process_never_imports_chdb(w):
    assert not any(name.split(".")[0] == "chdb" for name in sys.modules)


async def test_rows_come_back_byte_exact(w):
    payload = '{"a":"line\\n tab\\t \' \\" \\\\ é 漢 \U0001f600 \\u0000"}\t\n\\N \0'
    await w.insert("trajectories", [trajectory("t1", 7, payload=payload, tokens=2**60 + 1)])
    row = await queries.trajectory(w, "t1")
    assert row["payload"] == payload
    assert row["payload_sha256"] == hashlib.sha256(payload.encode()).hexdigest()
    assert (row["tokens"], row["completion"], row["start_ts"]) == (2**60 + 1, 1.0, "2026-03-01T12:00:00.000Z")


async def test_bound_parameters_carry_any_text(w):
    nasty = "x' OR 1=1 -- \\ \t\n\r\0 {a:String} é"
    rows = await w.query(
        "SELECT {a:String} AS a, {b:Array(String)} AS b, {c:Nullable(Int64)} AS c, {d:Float64} AS d, "
        "{e:DateTime64(3, 'UTC')} AS e, {f:Bool} AS f",
        a=nasty, b=[nasty, "", "y"], c=None, d=0.1, e=DAY, f=True,
    )  # fmt: skip
    assert rows == [
        {"a": nasty, "b": [nasty, "", "y"], "c": None, "d": 0.1, "e": "2026-03-01T12:00:00.000Z", "f": True}
    ]


async def test_a_redelivered_row_is_seen_once_and_the_newest_wins(w):
    rows = [trajectory(f"t{i}", i + 1) for i in range(50)]
    await w.insert("trajectories", rows)
    await w.insert("trajectories", rows[10:30])
    await w.insert("trajectories", [trajectory("t3", 99)])
    assert sorted(await trajectory_ids(w)) == sorted(f"t{i}" for i in range(50))
    assert (await queries.trajectory(w, "t3"))["stream_seq"] == 99
    assert (await queries.counts(w))["trajectories"] == 50


async def test_the_same_token_stores_the_block_once(w):
    for _ in range(2):
        await w.insert("trajectories", [trajectory("t1", 1)], token="RL_TRAJECTORIES:1-1")
    assert (await w.query("SELECT count() AS n FROM trajectories"))[0]["n"] == 1


async def test_a_batch_may_span_hundreds_of_days(w):
    rows = [trajectory(f"t{i}", i, start_ts=DAY - timedelta(days=i)) for i in range(120)]
    await w.insert("trajectories", rows)
    assert (await queries.counts(w))["trajectories"] == 120


async def test_stored_returns_the_hash_of_each_stored_id(w):
    rows = [trajectory("t1", 1), trajectory("t2", 2)]
    await w.insert("trajectories", rows)
    assert await queries.stored_identities(w, ["t1", "t2", "t9"]) == {
        row["trajectory_id"]: row["payload_sha256"] for row in rows
    }
    assert await queries.stored_identities(w, []) == {}
    assert await queries.stored_identities(w, [f"x{i}" for i in range(4500)]) == {}


async def test_the_newest_reward_is_shown_and_the_history_stays(w):
    await w.insert("rewards", [reward("t1", 1, 0.4), reward("t2", 2, 0.6)])
    await w.insert(
        "rewards", [reward("t1", 1, 0.9, reward_id="w-late", revision=1, ts=DAY + timedelta(days=2))]
    )
    found = await queries.reward_for(w, ["t1", "t2", "t3"])
    assert {name: row["raw_total"] for name, row in found.items()} == {"t1": 0.9, "t2": 0.6}
    assert [row["raw_total"] for row in await queries.reward_history(w, "t1")] == [0.4, 0.9]
    assert await queries.scored_at(w, ["t1", "t3"]) == {"t1": 1}
    assert await queries.rewarded_count(w, "m1") == 2
    assert await queries.rewarded_count(w, "m1", since_seq=1) == 1
    assert await queries.rewarded_count(w, "m1", until_seq=1) == 1, "what came later is for the next job"
    assert await queries.rewarded_count(w, "other") == 0


async def test_training_rows_are_newest_first_with_their_reward_or_none(w):
    await w.insert(
        "trajectories",
        [trajectory("t1", 1), trajectory("t2", 2), trajectory("t3", 3, model_digest="m2"),
         trajectory("t4", 4, start_ts=DAY - timedelta(days=40))],
    )  # fmt: skip
    await w.insert("rewards", [reward("t1", 1, 0.4), reward("t1", 1, 0.8, reward_id="w2", revision=1)])
    rows = await queries.trajectories_for_training(w, ["m1"])
    assert [(r["trajectory_id"], r["raw_total"], r["reward_payload"]) for r in rows] == [
        ("t4", 0.0, ""), ("t2", 0.0, ""), ("t1", 0.8, '{"raw":0.8}')
    ]  # fmt: skip
    recent = await queries.trajectories_for_training(w, ["m1", "m2"], since="2026-02-28T00:00:00Z", limit=2)
    assert [r["trajectory_id"] for r in recent] == ["t3", "t2"]
    recent = await queries.trajectories_for_training(w, ["m1"], since=DAY, since_seq=1)
    assert [r["trajectory_id"] for r in recent] == ["t2"]
    assert await queries.trajectories_for_training(w, [None]) == []
    assert await queries.trajectories_of_others(w, ["m1"], 1) == {"m2": 1}
    assert await queries.trajectories_of_others(w, ["m2"], 2) == {"m1": 2}


async def test_a_session_counts_once_with_the_mean_of_its_newest_rewards(w):
    await w.insert(
        "rewards",
        [
            reward("a1", 11, 0.2, session_id="a"),
            reward("b1", 12, 0.9, session_id="b"),
            reward("a2", 13, 0.6, session_id="a"),
            reward("a2", 13, 0.8, session_id="a", reward_id="w-a2-again", revision=1),
            reward("c1", 14, 0.4, session_id=""),
            reward("d1", 15, 0.1, session_id="d", model_digest="m2"),
            reward("e1", 16, 0.3, session_id="e", ingested_at=DAY + timedelta(days=999)),
        ],
    )
    until = datetime.now(UTC) + timedelta(minutes=1)
    found = await queries.session_values(w, "m1", 0, until, 600, 10)
    assert [(row["seq"], round(row["value"], 9)) for row in found] == [(11, 0.5), (12, 0.9), (14, 0.4)]
    assert [row["seq"] for row in await queries.session_values(w, "m1", 0, until, 600, 2)] == [11, 12]
    assert [row["seq"] for row in await queries.session_values(w, "m1", 12, until, 600, 9)] == [14]
    assert await queries.session_values(w, "m1", 0, DAY, 600, 10) == []


async def test_a_session_has_the_same_value_whenever_it_is_read(w):
    """A baseline is read days after its sessions, the test minutes after: later votes must be in neither."""
    quick = {"session_id": "a", "ingested_at": DAY}
    await w.insert("rewards", [reward("a1", 11, 0.5, **quick)])
    await w.insert(
        "rewards",
        [
            reward("a2", 12, 0.7, **quick | {"ingested_at": DAY + timedelta(seconds=600)}),
            reward("a1", 11, 0.9, **quick | {"ingested_at": DAY + timedelta(seconds=601)})
            | {"reward_id": "w-a1-vote", "revision": 1},
            reward("a3", 13, 0.9, **quick | {"ingested_at": DAY + timedelta(hours=5)}),
        ],
    )
    for later in (timedelta(seconds=0), timedelta(days=9)):
        (row,) = await queries.session_values(w, "m1", 0, DAY + later, 600, 10)
        assert (row["seq"], round(row["value"], 9)) == (11, 0.6)


async def test_unscored_leaves_once_a_reward_exists(w):
    rows = [
        {"trajectory_id": f"t{i}", "ts": DAY, "reason": "missing", "detail": "", "stream_seq": i}
        for i in (1, 2)
    ]
    await w.insert("unscored", rows)
    assert await queries.unscored_count(w) == {"missing": 2}
    await w.insert("rewards", [reward("t1", 1, 0.4)])
    assert await queries.unscored_count(w) == {"missing": 1}
    assert await queries.unscored_count(w, since_seq=2) == {}


async def test_an_empty_warehouse_answers_every_question(w):
    counts = await queries.counts(w)
    assert counts == {
        "trajectories": 0, "rewarded": 0, "unscored": 0, "outcomes": 0, "deployments": 0, "status_events": 0,
        "newest": None, "latest_seq": 0,
    }  # fmt: skip
    assert await queries.latest_seq(w) == 0
    assert await queries.trajectory(w, "none") is None


@pytest.mark.parametrize(
    "bad, says",
    [
        ({"completion": float("nan")}, "finite"),
        ({"payload": "\ud800"}, "cannot be stored"),
        ({"surprise": 1}, "surprise"),
        ({"n_turns": "many"}, "refused"),
    ],
)
async def test_rows_that_do_not_fit_are_refused_and_none_of_the_batch_is_stored(w, bad, says):
    with pytest.raises(WarehouseError, match=says):
        await w.insert("trajectories", [trajectory("good", 1), trajectory("bad", 2, **{"payload": "{}"} | bad)
                                        if "payload" not in bad else trajectory("x", 2) | bad])  # fmt: skip
    assert await trajectory_ids(w) == []


async def test_wrong_statements_are_clear_errors(w):
    with pytest.raises(WarehouseError, match="Syntax error"):
        await w.query("SELEC 1")
    with pytest.raises(WarehouseError, match="not a name"):
        await w.insert("x; DROP TABLE trajectories", [{"a": 1}])
    with pytest.raises(WarehouseError, match="not supported"):
        await w.query("SELECT {a:String}", a=b"bytes")


async def test_without_the_token_nothing_is_answered(embedded, w):
    address = read_address(embedded._run_dir)
    run = embedded._run_dir
    assert stat.S_IMODE(run.stat().st_mode) == 0o700
    assert stat.S_IMODE((run / "warehouse.token").stat().st_mode) == 0o600
    transport = httpx.AsyncHTTPTransport(uds=address.socket)
    async with httpx.AsyncClient(transport=transport, base_url=address.url) as http:
        assert (await http.post("/", content=b"SELECT 1")).status_code == 401
        headers = {"x-clickhouse-key": "wrong"}
        assert (await http.post("/", content=b"SELECT 1", headers=headers)).status_code == 401


async def test_another_process_attaches_by_its_settings(embedded, w):
    settings = load(environ={}, overrides={"data_dir": str(embedded._run_dir.parent)})
    other = await connect(settings)
    assert await other.ping()
    assert (await queries.counts(other))["trajectories"] == 0
    await other.close()


async def test_a_second_owner_of_the_same_folder_is_refused(embedded, w, monkeypatch):
    monkeypatch.setenv("ONWARD_TEST_LOCK_WAIT", "0.2")
    second = EmbeddedWarehouse(embedded._run_dir.parent)
    with pytest.raises(WarehouseError, match="Another process uses the warehouse"):
        await second.start()
    assert await w.ping()


async def test_ctrl_c_in_the_terminal_does_not_take_the_warehouse_away(embedded, w):
    pid = embedded.pid
    os.kill(pid, signal.SIGINT)
    await asyncio.sleep(0.2)
    await w.insert("trajectories", [trajectory("t1", 1)])
    assert embedded.pid == pid


async def test_queries_in_parallel_do_not_mix_their_parameters(w):
    answers = await asyncio.gather(*(w.query("SELECT {n:Int64} AS n", n=i) for i in range(60)))
    assert [rows[0]["n"] for rows in answers] == list(range(60))


async def test_kill_nine_in_the_middle_of_inserts_loses_and_doubles_nothing(embedded, w):
    accepted: list[str] = []

    async def writer(k: int) -> None:
        for i in range(15):
            names = [f"k{k}-{i}-{j}" for j in range(5)]
            await w.insert("trajectories", [trajectory(name, 1) for name in names])
            accepted.extend(names)

    async def killer() -> None:
        await asyncio.sleep(0.15)
        os.kill(embedded.pid, 9)

    before = embedded.keeper.restarts
    await asyncio.gather(writer(0), writer(1), killer())
    assert embedded.keeper.restarts == before + 1
    assert sorted(await trajectory_ids(w)) == sorted(accepted)
    assert len(accepted) == 150


async def test_a_path_too_long_for_a_socket_uses_loopback(tmp_path: Path):
    data = tmp_path / ("d" * 120)
    embedded = EmbeddedWarehouse(data)
    w = await embedded.start()
    try:
        address = read_address(data / "run")
        assert address.socket is None and address.url.startswith("http://127.0.0.1:")
        await w.insert("trajectories", [trajectory("t1", 1)])
        os.kill(embedded.pid, 9)
        assert (await queries.counts(w))["trajectories"] == 1
        async with httpx.AsyncClient(base_url=read_address(data / "run").url) as http:
            assert (await http.post("/", content=b"SELECT 1")).status_code == 401
    finally:
        await embedded.stop()


async def test_figures_of_a_daily_summary_count_the_last_day_and_one_policy_apart(embedded):
    client, late = embedded.client, datetime(2031, 5, 2, 8, tzinfo=UTC)
    before = late - timedelta(hours=25)
    empty = await queries.summary_figures(client, late, "m-day")
    assert (empty["rewarded"], empty["mean"], empty["current_mean"]) == (0, None, None)
    rows = [
        reward(f"day-{n}", 9000 + n, raw, ts=late, model_digest=digest)
        for n, (raw, digest) in enumerate([(0.2, "m-day"), (0.6, "m-day"), (1.0, "other")])
    ]
    await client.insert(
        "trajectories",
        [trajectory("day-0", 9000, ingested_at=late), trajectory("day-9", 9009, ingested_at=before)],
    )
    await client.insert("rewards", [*rows, reward("day-9", 9009, 0.0, ts=before, model_digest="m-day")])
    found = await queries.summary_figures(client, late - timedelta(hours=24), "m-day")
    assert (found["trajectories"], found["rewarded"], found["of_current"]) == (1, 3, 2)
    assert found["mean"] == pytest.approx(0.6) and found["current_mean"] == pytest.approx(0.4)
    assert found["deviation"] == pytest.approx((0.32 / 3) ** 0.5)  # population: (0.16 + 0 + 0.16) / 3
