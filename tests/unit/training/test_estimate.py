"""The estimate before a run: sizes as the files have them, memory within a factor of two of a real run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from job_world import MakeJob, write_lines

from onward.envs import registry
from onward.envs.environment import LocalSource
from onward.errors import ConfigError
from onward.lm.policy import Policy
from onward.lm.sizes import Sizes
from onward.lm.tiny import build_tiny
from onward.training.data import dataset
from onward.training.job import estimate, shares
from onward.training.spec.environment_plan import EnvironmentPlan
from onward.training.spec.request import JobSpec

pytestmark = pytest.mark.slow


def test_parameters_are_counted_as_they_are(arms_base: Path, make_job: MakeJob) -> None:
    network = Sizes.read(arms_base)
    policy = Policy.load(arms_base)
    assert network.parameters == sum(tensor.numel() for tensor in policy.weights.tensors())
    spec = JobSpec.model_validate_json((make_job(first_lora_layer=0.5) / "spec.json").read_bytes())
    adapter = policy.new_adapter("x", spec.lora_rank, layers=[1])
    assert estimate.adapter_parameters(spec, network) == sum(p.numel() for p in adapter.params.values())
    some, more = (spec.model_copy(update={"lora_targets": ["q_proj", *rest]}) for rest in ([], ["w1"]))
    assert estimate.adapter_parameters(more, network) == estimate.adapter_parameters(some, network) > 0


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.long)])
def test_memory_is_within_a_factor_of_two_of_a_measured_run(
    tmp_path: Path, make_job: MakeJob, full: bool
) -> None:
    """A network whose weights and activations weigh as much as the interpreter does."""
    base = build_tiny(
        tmp_path / "base", ["a b c"] * 9, hidden=576, layers=6, heads=9, kv_heads=3, intermediate=1536
    )
    folder = make_job(
        algorithm="reinforce", model_folder=str(base), full=full, batch_rows=16, lora_rank=16, epochs=1
    )
    write_lines(folder, [1.0, 0.0] * 8, groups=4)
    lines = dataset.read(folder / dataset.FILE)
    for number, line in enumerate(lines):  # 130 tokens a row, none of them shared: 2048 at once
        line["calls"][0]["prompt_ids"] = [3 + (number * 31 + n * 7) % 200 for n in range(124)]
    (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    spec = JobSpec.model_validate_json((folder / "spec.json").read_bytes())
    rows, tokens = estimate.tokens_of(lines)
    assert (rows, tokens) == (16, 130.0)
    network = Sizes.read(base)
    expected = estimate.memory(spec, network, estimate.load_of(spec, rows, tokens)).total

    child = subprocess.run(
        [sys.executable, "-m", "onward.training.job.worker", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    done = json.loads(child.stdout.splitlines()[-1])
    measured = done["peak_memory_gb"] * (1 << 30)
    print(f"expected {expected / 1e9:.2f} GB, measured {measured / 1e9:.2f} GB")
    assert 0.5 < expected / measured < 2.0


def test_what_costs_more_is_expected_to(make_job: MakeJob, arms_base: Path) -> None:
    network = Sizes.read(arms_base)

    def told(**changes: object) -> tuple[float, float]:
        spec = JobSpec.model_validate_json((make_job(**changes) / "spec.json").read_bytes())
        load = estimate.load_of(spec, 64, 200.0)
        return estimate.memory(spec, network, load).total, estimate.seconds(spec, network, load, 1e10)

    plain = told()
    assert told(lora_rank=64)[0] > plain[0]
    assert told(full=True)[1] > plain[1]
    assert told(gradient_checkpointing=True)[0] < plain[0]
    assert told(epochs=4)[1] > plain[1]
    assert told(max_steps=1)[1] < plain[1]
    assert told(micro_batch_tokens=256)[0] < plain[0]


def test_a_folder_without_sizes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="does not tell the sizes"):
        Sizes.read(tmp_path)


def test_the_rate_is_measured() -> None:
    assert estimate.matrix_rate(2) > 1e8


def _shared(folder: Path, rows: int, prompt: int) -> list[dict[str, Any]]:
    """Attempts at one prompt of ``prompt`` tokens: two answers of two tokens with two between them."""
    write_lines(folder, [1.0, 0.0] * (rows // 2), groups=1)
    lines = dataset.read(folder / dataset.FILE)
    for line in lines:
        line["calls"][0]["prompt_ids"] = [3 + n * 7 % 200 for n in range(prompt)]
    (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines


def test_a_prompt_that_attempts_share_counts_once(make_job: MakeJob) -> None:
    """Sixteen rows of 124 + 6 tokens: the prompt short of its last token once, and seven tokens of each."""
    lines = _shared(make_job(), 16, 124)
    assert estimate.tokens_of(lines) == (16, 130.0)
    assert shares.computed_of(lines) == 123 + 16 * 7
    spec = JobSpec.model_validate_json((make_job() / "spec.json").read_bytes())
    assert estimate.load_of(spec, 16, 130.0, computed=235.0).tokens == 235.0


def test_the_same_text_counts_once_in_two_sides_of_a_pair() -> None:
    """A token is four characters, and five are around a message: 5 + 20 of the prompt, short of the last, and
    1 + 5 + 10 of either side."""
    talk = [{"role": "user", "content": "abcd" * 20}]
    sides = [
        {"trajectory_id": word, "messages": [*talk, {"role": "assistant", "content": word * 10}]}
        for word in ("yes.", "nope")
    ]
    assert shares.computed_of(sides) == 24 + 2 * 16


def test_attempts_at_a_task_of_an_environment_share_its_prompt(make_job: MakeJob) -> None:
    plan = EnvironmentPlan(place="maze", episodes=32, group_size=8)
    spec = JobSpec.model_validate_json((make_job(algorithm="rloo") / "spec.json").read_bytes())
    spec = spec.model_copy(update={"environment": plan})
    found = shares.prompts_of(spec, LocalSource(registry.find("maze")))
    assert found is not None
    # Four tasks of eight attempts: at least the instructions are common to all, and each prompt counts once.
    assert found.computed < found.tokens * 4 + 32
    load = estimate.load_of(spec, prompts=found)
    assert load.tokens == pytest.approx(load.rows * (load.row_tokens - found.tokens) + found.computed)
    assert load.tokens < load.rows * load.row_tokens


@pytest.mark.long
def test_memory_of_rows_with_one_prompt_is_within_a_quarter_of_a_measured_run(
    tmp_path: Path, make_job: MakeJob
) -> None:
    """Without the share the estimate was 1.64 times the truth."""
    base = build_tiny(
        tmp_path / "base", ["a b c"] * 9, hidden=576, layers=6, heads=9, kv_heads=3, intermediate=1536
    )
    folder = make_job(algorithm="reinforce", model_folder=str(base), batch_rows=16, lora_rank=16, epochs=1)
    lines = _shared(folder, 16, 350)
    spec = JobSpec.model_validate_json((folder / "spec.json").read_bytes())
    network, (rows, tokens) = Sizes.read(base), estimate.tokens_of(lines)
    told = [
        estimate.memory(spec, network, estimate.load_of(spec, rows, tokens, computed=computed)).total
        for computed in (None, shares.computed_of(lines))
    ]
    child = subprocess.run(
        [sys.executable, "-m", "onward.training.job.worker", str(folder)],
        capture_output=True,
        text=True,
        check=True,
    )
    measured = json.loads(child.stdout.splitlines()[-1])["peak_memory_gb"] * (1 << 30)
    print(f"expected {told[1] / measured:.2f} times the measured, without the share {told[0] / measured:.2f}")
    assert 0.75 < told[1] / measured < 1.25
