"""``onward validate``: tries a stored model against another one on the suites, without a release."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from onward import host
from onward.cli import ConfigFile, DataDir, app, load_settings, run_async
from onward.cli.output import AsJson, console, plain, print_json, print_text
from onward.cli.suite_tables import item_lines, lost_items, suite_table
from onward.config import Settings
from onward.context import Context
from onward.errors import ConfigError, NotFoundError
from onward.files import write_whole
from onward.progress import Bars
from onward.release import versions
from onward.release.record import Model, Releases
from onward.release.validation.verdict import Rules, validate, with_human_score
from onward.release.wording import verdict_words
from onward.suites import paired
from onward.suites.finding import ALIASES
from onward.suites.suite import ItemResult

FAILED = 1
"""Exit code of a validation that failed."""


@app.command("validate")
def validate_model(
    model: Annotated[str, typer.Argument(help="Id of a stored model, as 'onward models list' shows it.")],
    suite: Annotated[
        list[str] | None,
        typer.Option(help="Suite. Repeatable. Default: validation.suites."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="Model to compare with. Default: the current one.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Write the report as one HTML file.")] = None,
    human_score: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Score given by a person; stored in the model's entry."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Play every item again, also those with a stored result.")
    ] = False,
    file: ConfigFile = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare a stored model with the current one on the same items, without any traffic.

    onward validate agent-zero-rl-v2 --suite recorded:agent=helpdesk,days=30
    onward validate agent-zero-rl-v2 --suite desk --suite env:maze --html report.html

    Needs a running service. Exit code 1: it failed. The result is stored below validations/ of the data
    folder.
    """
    settings = load_settings(file, data_dir)
    rules = Rules.from_settings(settings)
    if suite:
        named = tuple(dict.fromkeys(ALIASES.get(name, name) for name in suite))
        rules = replace(rules, suites=named, other_tasks=())
    if not rules.suites and not rules.other_tasks:
        raise ConfigError("There is no suite to validate with: give --suite, or set validation.suites.")
    with Bars(console(), quiet=as_json) as bars:
        found = run_async(
            _run(settings, rules, model, against, human_score, bars, said=not as_json, fresh=fresh)
        )
    write_whole(_stored(settings, model), json.dumps(found, indent=1, allow_nan=False).encode(), 0o600)
    if html is not None:
        from onward.release.validation.report import write

        write(html, model, found["against"], found, human_score)
    if as_json:
        print_json(found)
    else:
        _show(found, html)
    if found["verdict"] == "failed":
        raise typer.Exit(FAILED)


async def _run(
    settings: Settings,
    rules: Rules,
    model: str,
    against: str | None,
    human_score: float | None,
    bars: Bars,
    *,
    said: bool,
    fresh: bool,
) -> dict[str, Any]:
    from onward.release.validation.kept import FOLDER, KeptSuite
    from onward.release.validation.suite import EngineSuite

    done, bar = 0, bars.add_bar("validation")

    def item(result: ItemResult) -> None:
        nonlocal done
        done += 1
        bar.update(done, note=f"{result.item_id} {'solved' if result.success else 'not solved'}")

    async with host.parts(settings, roles=(), join=True) as ctx:
        candidate, current = await _models(ctx, model, against)
        engine = EngineSuite(ctx, fresh=fresh, on_item=item)
        kept = KeptSuite(engine, settings.data_dir / FOLDER, fresh=fresh, on_item=item)
        try:
            await engine.begin(candidate, current)
            others = await engine.other_tasks(rules.other_tasks)
            suites = [await engine.find(name) for name in (*rules.suites, *others)]
            sizes = [one.size for one in suites]
            if all(sizes):
                bar.update(0, total=2 * sum(sizes))
            for one in suites:
                if said and rules.regression == "interval" and one.size and one.purpose == "benchmark":
                    words = what_it_asks(one.name, one.size, rules.min_delta)
                    bars.console.print(words, markup=False, highlight=False, soft_wrap=True)
            for one in (current, candidate):
                await engine.prepare(one.adapter_digest, one.object_prefix, one.manifest_sha256)
            found = await validate(candidate.adapter_digest, current.adapter_digest, kept, rules)
        finally:
            await engine.finish()
        bar.finish()
        if said and kept.known:
            are = "result is" if kept.known == 1 else "results are"
            words = f"{kept.known:,} {are} from an earlier run; --fresh plays every item again."
            bars.console.print(words, markup=False, highlight=False, soft_wrap=True)
        if human_score is not None:
            await versions.note_human_score(ctx.bus, candidate.model_id, human_score, clock=ctx.clock)
        found = with_human_score(found, human_score) | {"human_score": human_score}
        return {"model": candidate.model_id, "against": current.model_id, **found}


def what_it_asks(name: str, items: int, limit: float) -> str:
    """Returns the sentence that says before the run what the interval rule asks of a suite."""
    if limit >= 0:
        return (
            f"{name}: with release.min_delta = 0 the interval rule passes only a model that is better, "
            f"whatever the number of items. Set a limit below 0 to pass one that is as good."
        )
    share = paired.differing_share(items, limit)
    if share is None:
        least = paired.least_items(limit)
        return (
            f"{name}: {items:,} items are too few for the interval rule, even if the two models differ on "
            f"none of them: it takes {least:,}. Take more items (validation.size), or "
            f'validation.regression = "point", which asks less.'
        )
    if share >= 1.0:
        return f"{name}: {items:,} items, enough for the interval rule whatever the two models answer."
    return (
        f"{name}: {items:,} items. By the interval rule a model as good as the current one fails if the two "
        f"differ on more than about {100 * share:.0f} % of them; more items (validation.size), or "
        f'validation.regression = "point", ask less.'
    )


async def _models(ctx: Context, model: str, against: str | None) -> tuple[Model, Model]:
    releases = Releases(ctx.bus, ctx.clock)

    async def stored(name: str) -> Model:
        found = await releases.model(name)
        if found is None:
            raise NotFoundError(
                f"There is no model {name[:80]!r}: 'onward models list' shows those there are."
            )
        return found

    current = await releases.current() if against is None else await stored(against)
    if current is None:
        raise NotFoundError("No model serves yet: name the one to compare with, --against MODEL.")
    return await stored(model), current


def _stored(settings: Settings, model: str) -> Path:
    folder = settings.data_dir / "validations"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / f"{model}.json"


def _show(found: dict[str, Any], html: Path | None) -> None:
    print_text(suite_table(found["summary"]))
    for line in item_lines(found["summary"]):
        print_text("", line)
    for table in lost_items(found["summary"]):
        print_text("", table)
    if found["human_score"] is not None:
        print_text(f"Score given by a person: {found['human_score']:.2f}.")
    for name, facts in found["summary"].get("suites", {}).items():
        if facts["verdict"] == "failed" and facts.get("needed") is not None:
            print_text("", f"{plain(name)}: {facts['judged']}.")
    print_text("", f"Not run: {', '.join(map(plain, found['not_run']))}.")
    print_text(f"{found['model']} against {found['against']}: {plain(verdict_words(found))}.")
    if html is not None:
        print_text(f"The report is in {html}.")
