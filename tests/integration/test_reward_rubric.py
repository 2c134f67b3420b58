"""A running service scores trajectories by the rubrics of its settings, and explains them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from answered_task import trajectory
from docs_blocks import run_command

from onward import config, host
from onward.contracts import encode, subjects
from onward.rubrics.tasks import make_task
from onward.warehouse import queries


async def test_a_service_scores_by_rubrics_and_explains_each_criterion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    rule = {
        "type": "code",
        "name": "two rows",
        "weight": 1,
        "code": "def evaluate(artefact):\n    return 1 / 0\n",
    }
    stage = {"name": "s", "max_points": 1, "rules": [rule]}
    free = {"category_name": "broken", "max_total_score": 1, "stages": [stage]}
    (tmp_path / "broken.json").write_text(json.dumps(free))
    rubrics = {
        "notes": {"family": "release_notes"},
        "broken": {"document": str(tmp_path / "broken.json"), "task_types": ["broken"]},
    }
    weights = {"rubric": 1.0, "task_completion": 0, "efficiency": 0, "code_quality": 0, "user_feedback": 0}
    settings = config.load(
        environ={},
        overrides={
            "data_dir": tmp_path / "data", "nats": {"port": 0}, "http": {"api_port": 0},
            "reward": {**weights, "rubrics": rubrics},
        },
    )  # fmt: skip
    task = make_task("release_notes", 3)
    bits = task.probes()[0]
    answer = json.dumps(task.build(bits))
    items = [
        trajectory("scored", "release_notes/3", answer, "notes"),
        trajectory("unknown", "k", "x", "broken"),
        trajectory("other", "k", "x", "chat"),
    ]
    async with host.running(settings, roles=("collector", "rewarder", "api")) as loop:
        for item in items:
            await loop.ctx.bus.publish(subjects.TRAJECTORY, encode(item), msg_id=item.trajectory_id)
        async with asyncio.timeout(60):
            while True:
                counts = await queries.counts(loop.ctx.warehouse)
                if counts["rewarded"] + counts["unscored"] == 3:
                    break
                await asyncio.sleep(0.05)
        data = settings.data_dir
        code, output = await asyncio.to_thread(
            run_command, f"onward rewards explain scored --json --dir {data}"
        )
        found = json.loads(output)
        assert code == 0 and found["raw_total"] == pytest.approx(float(bits @ task.weights))
        criteria = found["components"]["rubric"]["facts"]["criteria"]
        assert criteria == {
            str(check): float(bit)
            for check, bit, weight in zip(task.active, bits, task.weights, strict=True)
            if weight > 0
        }
        code, output = await asyncio.to_thread(run_command, f"onward rewards explain scored --dir {data}")
        assert code == 0 and all(name in output for name in criteria)
        code, output = await asyncio.to_thread(run_command, f"onward trajectories show scored --dir {data}")
        assert code == 0 and all(name in output for name in criteria)
        code, output = await asyncio.to_thread(run_command, f"onward rewards explain unknown --dir {data}")
        assert "unscored, which is not a zero: rubric_unknown (rubric: s: two rows)" in output
        code, output = await asyncio.to_thread(run_command, f"onward rewards explain other --dir {data}")
        assert "no_weight" in output
