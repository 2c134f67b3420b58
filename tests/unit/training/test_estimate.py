"""The estimate before a run: sizes as the files have them, memory within a factor of two of a real run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from job_world import MakeJob, write_lines

from onward.errors import ConfigError
from onward.lm.policy import Policy
from onward.lm.sizes import Sizes
from onward.lm.tiny import build_tiny
from onward.training.data import dataset
from onward.training.job import estimate
from onward.training.spec.request import JobSpec

pytestmark = pytest.mark.slow


def test_parameters_are_counted_as_they_are(arms_base: Path, make_job: MakeJob) -> None:
    network = Sizes.read(arms_base)
    policy = Policy.load(arms_base)
    assert network.parameters == sum(tensor.numel() for tensor in policy.weights.tensors())
    spec = JobSpec.model_validate_json((make_job(first_lora_layer=0.5) / "spec.json").read_bytes())
    adapter = policy.new_adapter("x", spec.lora_rank, layers=[1])
    assert estimate.adapter_parameters(spec, network) == sum(p.numel() for p in adapter.params.values())


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
