"""The client against servers that misbehave: each quirk of AgentGym's servers has a test of its name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import pytest

from onward.clock import SystemClock
from onward.envs.client import Deadlines, EnvClient
from onward.envs.dialects import DIALECTS, read_id, read_step
from onward.envs.failures import EnvironmentFailure
from onward.envs.rollouts import Action, Conversation, rollouts
from onward.envs.tasks import TaskRef
from onward.errors import ConfigError, ConflictError

Answer = tuple[int, Any] | Exception
Handler = Callable[[str, Any], Answer | Awaitable[Answer]]
TASK = TaskRef("textcraft", "all", 3)
BIG = Deadlines(hello=60, create=60, reset=60, step=60, observe=60, close=60)


class NoWait(SystemClock):
    """Second tries come at once."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        await asyncio.sleep(0)


class Fake:
    """A server: path → answer, or answers in turn with the last one repeated."""

    def __init__(self, **answers: Answer | list[Answer] | Handler) -> None:
        self.answers: dict[str, Any] = {
            "create": (200, {"id": 0}),
            "reset": (200, {"observation": "begin", "reward": 0, "done": False}),
            "close": (200, True),
            **answers,
        }
        self.asked: list[tuple[str, Any]] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        body = json.loads(request.content) if request.content else None
        self.asked.append((path, body))
        found = self.answers.get(path.strip("/").replace("/", "_") or "root", (404, {"detail": "Not Found"}))
        if callable(found):
            found = found(path, body)
            if isinstance(found, Awaitable):
                found = await found
        elif isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if isinstance(found, Exception):
            raise found
        status, document = found
        if isinstance(document, bytes):
            return httpx.Response(status, content=document)
        return httpx.Response(status, json=document)

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


def client(fake: Fake, dialect: str | None = "textcraft", **more: Any) -> EnvClient:
    options: dict[str, Any] = {"deadlines": BIG, "clock": NoWait(), **more}
    return EnvClient("http://fake", dialect=dialect, transport=httpx.MockTransport(fake), **options)


def stepped(observation: str = "more", reward: float = 0, done: bool = False, **more: Any) -> Answer:
    return 200, {"observation": observation, "reward": reward, "done": done, **more}


async def failure_of(fake: Fake, answer: str = "look", **options: Any) -> EnvironmentFailure:
    async with client(fake, **options) as env:
        with pytest.raises(EnvironmentFailure) as caught:
            async with env.open(TASK) as play:
                await play.step(answer)
    return caught.value


# Quirks of AgentGym's servers.


async def test_quirk_create_always_has_a_body_since_textcraft_answers_422_to_none() -> None:
    fake = Fake()
    async with client(fake) as env, env.open(TASK):
        pass
    assert fake.asked == [("/create", {}), ("/reset", {"id": 0, "data_idx": 3}), ("/close", {"id": 0})]


async def test_quirk_status_200_with_error_is_a_failure_and_not_a_missing_key() -> None:
    failure = await failure_of(Fake(step=(200, {"error": "Java died"})))
    assert failure.cause == "env_error" and "Java died" in str(failure)
    failure = await failure_of(Fake(step=(200, {"error": "The id 0 is not valid."})))
    assert failure.cause == "lost_instance"
    failure = await failure_of(Fake(create=(200, {"error": "no room"})))
    assert failure.cause == "env_error"


@pytest.mark.parametrize("document", ["a bare string", {"observation": "a bare string", "done": False}])
async def test_quirk_observation_is_a_bare_string_or_an_object(document: Any) -> None:
    fake = Fake(observation=(200, document))
    async with client(fake) as env, env.open(TASK) as play:
        assert await play.observe() == "a bare string"


@pytest.mark.parametrize("document", ["begin", {"observation": "begin"}])
async def test_quirk_reset_answers_without_reward_and_done(document: Any) -> None:
    """Maze sends the observation alone."""
    async with client(Fake(reset=(200, document))) as env, env.open(TASK) as play:
        assert play.first == "begin"


@pytest.mark.parametrize("number", [0, 7, "7", "b1c2"])
@pytest.mark.parametrize("wrapped", [True, False])
async def test_quirk_ids_of_any_type_go_back_as_they_came(number: int | str, wrapped: bool) -> None:
    fake = Fake(create=(200, {"id": number} if wrapped else number))
    async with client(fake) as env, env.open(TASK):
        pass
    assert [body["id"] for path, body in fake.asked if path != "/create"] == [number, number]


@pytest.mark.parametrize("document", [True, None, {}, {"id": None}, {"id": True}, 1.5, [0]])
def test_what_is_no_id_is_a_bad_answer(document: Any) -> None:
    with pytest.raises(EnvironmentFailure, match="an id was expected") as caught:
        read_id(document)
    assert caught.value.cause == "bad_answer"


@pytest.mark.parametrize(
    ("dialect", "prefix", "key"),
    [
        ("textcraft", "", "data_idx"),
        ("babyai", "", "data_idx"),
        ("sciworld", "", "data_idx"),
        ("lmrl_maze", "/maze", "game"),
        ("lmrl_wordle", "/wordle", "seed"),
    ],
)
async def test_quirk_each_family_has_its_own_prefix_and_reset_key(
    dialect: str, prefix: str, key: str
) -> None:
    name = f"{prefix[1:]}_" if prefix else ""
    fake = Fake(**{f"{name}create": (200, {"id": 4}), f"{name}reset": (200, {"observation": "x"})})
    async with client(fake, dialect) as env, env.open(TASK):
        pass
    assert fake.asked[:2] == [(f"{prefix}/create", {}), (f"{prefix}/reset", {"id": 4, key: 3})]


async def test_quirk_a_server_without_close_is_never_asked_to() -> None:
    fake = Fake(maze_create=(200, {"id": 0}), maze_reset=(200, {"observation": "x"}))
    async with client(fake, "lmrl_maze") as env, env.open(TASK):
        pass
    assert "/maze/close" not in fake.paths() and env.unclosed == 0


async def test_a_close_that_fails_is_counted_and_spoils_no_episode() -> None:
    fake = Fake(step=stepped(done=True, reward=1), close=(404, {"detail": "Not Found"}))
    async with client(fake) as env:
        async with env.open(TASK) as play:
            assert (await play.step("x")).success
        assert env.unclosed == 0
    assert env.unclosed == 1


async def test_an_instance_of_agentgym_plays_one_task_after_the_other_and_is_closed_once() -> None:
    """Its /create draws a task too, and TextCraft keeps every instance for ever."""
    fake = Fake(step=stepped(done=True, reward=1))
    async with client(fake) as env:
        for _ in range(3):
            async with env.open(TASK) as play:
                await play.step("x")
    assert fake.paths() == ["/create", *["/reset", "/step"] * 3, "/close"]


async def test_an_instance_whose_episode_failed_plays_no_other_task() -> None:
    fake = Fake(reset=[(200, {"error": "no room"}), (200, {"observation": "go"})])
    async with client(fake) as env:
        with pytest.raises(EnvironmentFailure):
            async with env.open(TASK):
                pass
        async with env.open(TASK):
            pass
    assert fake.paths() == ["/create", "/reset", "/close"] * 2


async def test_quirk_babyai_reward_is_the_steps_and_score_the_sum() -> None:
    answers = [stepped(reward=0, score=0), stepped(reward=0.9, score=0.9, done=True)]
    fake = Fake(step=answers)
    async with client(fake, "babyai") as env, env.open(TASK) as play:
        first, last = await play.step("go"), await play.step("go")
    assert (first.reward, first.score, first.success) == (0, 0, None)
    assert (last.reward, last.score, last.done, last.success) == (0.9, 0.9, True, True)


async def test_quirk_babyai_undoes_slow_success_and_would_go_on_adding() -> None:
    """A reward of 0.5 or less comes with done = false; here it ends the episode, once, as success."""
    fake = Fake(step=[stepped(reward=0.4, score=0.4, done=False), stepped(reward=0.4, score=0.8)])
    async with client(fake, "babyai") as env, env.open(TASK) as play:
        reply = await play.step("go")
        assert (reply.done, reply.success, reply.score) == (True, True, 0.4)
        with pytest.raises(ConflictError):
            await play.step("go")
    assert fake.paths().count("/step") == 1


async def test_quirk_textcraft_plays_on_after_the_end_and_is_not_asked_to() -> None:
    fake = Fake(step=stepped(reward=1, done=True))
    async with client(fake) as env, env.open(TASK) as play:
        await play.step("x")
        with pytest.raises(ConflictError, match="done"):
            await play.step("x")
    assert fake.paths().count("/step") == 1


async def test_quirk_sciworld_scores_are_out_of_a_hundred_and_cumulative() -> None:
    fake = Fake(step=[stepped(reward=50, score=50), stepped(reward=50, score=100, done=True)])
    async with client(fake, "sciworld") as env, env.open(TASK) as play:
        half, whole = await play.step("x"), await play.step("x")
    assert (half.reward, half.score) == (0.5, 0.5)
    assert (whole.reward, whole.score, whole.success) == (0.5, 1.0, True)


async def test_an_answer_with_two_actions_is_told_here_keeps_the_score_and_costs_a_turn() -> None:
    """AgentGym's SciWorld client reports a score of 0 then, and the episode counts as lost."""
    fake = Fake(step=stepped(reward=50, score=50))
    async with client(fake, "sciworld") as env, env.open(TASK) as play:
        await play.step("look")
        reply = await play.step("Action: look\nAction: look")
    assert reply.observation.startswith("Only one 'Action:'")
    assert (reply.reward, reply.score, reply.done) == (0.0, 0.5, False)
    assert fake.paths().count("/step") == 1


@pytest.mark.parametrize(
    ("answer", "action"),
    [
        ("Thought: I need it.\n\nAction:\nget 1 stone", "get 1 stone"),
        ("Action: craft 1 a using  2 b, 1 c.", "craft 1 a using 2 b, 1 c"),
        ("**inventory**", "inventory"),
        ("", ""),
    ],
)
async def test_actions_are_parsed_here_since_agentgyms_servers_do_not(answer: str, action: str) -> None:
    fake = Fake(step=stepped())
    async with client(fake) as env, env.open(TASK) as play:
        await play.step(answer)
    assert ("/step", {"id": 0, "action": action}) in fake.asked


@pytest.mark.parametrize(
    "document",
    [
        "text",
        [],
        {},
        {"observation": "x", "reward": 0},
        {"observation": "x", "reward": 0, "done": "no"},
        {"observation": "x", "done": False},
        {"observation": "x", "reward": None, "done": False},
        {"observation": "x", "reward": True, "done": False},
        {"observation": "x", "reward": float("nan"), "done": False},
        {"observation": "x", "reward": 0, "score": "1", "done": False},
        {"observation": None, "reward": 0, "done": False},
    ],
)
def test_an_answer_of_another_form_is_a_bad_answer_and_never_a_reward(document: Any) -> None:
    with pytest.raises(EnvironmentFailure) as caught:
        read_step(DIALECTS["textcraft"], document, 0.0)
    assert caught.value.cause == "bad_answer"


async def test_an_answer_that_is_not_json_is_a_bad_answer() -> None:
    for content in (b"<html>", b"\xff", b"[" * 100_000):
        assert (await failure_of(Fake(step=(200, content)))).cause == "bad_answer"


async def test_an_answer_that_no_body_can_carry_is_played_all_the_same() -> None:
    """A policy must not be able to make its own episodes unscored."""
    fake = Fake(step=stepped())
    async with client(fake, "babyai") as env, env.open(TASK) as play:
        await play.step("x" * 3_000_000)
        await play.step("half a letter \ud800")
    sent = [body["action"] for path, body in fake.asked if path == "/step"]
    assert (len(sent[0]), sent[1]) == (10_001, "half a letter ?")


# Deadlines, causes, second tries.


def never(path: str, body: Any) -> Awaitable[Answer]:
    async def wait() -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    return wait()


@pytest.mark.parametrize("kind", ["create", "reset", "step"])
async def test_every_wait_has_a_deadline_and_a_cause(kind: str) -> None:
    deadlines = Deadlines(**{**BIG.__dict__, kind: 0.05})
    fake = Fake(**{kind: never})
    failure = await failure_of(fake, deadlines=deadlines)
    assert failure.cause == f"{kind}_timeout"
    assert f"gave no answer to /{kind} within 0.05 s" in str(failure)
    assert fake.paths().count("/close") == (kind != "create")


async def test_a_step_that_was_cut_off_is_not_sent_again() -> None:
    fake = Fake(step=httpx.ReadError("cut"))
    assert (await failure_of(fake)).cause == "connection"
    assert fake.paths().count("/step") == 1


async def test_a_step_that_never_reached_the_server_is_sent_again() -> None:
    fake = Fake(step=[httpx.ConnectError("refused"), stepped("at last")])
    async with client(fake) as env, env.open(TASK) as play:
        assert (await play.step("x")).observation == "at last"


async def test_a_reset_is_sent_again_since_it_starts_the_same_task() -> None:
    fake = Fake(reset=[httpx.ReadError("cut"), (503, {"detail": "busy"}), (200, {"observation": "begin"})])
    async with client(fake) as env, env.open(TASK) as play:
        assert play.first == "begin"
    assert fake.paths().count("/reset") == 3


async def test_a_create_that_was_cut_off_is_not_sent_again_but_a_busy_server_is_asked_until_it_is_not() -> (
    None
):
    fake = Fake(create=httpx.ReadError("cut"))
    assert (await failure_of(fake)).cause == "connection"
    assert fake.paths() == ["/create"]
    clock = NoWait()
    fake = Fake(
        create=[*[(503, {"error": {"type": "too_many_instances", "message": "Full."}})] * 8, (200, 5)]
    )
    async with client(fake, clock=clock) as env, env.open(TASK) as play:
        assert play.id == 5
    assert clock.slept[:6] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0]


async def test_a_server_that_is_away_is_given_four_tries() -> None:
    fake = Fake(create=httpx.ConnectError("refused"))
    failure = await failure_of(fake)
    assert failure.cause == "connection"
    assert str(failure) == "The environment server at fake cannot be reached (ConnectError)."
    assert fake.paths() == ["/create"] * 4


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ((500, {"error": {"type": "internal_error", "message": "Broke."}}), "env_error"),
        ((401, {"error": {"type": "authentication_error", "message": "No key."}}), "refused"),
        ((410, {"error": {"type": "instance_closed", "message": "Closed."}}), "lost_instance"),
        ((404, {"error": {"type": "unknown_instance", "message": "Unknown."}}), "lost_instance"),
        ((422, {"detail": [{"msg": "Field required"}]}), "refused"),
        ((503, {"error": {"type": "stopping", "message": "Stopping."}}), "env_error"),
        ((502, b"<html>"), "env_error"),
    ],
)
async def test_a_status_has_a_cause_and_the_servers_words(answer: Answer, cause: str) -> None:
    fake = Fake(step=answer)
    failure = await failure_of(fake)
    assert failure.cause == cause
    assert isinstance(answer, tuple) and f"answered /step with {answer[0]}" in str(failure)
    assert fake.paths().count("/step") == 1 and fake.paths()[-1] == "/close"


# Closing, whatever happens.


async def test_an_instance_that_comes_after_the_deadline_is_closed() -> None:
    gate = asyncio.Event()

    async def late(path: str, body: Any) -> Answer:
        await gate.wait()
        return 200, {"id": 77}

    fake = Fake(create=late)
    async with client(fake, deadlines=Deadlines(create=0.05, close=60)) as env:
        with pytest.raises(EnvironmentFailure, match="/create within"):
            async with env.open(TASK):
                pass
        gate.set()
    assert fake.asked[-1] == ("/close", {"id": 77})


@pytest.mark.parametrize("held", ["create", "reset", "step"])
async def test_a_cancelled_episode_is_closed_wherever_it_was(held: str) -> None:
    reached, gate = asyncio.Event(), asyncio.Event()

    async def hold(path: str, body: Any) -> Answer:
        reached.set()
        await gate.wait()
        return 200, {"id": 0}

    fake = Fake(**{held: hold})
    async with client(fake) as env:

        async def episode() -> None:
            async with env.open(TASK) as play:
                await play.step("x")

        task = asyncio.create_task(episode())
        await reached.wait()
        task.cancel()
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert fake.paths().count("/close") == 1


async def test_failures_leave_episodes_unscored_and_the_others_scored() -> None:
    def step(path: str, body: Any) -> Answer:
        return (200, {"error": "broken"}) if body["id"] == 1 else stepped(reward=1, done=True)

    numbers = iter(range(3))
    fake = Fake(create=lambda path, body: (200, {"id": next(numbers)}), step=step)

    class Says:
        async def act(self, conversations: Sequence[Conversation]) -> list[Action]:
            return [Action("x") for _ in conversations]

    async with client(fake) as env:
        episodes = await rollouts(env, Says(), env.panel(n=3))
    assert sorted((e.failure or "", e.reward) for e in episodes if e.reward is not None) == [("", 1.0)] * 2
    (broken,) = [e for e in episodes if e.reward is None]
    assert (broken.failure, broken.ended, broken.success) == ("env_error", "failed", None)
    assert fake.paths().count("/close") == 3


# Who is there.


async def test_a_server_of_ours_tells_everything_itself() -> None:
    meta = {
        "name": "mine",
        "version": "2",
        "instructions": "Do it.",
        "horizon": 9,
        "reward_range": [0, 1],
        "panels": {"train": 5, "test": 2},
        "split": "train",
        "held_out": "test",
        "panel_hash": "ab",
        "ttl_seconds": 60,
        "protocol": "agentgym-a/1",
    }
    fake = Fake(meta=(200, meta), create=(200, {"id": 1, "observation": "go"}), step=stepped(score=0.0))
    async with client(fake, None) as env:
        assert (env.name, env.horizon, env.panel_hash, env.instructions) == ("mine", 9, "ab", "Do it.")
        assert env.panel() == [TaskRef("mine", "test", 0), TaskRef("mine", "test", 1)]
        async with env.open(TaskRef("mine", "test", 1, 4)) as play:
            await play.step("Thought\nAction: x")
    assert fake.asked[1:3] == [
        ("/create", {"split": "test", "data_idx": 1, "seed": 4}),
        ("/step", {"id": 1, "action": "Thought\nAction: x"}),
    ]


async def test_an_unknown_greeting_asks_for_the_dialect() -> None:
    with pytest.raises(ConfigError, match="name the dialect, one of onward, textcraft, babyai"):
        async with client(Fake(root=(200, "hello")), None):
            pass


async def test_a_key_is_sent_and_never_shown() -> None:
    key = "ok-" + "z" * 20
    seen: list[str | None] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers.get("authorization"))
        return httpx.Response(401, json={"error": {"type": "authentication_error", "message": "No."}})

    transport = httpx.MockTransport(answer)
    env = EnvClient(f"http://user:{key[::-1]}@fake", dialect="onward", key=key, transport=transport)
    with pytest.raises(EnvironmentFailure) as caught:
        async with env:
            pass
    assert seen == [f"Bearer {key}"]
    assert str(caught.value) == "The environment server at fake answered /meta with 401: No."


@pytest.mark.parametrize("url", ["", "fake:80", "ftp://fake", "http://", "http://[::1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="give http://HOST:PORT"):
        EnvClient(url)
