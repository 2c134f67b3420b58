"""Each login connects for real: to the embedded server, and to one configured by ``onward nats config``."""

import asyncio
import copy
import json
import re
import stat
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import nats
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from onward import Recorder, config, host
from onward.bus import Bus, NatsServer
from onward.bus.documents import is_learning_paused
from onward.bus.logins import Login, Logins
from onward.bus.server import find_binary
from onward.cli.nats import nats_app
from onward.clock import utc_text
from onward.contracts import examples
from onward.errors import BusError
from onward.release.record import Releases
from onward.warehouse import queries

ROLES = ("collector", "archiver", "rewarder", "coordinator", "trainer", "releaser", "gateway", "api")
OWN = {
    "collector": ["agent.rl.trajectory.v1", "agent.rl.dlq.v1.RL_TRAJECTORIES", "$KV.rl_capture.opted_out"],
    "archiver": ["agent.rl.dlq.v1.RL_OUTCOMES"],
    "rewarder": ["agent.rl.reward.v1", "agent.rl.feedback.v1", "$KV.rl_rewarder.state"],
    "coordinator": ["agent.rl.training.request.v1", "$KV.rl_coordinator.state"],
    "trainer": ["agent.rl.training.status.v1", "$KV.rl_jobs.job.1", "$KV.rl_writers.released"],
    "releaser": ["agent.rl.model.deployed.v1", "$KV.rl_releases.desired", "$KV.rl_models.m"],
    "gateway": ["agent.rl.outcome.v1", "agent.rl.trajectory.v1", "$KV.rl_sessions.s", "$KV.rl_gateways.g"],
    "api": [
        "agent.rl.feedback.v1",
        "$JS.API.CONSUMER.LIST.RL_REWARDS",
        "agent.rl.training.request.v1",
        "agent.rl.training.control.v1",
        "agent.rl.training.rubrics.v1",
        "$KV.rl_jobs.job.1",
    ],
    "agent": ["agent.rl.trajectory.v1", "agent.rl.feedback.v1"],
}
"""Login → subjects that it needs; written by hand."""
DECIDING = [
    "agent.rl.outcome.v1", "agent.rl.training.request.v1", "agent.rl.reward.v1", "agent.rl.model.deployed.v1",
    "$KV.rl_control.learning", "$KV.rl_control.traffic", "$KV.rl_control.pin", "$KV.rl_control.release",
    "$KV.rl_releases.desired", "$KV.rl_models.m", "$KV.rl_jobs.job.1", "$KV.rl_sessions.s",
    "agent.rl.training.control.v1", "agent.rl.training.rubrics.v1", "$KV.rl_writers.released",
]  # fmt: skip
ADMINISTRATION = [
    "$JS.API.STREAM.DELETE.RL_TRAJECTORIES", "$JS.API.STREAM.PURGE.RL_OUTCOMES",
    "$JS.API.STREAM.UPDATE.RL_TRAJECTORIES", "$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.MSG.DELETE.RL_AUDIT",
    "$JS.API.CONSUMER.DELETE.RL_TRAJECTORIES.collector.x", "$SYS.REQ.SERVER.PING",
]  # fmt: skip


LAST = "no.one.may"


class Place(NamedTuple):
    url: str
    passwords: dict[str, str]
    service: Login


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=["embedded", "of one's own"])
async def place(request: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    folder = tmp_path_factory.mktemp("logins")
    async with AsyncExitStack() as stack:
        if request.param == "embedded":
            server = NatsServer(folder)
            await server.start()
            stack.push_async_callback(server.stop)
            made = Place(server.url, dict(server.logins.passwords), {"token": server.token})
        else:
            made = await _own_server(folder, stack)
        bus = await Bus.connect(made.url, **made.service)
        await bus.ensure_streams()
        await bus.close()
        yield made


async def _own_server(folder: Path, stack: AsyncExitStack) -> Place:
    users = folder / "nats-users.conf"
    ran = CliRunner().invoke(nats_app, ["config", "--out", str(users)])
    assert ran.exit_code == 0, ran.output
    assert stat.S_IMODE(users.stat().st_mode) == 0o600
    main = folder / "nats.conf"
    main.write_text(
        f'host: 127.0.0.1\nport: -1\nports_file_dir: "{folder}"\ninclude "{users.name}"\n'
        f'jetstream {{ store_dir: "{folder / "js"}", max_file_store: 32GB }}\n'
    )
    child = subprocess.Popen([find_binary(), "-c", str(main), "-l", str(folder / "log")])
    stack.callback(child.wait, 20)
    stack.callback(child.terminate)
    async with asyncio.timeout(30):
        while not (found := list(folder.glob("*.ports"))):
            await asyncio.sleep(0.05)
    url = json.loads(found[0].read_text())["nats"][0]
    passwords = dict(re.findall(r'user: (\w+), password: "([^"]+)"', users.read_text()))
    return Place(url, passwords, {"user": "service", "password": passwords["service"]})


async def denied(
    place: Place, user: str, publish: Sequence[str] = (), listen: Sequence[str] = ()
) -> list[str]:
    """Returns the subjects that the server refuses to ``user``. The last one is refused to everybody: its
    refusal shows that those before it were decided."""
    found: list[str] = []
    decided = asyncio.Event()

    async def on_error(error: Exception) -> None:
        found.extend(re.findall(r'violation for (?:publish|subscription) to "([^"]+)"', str(error)))
        if LAST in found:
            decided.set()

    client = await nats.connect(
        place.url, user=user, password=place.passwords[user], inbox_prefix=f"_INBOX_{user}", error_cb=on_error
    )
    for subject in publish:
        await client.publish(subject, b"{}")
    for subject in listen:
        await client.subscribe(subject)
    await client.publish(LAST, b"")
    async with asyncio.timeout(20):
        await decided.wait()
    await client.close()
    return [subject for subject in (*publish, *listen) if subject.lower() in map(str.lower, found)]


@pytest.mark.parametrize("user", [*ROLES, "agent"])
async def test_a_login_may_do_its_own_work_and_nothing_of_another(place: Place, user: str) -> None:
    assert await denied(place, user, publish=OWN[user], listen=[f"_INBOX_{user}.x"]) == []
    others = [subject for subject in DECIDING if subject not in OWN[user]]
    assert await denied(place, user, publish=others) == others
    assert await denied(place, user, publish=ADMINISTRATION) == ADMINISTRATION
    ears = [">", "_INBOX.>", "_INBOX_service.>", "agent.rl.trajectory.v1", "agent.rl.>", "$KV.>", "$JS.>"]
    assert await denied(place, user, listen=ears) == ears


async def test_an_agent_reads_nothing_but_its_acknowledgements(place: Place) -> None:
    asked = [
        "$JS.API.STREAM.MSG.GET.RL_TRAJECTORIES", "$JS.API.DIRECT.GET.RL_TRAJECTORIES",
        "$JS.API.CONSUMER.CREATE.RL_TRAJECTORIES.spy", "$JS.API.CONSUMER.MSG.NEXT.RL_TRAJECTORIES.collector",
        "$JS.API.STREAM.INFO.RL_TRAJECTORIES", "$JS.API.STREAM.NAMES", "$JS.API.INFO",
        "$JS.ACK.RL_TRAJECTORIES.collector.1.1.1.1.0", "agent.rl.alert.v1", "agent.rl.audit.v1",
        "agent.rl.dlq.v1.RL_TRAJECTORIES", "agent.rl.training.control.v1", "_INBOX_service.x",
    ]  # fmt: skip
    assert await denied(place, "agent", publish=asked) == asked


async def test_the_trainer_may_read_trajectories_and_make_or_delete_no_consumer_of_them(place: Place) -> None:
    api, stream = "$JS.API", "RL_TRAJECTORIES"
    assert await denied(place, "trainer", publish=[f"{api}.STREAM.MSG.GET.{stream}"]) == []
    asked = [
        f"{api}.CONSUMER.CREATE.{stream}.dataset", f"{api}.CONSUMER.DELETE.{stream}.collector",
        f"{api}.CONSUMER.MSG.NEXT.{stream}.collector", f"{api}.STREAM.MSG.DELETE.{stream}",
    ]  # fmt: skip
    assert await denied(place, "trainer", publish=asked) == asked


async def test_an_agent_gets_the_acknowledgement_of_a_trajectory_and_of_feedback(place: Place) -> None:
    bus = await Bus.connect(place.url.replace("//", f"//agent:{place.passwords['agent']}@"))
    for subject, stream in (
        ("agent.rl.trajectory.v1", "RL_TRAJECTORIES"),
        ("agent.rl.feedback.v1", "RL_FEEDBACK"),
    ):
        assert (await bus.publish(subject, b"{}", msg_id=subject, deadline=10.0)).stream == stream
    with pytest.raises(BusError, match=r"may not publish on agent\.rl\.outcome\.v1: give it the right"):
        await bus.publish("agent.rl.outcome.v1", b"{}", msg_id="o")  # without a deadline: it does not hang
    await bus.close()


async def test_an_acknowledgement_that_an_agent_sends_into_a_bucket_switches_nothing(place: Place) -> None:
    """NATS checks no right for the subject of an acknowledgement: the value arrives, and does not count."""
    service = await Bus.connect(place.url, **place.service)
    await service.bucket("rl_control").put("learning", b'{"paused":true}')
    agent = await nats.connect(place.url.replace("//", f"//agent:{place.passwords['agent']}@"))
    await agent.publish("agent.rl.trajectory.v1", b"{}", reply="$KV.rl_control.learning")
    await agent.flush()
    async with asyncio.timeout(10):
        while (entry := await service.bucket("rl_control").get("learning")) and entry.is_ours:
            await asyncio.sleep(0.05)
    assert b"RL_TRAJECTORIES" in entry.value
    assert await is_learning_paused(service)
    await service.bucket("rl_control").put("learning", b'{"paused":false}')
    assert not await is_learning_paused(service)
    await agent.close()
    await service.close()


async def test_every_role_reads_the_buckets_and_the_service_may_do_everything(place: Place) -> None:
    service = await Bus.connect(place.url, **place.service)
    await service.bucket("rl_control").put("learning", b'{"paused":true}')
    for role in ROLES:
        bus = await Bus.connect(place.url, user=role, password=place.passwords[role])
        await bus.ensure_streams()
        entry = await bus.bucket("rl_control").get("learning")
        assert entry is not None and entry.value == b'{"paused":true}'
        assert await bus.bucket("rl_control").keys() == ["learning"]
        await bus.close()
    await service.bucket("rl_control").delete("learning")
    await service.close()


async def test_a_wrong_login_and_none_are_refused(place: Place) -> None:
    wrong: list[Login] = [
        {},
        {"token": "x" * 20},
        {"user": "agent", "password": "x" * 20},
        {"user": "service"},
    ]
    for login in wrong:
        with pytest.raises(BusError, match="refused the login"):
            await Bus.connect(place.url, **login)


async def test_a_folder_of_an_earlier_version_gets_the_new_logins_and_keeps_its_token(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "nats.token").write_text("the-token-of-an-earlier-version")
    server = NatsServer(tmp_path)
    await server.start()
    try:
        bus = await Bus.connect(server.url, token="the-token-of-an-earlier-version")
        await bus.close()
        agent = await Bus.connect((run / "agent.url").read_text())
        await agent.close()
    finally:
        await server.stop()
    before = Logins.of_folder(run)
    assert before == Logins.of_folder(run)
    for name in ("nats.token", "nats.logins.json", "agent.url", "nats.conf"):
        assert stat.S_IMODE((run / name).stat().st_mode) == 0o600, name
    log = (tmp_path / "logs" / "nats-server.log").read_text()
    assert not any(secret in log for secret in (before.token, *before.passwords.values()))


def test_damaged_logins_are_one_sentence(tmp_path: Path) -> None:
    Logins.of_folder(tmp_path)
    for text in ("", "[]", '{"agent": ""}', "{"):
        (tmp_path / "nats.logins.json").write_text(text)
        with pytest.raises(BusError, match=r"holds no usable logins: delete it and start again"):
            Logins.of_folder(tmp_path)


async def test_roles_that_run_alone_do_all_their_work_with_their_own_logins(tmp_path: Path) -> None:
    """The server's log is the witness: no subject was refused to any of them."""
    settings = config.load(
        environ={},
        overrides={"data_dir": tmp_path / "data", "nats": {"port": 0}, "http": {"api_port": 0}},
    )
    roles = ("collector", "archiver", "rewarder", "coordinator", "releaser", "api")
    async with AsyncExitStack() as stack, asyncio.timeout(120):
        service = await stack.enter_async_context(host.running(settings, roles=("api",)))
        for role in roles:
            alone = await stack.enter_async_context(host.running(settings, roles=(role,), join=True))
            assert alone.ctx.bus._options["user"] == role
        agent = (settings.run_dir / "agent.url").read_text()
        with Recorder(tmp_path / "outbox.db", nats_url=agent) as recorder:
            with recorder.task("A task", session_id="s") as task:
                task.turn(
                    observation="A question",
                    action={"type": "response", "raw_response": "Done."},
                    result={"success": True},
                )
                task.outcome("completed_successfully")
            assert await asyncio.to_thread(recorder.flush, 30.0)
        by_hand = copy.deepcopy(examples.TRAJECTORY)  # without the recorder: the collector erases the secret
        by_hand["turns"][0]["observation"]["content"] = "Use ghp_" + "a1B2" * 9
        by_hand["start_timestamp"] = by_hand["end_timestamp"] = utc_text(service.ctx.clock.now())
        for turn in by_hand["turns"]:
            turn["timestamp"] = by_hand["end_timestamp"]
        await service.ctx.bus.publish(
            "agent.rl.trajectory.v1", json.dumps(by_hand).encode(), msg_id="by-hand"
        )
        while (await queries.counts(service.ctx.warehouse))["rewarded"] < 2:
            await asyncio.sleep(0.05)
    log = (settings.data_dir / "logs" / "nats-server.log").read_text()
    assert [line for line in log.splitlines() if "iolation" in line] == []


LOOP = {
    "nats": {"port": 0},
    "http": {"api_port": 0, "gateway_port": 0},
    "model": {"base": "tiny", "threads": 1, "max_context": 512},
    "capture": {"grace_seconds": 0.1},
    "training": {"threshold": 12, "algorithm": "reinforce", "batch_size": 8, "epochs": 1},
    "reward": {"task_completion": 1.0, "efficiency": 0.0, "code_quality": 0.0, "user_feedback": 0.0},
    "validation": {"suites": ["desk"], "size": 10, "regression": "point"},
    "release": {"time_scale": 0.02, "min_delta": -1.0, "reward_maturity_seconds": 1},
}


@pytest.mark.long
@pytest.mark.timeout(400)
async def test_a_whole_loop_of_roles_that_run_alone_has_every_right_that_it_needs(tmp_path: Path) -> None:
    from onward.lm.tiny import build_tiny

    build_tiny(tmp_path / "data" / "models" / "tiny", ["Say 1 2 3 4 5 6 7 8 9 0"] * 20)
    settings = config.load(environ={}, overrides={"data_dir": tmp_path / "data", **LOOP})
    async with AsyncExitStack() as stack, asyncio.timeout(350):
        service = await stack.enter_async_context(host.running(settings, roles=("api",)))
        at: dict[str, Any] = {}
        for role in ROLES[:-1]:
            alone = await stack.enter_async_context(host.running(settings, roles=(role,), join=True))
            at |= alone.endpoints
        key = (settings.run_dir / "api.key").read_text().strip()
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=at["gateway_url"], headers={"Authorization": f"Bearer {key}"}, timeout=60
            )
        )
        releases = Releases(service.ctx.bus, service.ctx.clock)
        number = 0
        while not any(record.serving and record.rates for record in await releases.all()):
            session = f"s{number}"
            asked = {"messages": [{"role": "user", "content": f"Say {number}"}], "max_tokens": 6}
            answer = await client.post(
                "/v1/chat/completions", json=asked, headers={"Onward-Session": session}
            )
            if answer.status_code == 200:
                status = "completed_successfully" if number % 2 else "failed"
                await client.post(f"/sessions/{session}/close", json={"status": status})
            number += 1
            await asyncio.sleep(0.2)
    log = (settings.data_dir / "logs" / "nats-server.log").read_text()
    assert [line for line in log.splitlines() if "iolation" in line] == []
