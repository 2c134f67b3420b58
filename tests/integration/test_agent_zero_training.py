"""The training profiles of Agent Zero: a scripted model plays them, everything behind the tools is real."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import sys
import types
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from agent_zero_host import Agent, AgentContext, Host, Line, Response, say
from agent_zero_page import make_agent_zero
from agent_zero_world import until
from coordinator_world import requests
from training_service import TrainingService, training_service

from onward import config
from onward.bus import Bus
from onward.contracts import Feedback, decode, subjects
from onward.integrations.agent_zero import check, install
from onward.tools import Toolbox
from onward.tools.tool import parse_scopes
from onward.training.role import trainer as role

ASK = "Trigger training job with 10K samples from last 30 days"
"""The message of the seed's ``agent.call_subordinate(profile="rl-trainer", message=…)``."""


class Log:
    def __init__(self) -> None:
        self.logs: list[Any] = []

    def log(self, **item: Any) -> None:
        self.logs.append(types.SimpleNamespace(**item))

    def of(self, kind: str) -> list[str]:
        return [one.content for one in self.logs if one.type == kind]


class Tool:
    """The host's base class of tools."""

    def __init__(self, agent: Agent, name: str, method: Any, args: Any, message: str, loop_data: Any) -> None:
        self.agent, self.name, self.args = agent, name, args


def give_tools(host: Host, profile: str) -> None:
    """Loads the tool files of a profile as the host does."""
    for file in sorted((host.plugin / "agents" / profile / "tools").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"_tool_{file.stem}", file)
        assert spec is not None and spec.loader is not None
        spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
        (kind,) = [
            one
            for one in vars(module).values()
            if isinstance(one, type) and issubclass(one, Tool) and one is not Tool
        ]

        async def run(agent: Agent, args: dict[str, Any], kind: Any = kind, name: str = file.stem) -> Any:
            return await kind(agent, name, None, args, "", None).execute(**args)

        host.tools[file.stem] = run


@pytest.fixture
async def service(bus: Bus, tmp_path: Path) -> AsyncIterator[TrainingService]:
    async with training_service(bus, tmp_path / "service") as served:
        yield served


@pytest.fixture
def host(tmp_path: Path, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("ONWARD_NATS_TOKEN", str(bus._options["token"]))
    given = {"nats_url": bus.url, "allow": "train", "approve": "release"}
    given |= {"data_dir": str(tmp_path / "of-tools")}
    with Host(tmp_path / "a0", config=given, in_thread=True) as host:
        monkeypatch.setitem(sys.modules, "helpers.tool", types.SimpleNamespace(Tool=Tool, Response=Response))
        contexts = types.SimpleNamespace(
            get=AgentContext.all.get, all=lambda: list(AgentContext.all.values())
        )
        monkeypatch.setitem(sys.modules, "agent", types.SimpleNamespace(AgentContext=contexts))
        yield host
        from usr.plugins.onward.helpers import onward_tools  # type: ignore

        onward_tools.close()


def attach(host: Host, service: TrainingService, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives the tools the address and the key of a training service, and not its base model: who asks for a
    training for the first time does not know it."""
    monkeypatch.setenv("AGENTGYM_RL_API_KEY", service.key)
    host.config["training_url"] = service.url


def call_tools_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the plugin's tools call a toolbox of this process, with the settings that ``onward mcp`` would
    get: the tests before this one start the command, whose imports take seconds."""
    from usr.plugins.onward.helpers import onward_tools  # type: ignore

    loop = asyncio.get_running_loop()

    def server_of(command: list[str], environment: dict[str, str]) -> Any:
        given = dict(zip(command[4::2], command[5::2], strict=True))
        settings = config.load(environ=environment, overrides={"data_dir": Path(given["--dir"])})
        box = Toolbox(settings, scopes=parse_scopes(given["--scope"]))

        def call(name: str, arguments: dict[str, Any]) -> str:
            called = asyncio.run_coroutine_threadsafe(box.call(name, arguments), loop)
            answer = called.result(60)
            return onward_tools.error_text(answer.text) if answer.is_error else answer.text

        return types.SimpleNamespace(call=call)

    monkeypatch.setattr(onward_tools, "server_of", server_of)


def text_of(lines: list[Line]) -> str:
    return "\n".join(str(line.content) for line in lines)


def results(agent: Agent) -> list[dict[str, Any]]:
    """What the tools have answered to an agent, in order."""
    found = [one.content for one in agent.history.all() if isinstance(one.content, dict)]
    return [json.loads(one["tool_result"]) for one in found if "tool_result" in one]


def rl_trainer(agent: Agent, lines: list[Line]) -> str:
    """Plays both agents. The subordinate reads the numbers in its message, as its decision table asks."""
    if agent.number == 0:
        done = [one.content for one in agent.history.all() if isinstance(one.content, dict)]
        answers = [one["tool_result"] for one in done if "tool_result" in one]
        if answers:
            return say("response", text=answers[-1])
        return say("call_subordinate", profile="rl-trainer", message=ASK, reset="true")
    assert agent.config.profile == "rl-trainer"
    if not results(agent):
        asked = re.search(r"(\d+)K samples from last (\d+) days", text_of(lines))
        assert asked is not None
        return say("start_training", sample_size=int(asked[1]) * 1000, days=int(asked[2]), reason=ASK)
    job = results(agent)[-1]
    return say("response", text=f"Initiating RL training job {job['job_id']} with 10K samples")


async def test_call_subordinate_of_the_seed_starts_a_real_training_job(
    host: Host, bus: Bus, service: TrainingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_tools(host, "rl-trainer")
    attach(host, service, monkeypatch)
    host.model = rl_trainer
    context = host.context()
    context.log = log = Log()  # type: ignore[attr-defined]
    answer = await host.ask("Train yourself.", context)
    (asked,) = await requests(bus)
    assert answer == f"Initiating RL training job {asked['training_job_id']} with 10K samples"
    assert (asked["trigger_reason"], asked["priority"]) == ("manual", "high")
    dataset = asked["training_config"]["dataset"]
    assert dataset["sample_size"] == 10_000
    start = datetime.fromisoformat(dataset["filter"]["date_range"]["start"])
    assert timedelta(days=30) <= datetime.now(UTC) - start < timedelta(days=30, minutes=2)
    (shown,) = log.of("info")  # the chat of the superior shows it too
    assert re.fullmatch(r"Initiating RL training job (#\d+|\S+) with 10K samples", shown)
    job = (await service.client.get(f"/training/{asked['training_job_id']}/status")).json()
    assert job["training_job_id"] == asked["training_job_id"]


async def test_tools_never_raise_and_a_release_waits_for_a_person(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_tools(host, "rl-trainer")
    with monkeypatch.context() as here:
        call_tools_here(here)
        await _use_tools(host)
    host.config["python"] = "/nowhere/python"
    await asyncio.to_thread(host.runtime.settings._cached.clear)
    context = host.context()
    response = await host.tools["report"](Agent(1, context.config, context), {})
    assert "do not answer" in json.loads(response.message)["error"]


async def _use_tools(host: Host) -> None:
    context = host.context()
    agent = Agent(1, context.config, context)

    async def call(name: str, **args: Any) -> dict[str, Any]:
        response = await host.tools[name](agent, args)
        assert not response.break_loop and len(response.message.encode()) <= 4096
        return json.loads(response.message)

    deploy = {"model_id": "agent-zero-rl-v2.4", "checkpoint_path": "s3://models/job-1"}
    asked = await call("deploy_to_tensorzero", **deploy)
    assert "A person must approve" in asked["message"]
    assert (await call("deploy_to_tensorzero", **deploy))["approval_needed"] == asked["approval_needed"]
    from usr.plugins.onward.helpers import onward_approvals  # type: ignore

    (step,) = onward_approvals.waiting()
    assert (step["tool"], json.loads(step["arguments"])) == ("deploy_to_tensorzero", deploy)
    assert onward_approvals.decide(step["id"], True) and not onward_approvals.decide(step["id"], True)
    other = await call("deploy_to_tensorzero", **{**deploy, "model_id": "another"})
    assert other["approval_needed"] != asked["approval_needed"]
    assert "needs the scope 'release'" in (await call("deploy_to_tensorzero", **deploy))["error"]
    assert "approval_needed" in await call("deploy_to_tensorzero", **deploy)  # the approval is used up
    assert "needs the scope 'release'" in (await call("release", action="rollback"))["error"]  # never waits
    wrong = await call("start_training", sample_size="many")
    assert "sample_size" in wrong["error"]
    assert "no argument 'colour'" in (await call("status", colour="red"))["error"]


async def test_reports_of_the_coordinator_reach_the_chat(host: Host, bus: Bus) -> None:
    context = host.context()
    context.log = log = Log()  # type: ignore[attr-defined]
    await until(lambda: host.runtime.status()["nats"] == "connected", 30)
    for sentence in (
        "Initiating RL training job #47 with 10K samples",
        "Model v2.4 deployed, +4% performance improvement, canary rollout in progress",
    ):
        await bus.notify(subjects.REPORT, json.dumps({"message": sentence, "timestamp": "t"}).encode())
    await bus.notify(subjects.REPORT, b"no JSON")
    await until(lambda: len(host.runtime.reports(0)) == 2, 30)
    for _ in range(2):  # the host calls this once a minute; each report is shown once
        await host.extensions.call_async("job_loop", None)
    assert log.of("info") == [
        "Initiating RL training job #47 with 10K samples",
        "Model v2.4 deployed, +4% performance improvement, canary rollout in progress",
    ]


async def test_without_show_reports_nothing_is_written_now_or_when_they_are_shown_again(
    host: Host, bus: Bus
) -> None:
    context = host.context()
    context.log = log = Log()  # type: ignore[attr-defined]
    host.config["show_reports"] = False
    await until(lambda: host.runtime.status()["nats"] == "connected", 30)
    for number, sentence in enumerate(("Job j-1 has ended.", "Job j-2 has ended."), 1):
        await bus.notify(subjects.REPORT, json.dumps({"message": sentence, "timestamp": "t"}).encode())
        await until(lambda number=number: len(host.runtime.reports(0)) == number, 30)
        await host.extensions.call_async("job_loop", None)
        host.config["show_reports"] = True
    assert log.of("info") == ["Job j-2 has ended."]


async def test_without_keep_implicit_a_message_is_no_vote_and_a_vote_still_is(host: Host, bus: Bus) -> None:
    host.config["keep_implicit"] = False
    context = host.context()
    context.log = log = Log()  # type: ignore[attr-defined]
    await host.ask("What is 6 times 7?", context)
    answer = context.agent0.history.all()[-1]
    log.log(type="response", agentno=0, id=answer.id, content="42")
    await until(lambda: host.runtime.status()["recorded"] == 1, 30)
    await host.extensions.call_async("user_message_ui", context.agent0, data={"message": "That is wrong."})
    host.runtime.feedback(context_id=context.id, message_id=answer.id, signal="thumbs_up")
    await until(lambda: host.runtime.status()["feedback"] == 1, 30)
    await until(lambda: host.runtime.status()["queued"] == 0, 30)
    info = await bus.js.stream_info("RL_FEEDBACK")
    assert info.state.messages == 1
    message = await bus.js.get_msg("RL_FEEDBACK", seq=info.state.last_seq)
    assert decode(message.data or b"", Feedback).signal == "thumbs_up"


async def test_the_next_message_of_the_user_is_a_vote_on_the_answer_before(host: Host, bus: Bus) -> None:
    context = host.context()
    context.log = log = Log()  # type: ignore[attr-defined]
    await host.ask("What is 6 times 7?", context)
    answer = context.agent0.history.all()[-1]
    log.log(type="response", agentno=0, id=answer.id, content="42")
    await until(lambda: host.runtime.status()["recorded"] == 1, 30)
    link = host.runtime.link(context.id, answer.id)
    for text in ("Now write a poem", "That is wrong, try again. My mail: ann.miller@gmail.com"):
        await host.extensions.call_async("user_message_ui", context.agent0, data={"message": text})
    await until(lambda: host.runtime.status()["feedback"] == 1, 30)
    await until(lambda: host.runtime.status()["queued"] == 0, 30)
    info = await bus.js.stream_info("RL_FEEDBACK")
    assert info.state.messages == 1
    message = await bus.js.get_msg("RL_FEEDBACK", seq=info.state.last_seq)
    vote = decode(message.data or b"", Feedback)
    assert (vote.signal, vote.kind, vote.comment, vote.source) == ("correction", "implicit", None, "webui")
    assert (vote.trajectory_id, vote.turn_id) == (link["trajectory_id"], link["turn_id"])


async def test_a_message_during_the_work_is_about_the_task_that_runs(host: Host, bus: Bus) -> None:
    context, goes_on = host.context(), asyncio.Event()
    context.log = Log()  # type: ignore[attr-defined]
    await host.ask("What is 6 times 7?", context)  # an earlier task of the same chat

    async def slow(agent: Agent, args: dict[str, Any]) -> str:
        await goes_on.wait()
        return "done"

    host.tools["slow"] = slow
    host.model = lambda agent, lines: (
        say("response", text="ready") if results_of_slow(agent) else say("slow", seconds=1)
    )
    running = asyncio.create_task(host.ask("Now something long.", context))
    await until(lambda: context.is_running, 10)
    await host.extensions.call_async("user_message_ui", context.agent0, data={"message": "Hurry up."})
    goes_on.set()
    await running
    answer = context.agent0.history.all()[-1]
    await until(lambda: host.runtime.status()["feedback"] == 1, 30)
    await until(lambda: host.runtime.status()["queued"] == 0, 30)
    info = await bus.js.stream_info("RL_FEEDBACK")
    message = await bus.js.get_msg("RL_FEEDBACK", seq=info.state.last_seq)
    vote = decode(message.data or b"", Feedback)
    assert (vote.signal, vote.kind) == ("interrupted", "implicit")
    assert vote.trajectory_id == host.runtime.link(context.id, answer.id)["trajectory_id"]


def results_of_slow(agent: Agent) -> bool:
    found = [one.content for one in agent.history.current.messages if isinstance(one.content, dict)]
    return any(one.get("tool_name") == "slow" for one in found)


def control_trainer(agent: Agent, lines: list[Line]) -> str | Any:
    answers = results(agent)
    if not answers:
        small = {"num_envs": 4, "n_steps": 32, "batch_size": 64, "hidden": [32, 32]}
        return say("control_train", algorithm="ppo", environment="CartPole-v1", timesteps=800, settings=small)
    job_id = answers[0]["job_id"]
    if answers[-1].get("state") == "completed":
        return say("rl_solution", job_id=job_id)
    if answers[-1].get("state") == "failed":
        return say("response", text=json.dumps(answers[-1]))
    return _look(job_id, len(answers))


async def _look(job_id: str, times: int) -> str:
    """Agent Zero runs no tool twice in a row for the same words, so each look says which one it is."""
    await asyncio.sleep(0.5)
    return say("job_status", f"I look for the {times}. time.", job_id=job_id)


async def test_reinforcement_learning_trainer_returns_the_solution_of_a_real_training(
    host: Host, bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solutions: list[str] = []
    give_tools(host, "reinforcement-learning-trainer")
    made = host.tools["rl_solution"]

    async def keep(agent: Agent, args: dict[str, Any]) -> Response:
        solutions.append((await made(agent, args)).message)
        return Response(solutions[-1], break_loop=True)

    host.tools["rl_solution"] = keep
    call_tools_here(monkeypatch)
    host.model = control_trainer
    host.rounds = 500
    async with training_service(bus, tmp_path / "trainer", takes=False) as served:
        attach(host, served, monkeypatch)
        running = asyncio.create_task(role.run(served.ctx))
        try:
            async with asyncio.timeout(180):
                answer = await host.ask("Train an agent for CartPole.")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
    assert [answer] == solutions
    report = yaml.safe_load(answer)["rl_training_solution"]
    assert list(report) == [
        "algorithm", "environment", "training_configuration", "training_results", "curriculum_stages",
        "deployment_code",
    ]  # fmt: skip
    assert (report["algorithm"], report["environment"]) == ("PPO", "CartPole-v1")
    configuration, found = report["training_configuration"], report["training_results"]
    assert configuration["state_space"] == "4-dimensional numbers"
    assert configuration["action_space"] == "2 choices (discrete)"
    assert set(configuration["reward_design"]) == {"task_reward", "shaping_rewards", "exploration_bonus"}
    assert {"learning_rate", "batch_size", "clip_epsilon", "gamma", "gae_lambda"} <= set(
        configuration["hyperparameters"]
    )
    assert configuration["hyperparameters"]["batch_size"] == 64
    assert found["episodes_to_solve"] is None  # 800 steps solve nothing, and the report does not pretend
    assert 0 <= found["final_success_rate"] <= 1 and 8 <= found["average_episode_reward"] <= 500
    assert 0 < found["training_time_hours"] < 0.1
    assert report["curriculum_stages"] == [
        {"stage": "CartPole-v1", "episodes": found["episodes"], "success_rate": found["final_success_rate"]}
    ]
    compile(report["deployment_code"], "deployment", "exec")


async def test_a_check_sees_files_hooks_gateway_and_bus(bus: Bus, tmp_path: Path) -> None:
    zero = make_agent_zero(tmp_path / "a0")
    install.install(zero)
    nats = bus.url.replace("nats://", f"nats://{bus._options['token']}@")
    found = {one.name: one for one in await check.check(zero, gateway="http://127.0.0.1:9", nats=nats)}
    passed = {name for name, one in found.items() if one.passed}
    assert passed == {"files", "version", "worker", "failed tasks", "hooks", "bus"}, found
    assert "No gateway answers at http://127.0.0.1:9" in found["gateway"].message
    (zero / "agent.py").write_text("def monologue(): ...\n")
    (zero / install.PLUGIN / "plugin.yaml").unlink()
    found = {one.name: one for one in await check.check(zero, gateway="http://127.0.0.1:9", nats=nats)}
    assert "chat_model_call_after" in found["hooks"].message
    assert "_functions/agent/Agent/hist_add_user_message/end" in found["hooks"].message
    assert found["files"].message.startswith(f"1 missing, such as {install.PLUGIN}/plugin.yaml")
