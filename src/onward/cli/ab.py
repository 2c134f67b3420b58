"""``onward ab``: A/B tests of two stored models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from onward import host
from onward.bus import Bus
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.help import Commands
from onward.cli.output import AsJson, Table, facts, ident, number, plain, print_json, print_text
from onward.clock import SystemClock, utc_text
from onward.errors import ConfigError, ConflictError, NotFoundError
from onward.ids import new_id
from onward.release.ab.record import AbTest, AbTests
from onward.release.commands import refuse_if_busy
from onward.release.evidence.rates import ArmRates
from onward.release.record import Model, Releases
from onward.release.wording import rate_text
from onward.telemetry import audit

ab_app = Commands(
    help="""A/B tests of two stored models: a fixed split, an interval to read at any time, a stop rule.

    onward ab start agent-zero-rl-v1 agent-zero-rl-v2 --split 50 --stop-after 2000
    onward ab show
    onward ab stop
    """
)
app.add_typer(ab_app, name="ab")
Named = Annotated[str | None, typer.Argument(metavar="ID", help="Of the test. Default: the newest one.")]
STOP_FORM = re.compile(r"(\d+)([mhd]?)")
SECONDS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}
TRIES = 5


@ab_app.command()
def start(
    a: Annotated[str, typer.Argument(metavar="A", help="Id of a stored model.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Id of the other one.")],
    split: Annotated[float, typer.Option(min=1, max=99, help="B's percentage of new sessions.")] = 50,
    stop_after: Annotated[
        str | None, typer.Option(metavar="N|TIME", help="Sessions with an outcome, or a time: 90m, 12h, 3d.")
    ] = None,
    margin: Annotated[
        float, typer.Option(min=0, max=1, help="A difference of the mean outcome up to this counts as none.")
    ] = 0.0,
    file: ConfigFile = None,
    data_dir: DataDir = None,
) -> None:
    """Start a test of B against A. A session keeps its model. It stops when its interval shows a difference.

    No release begins while it runs, and no test starts during a release.

    onward ab start agent-zero-rl-v1 agent-zero-rl-v2 --split 50 --stop-after 3d --margin 0.02
    """
    sessions, seconds = stop_rule(stop_after)

    async def work() -> AbTest:
        settings = load_settings(file, data_dir)
        async with host.attached(settings) as (bus, _):
            return await request(
                bus, a, b, split=split / 100, margin=margin,
                stop_after_sessions=sessions, stop_after_seconds=seconds,
            )  # fmt: skip

    test = run_async(work())
    print_text(f"Sent to the releaser: A/B test {test.ab_id}. 'onward ab show' shows what it finds.")


async def request(bus: Bus, a: str, b: str, **rule: Any) -> AbTest:
    """Stores the request for a test. Raises NotFoundError for an unknown model, ConflictError while another
    test, a release or a pin decides who serves, and ConfigError for one model against itself."""
    if a == b:
        raise ConfigError(f"A and B are both {a}: give two models.")
    clock = SystemClock()
    releases = Releases(bus, clock)
    models: list[Model] = []
    for name in (a, b):
        model = await releases.model(name)
        if model is None:
            raise NotFoundError(f"There is no stored model {name!r}: 'onward models list' shows them.")
        models.append(model)
    await refuse_if_busy(bus, await releases.all(), "start the test")
    test = AbTest(
        ab_id=new_id(), a=models[0], b=models[1], asked_by=audit.current_user(),
        created_at=utc_text(clock.now()), **rule,
    )  # fmt: skip
    await audit.record(bus, clock, "ab.start", ab_id=test.ab_id, a=a, b=b, split=test.split)
    await AbTests(bus.bucket(AbTest.BUCKET)).create(test)
    return test


@ab_app.command()
def stop(name: Named = None, file: ConfigFile = None, data_dir: DataDir = None) -> None:
    """Stop the test that runs; the current model serves all sessions again.

    onward ab stop
    """

    async def work() -> AbTest:
        async with host.attached(load_settings(file, data_dir)) as (bus, _):
            tests = AbTests(bus.bucket(AbTest.BUCKET))
            for _ in range(TRIES):
                found = await tests.open()
                if found is None or (name is not None and not found[0].has_name(name)):
                    raise NotFoundError("No such A/B test is open: 'onward ab list' shows what there was.")
                asked = found[0].model_copy(update={"stop_asked_by": audit.current_user()})
                try:
                    await tests.write(asked, found[1])
                    await audit.record(bus, SystemClock(), "ab.stop", ab_id=asked.ab_id)
                    return asked
                except ConflictError:
                    continue  # the releaser wrote new evidence meanwhile
            raise ConflictError("The releaser writes this test all the time: try again.")

    test = run_async(work())
    print_text(f"Sent to the releaser: stop A/B test {test.ab_id}. 'onward ab show' shows what it found.")


async def _tests(file: Path | None, data_dir: Path | None) -> list[AbTest]:
    async with host.records(load_settings(file, data_dir)) as bus:
        return await AbTests(bus.bucket(AbTest.BUCKET)).all()


@ab_app.command(name="list")
def list_tests(file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show all tests, newest first.

    onward ab list
    """
    tests = run_async(_tests(file, data_dir))[::-1]
    if as_json:
        return print_json([document(test) for test in tests])
    table = Table(ident("id"), "A", "B", "state", number("B - A"), "verdict", empty="no A/B test yet")
    for test in tests:
        table.add_row(
            test.ab_id, test.a.model_id, test.b.model_id, test.state, interval_words(test), test.verdict
        )
    print_text(table)


@ab_app.command()
def show(
    name: Named = None, file: ConfigFile = None, data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show one test: both models in numbers, the interval of their difference, and why it ended.

    onward ab show
    """
    tests = [test for test in run_async(_tests(file, data_dir)) if name is None or test.has_name(name)]
    if not tests:
        raise NotFoundError(
            "There is no A/B test yet: 'onward ab start A B' begins one."
            if name is None
            else f"There is no A/B test {name!r}: 'onward ab list' shows them."
        )
    if as_json:
        return print_json(document(tests[-1]))
    print_text(*report(tests[-1]))


def document(test: AbTest) -> dict[str, Any]:
    """Returns a test for programs, without the raw evidence."""
    return test.model_dump(mode="json", exclude={"evidence"})


def interval_words(test: AbTest) -> str:
    """Formats ``+0.08 [+0.02, +0.14]``."""
    if test.estimate is None:
        return "none judged yet"
    return f"{test.estimate:+.3f} [{test.low:+.3f}, {test.high:+.3f}]"


def report(test: AbTest) -> list[Any]:
    """Returns the report of a test: a sentence, its facts, both arms, and what the interval means."""
    state = f"stopped: {test.why}" if test.why else test.state
    rule = {
        "split": f"{test.split:.0%} to B",
        "margin": f"{test.margin:g}",
        "stops after": _limit(test),
        "started": test.started_at,
        "stopped": test.stopped_at,
    }
    table = Table("", number("A"), number("B"), title="Arms")
    a, b = (test.rates.get(name, ArmRates()) for name in ("current", "candidate"))
    table.add_row("model", test.a.model_id, test.b.model_id)
    table.add_row("sessions with an outcome", a.outcomes, b.outcomes)
    table.add_row(
        "mean outcome", *("-" if x.mean_outcome is None else f"{x.mean_outcome:.3f}" for x in (a, b))
    )
    table.add_row("errors", *(rate_text(x.errors, x.sessions) for x in (a, b)))
    table.add_row("negative feedback", *(rate_text(x.negative, x.feedback) for x in (a, b)))
    return [
        plain(f"A/B test {test.ab_id} is {state}. Verdict: {test.verdict}."),
        "",
        facts({key: value for key, value in rule.items() if value is not None}, title="Rule"),
        "",
        table,
        f"B - A: {interval_words(test)}. The interval misses the true difference with a probability of at "
        f"most {test.alpha:.0%}, however often it is read and whenever the test stops.",
    ]


def _limit(test: AbTest) -> str | None:
    if test.stop_after_sessions is not None:
        return f"{test.stop_after_sessions:,} sessions"
    return None if test.stop_after_seconds is None else f"{test.stop_after_seconds / 3600:g} hours"


def stop_rule(text: str | None) -> tuple[int | None, float | None]:
    """Reads ``--stop-after``: (sessions, seconds), of which one is None. Raises ConfigError."""
    if text is None:
        return None, None
    found = STOP_FORM.fullmatch(text.strip())
    if found is None or int(found[1]) < 1:
        raise ConfigError(
            f"--stop-after is {text!r}: expected a number of sessions (2000) or a time (90m, 12h, 3d)."
        )
    if not found[2]:
        return int(found[1]), None
    return None, int(found[1]) * SECONDS[found[2]]
