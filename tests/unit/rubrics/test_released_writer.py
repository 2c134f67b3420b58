"""``writer = "released"``: a running scorer follows releases and rollbacks, and a score names its writer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from reward_documents import trajectory, turn

from onward.config import RewardSettings
from onward.contracts.buckets import ReleasedWriter
from onward.errors import ConfigError, TamperedError
from onward.reward import ScoringContext, Unscored
from onward.reward.components import RubricResult, RubricScore, Scored
from onward.reward.measures.baselines import Baselines
from onward.reward.measures.judgement import judge
from onward.reward.role.analysis import Analysis
from onward.rubrics.backend_player import BaselinePlayer
from onward.rubrics.language import Rubric
from onward.rubrics.tasks import RubricTask, make_task
from onward.rubrics.trajectories import rubrics_of
from onward.rubrics.trajectories.written import RubricWriter, in_this_process
from onward.rubrics.writer_process import WriterProcess
from onward.rubrics.writers import rubric_by

SETTINGS = RewardSettings.model_validate(
    {"rubrics": {"trips": {"family": "travel_itinerary", "writer": "released"}}}
)
ITEM = trajectory(turns=[turn(1, output="# Trip\n\nOne page.")])
ITEM = ITEM.model_copy(
    update={"task_context": ITEM.task_context.model_copy(update={"task_id": "travel_itinerary/1"})}
)


class Source:
    """The released writer is a reference point, by its name."""

    def __init__(self, name: str | None = None) -> None:
        self.name, self.loads, self.problem = name, 0, ""

    async def released(self) -> ReleasedWriter | None:
        if self.name is None:
            return None
        return ReleasedWriter(
            version=self.name, digest=f"digest of {self.name}", object_prefix="p", manifest_sha256="m"
        )

    async def folder(self, writer: ReleasedWriter) -> Path:
        if self.problem:
            raise TamperedError(self.problem)
        self.loads += 1
        return Path(writer.version)


@pytest.fixture(autouse=True)
def _players(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a writer is played by the reference point that its folder names."""

    async def write(process: WriterProcess, writer: str, task: RubricTask) -> Rubric:
        return rubric_by(BaselinePlayer(Path(writer).name), task)

    monkeypatch.setattr(WriterProcess, "write", write)


async def result_of(source: Source, analysis: Analysis) -> RubricResult | Unscored | None:
    return (await analysis.rubrics({"t": ITEM}))["t"]


def expected(name: str) -> dict[str, float]:
    (attempt,) = BaselinePlayer(name).play([make_task("travel_itinerary", 1)])
    assert attempt.rubric is not None
    shares = zip(attempt.rubric.checks, attempt.rubric.weights, strict=True)
    return {str(check): float(share) for check, share in shares}


async def test_releases_and_rollbacks_count_with_the_next_trajectory() -> None:
    source = Source("template")
    analysis = Analysis(None, rubrics_of(SETTINGS, source))
    for name in ("template", "full_oracle", "template"):
        source.name = name
        for _ in range(2):
            found = await result_of(source, analysis)
            assert isinstance(found, RubricResult) and found.weights == pytest.approx(expected(name))
            assert found.writer == {"version": name, "digest": f"digest of {name}"}
    assert source.loads == 3
    assert expected("template") != expected("full_oracle")


async def test_a_score_names_the_version_and_the_digest_of_its_writer() -> None:
    source = Source("template")
    found = await result_of(source, Analysis(None, rubrics_of(SETTINGS, source)))
    context = ScoringContext(judge(ITEM), Baselines(), rubric=found)
    score = RubricScore().score(ITEM, context)
    assert isinstance(score, Scored)
    assert score.raw_data["writer"] == {"version": "template", "digest": "digest of template"}
    assert "of rubric trips by template hold" in score.reasoning


async def test_without_a_released_writer_and_with_damaged_files_a_trajectory_is_unscored_never_zero() -> None:
    source = Source()
    analysis = Analysis(None, rubrics_of(SETTINGS, source))
    found = await result_of(source, analysis)
    assert isinstance(found, Unscored) and found.detail.startswith("No rubric writer is released")
    source.name = "template"
    first = await result_of(source, analysis)
    source.name, source.problem = "full_oracle", "Rubric writer full_oracle is refused."
    refused = await result_of(source, analysis)
    assert isinstance(refused, Unscored) and refused.detail == "Rubric writer full_oracle is refused."
    source.name = "template"  # rolled back: the writer in memory is used again
    assert await result_of(source, analysis) == first


def test_outside_of_a_service_the_released_writer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[reward.rubrics.trips\].*name another writer"):
        rubrics_of(SETTINGS)


async def test_a_rubric_is_remembered_by_brief_and_checks() -> None:
    task = make_task("travel_itinerary", 1)
    writer = RubricWriter(in_this_process(BaselinePlayer("constant")))
    first = (await writer.rubric(task)).rubric
    left = [place for place, check in enumerate(task.active) if check != first.checks[0]]
    fewer = replace(task, active=tuple(task.active[place] for place in left), weights=task.weights[left])
    assert first.checks[0] not in (await writer.rubric(fewer)).rubric.checks
    assert (await writer.rubric(task)).rubric == first
