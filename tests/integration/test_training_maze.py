"""`onward train --env maze`, as docs/train-command.md shows it: a warm start, then success rises by playing.

The control plays the same number of episodes and learns at a rate of almost nothing: what rises is learned.
"""

from pathlib import Path

import pytest
from docs_blocks import run_command

from onward.envs import registry
from onward.training import checkpoints

WARM = (
    "--algorithm sft --model tiny --full --env maze --demonstrations 400 --steps 300 --batch-rows 16 "
    "--lr 3e-3 --out warm"
)
PLAY = "--algorithm rloo --model warm/model --env maze --horizon 16 --batch-rows 16 --held-out 100"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_held_out_success_rises_by_playing_and_only_by_learning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in (
        WARM,
        f"{PLAY} --steps 24 --lr 2e-3 --out better",
        f"{PLAY} --steps 2 --lr 1e-12 --out control",
    ):
        code, output = run_command(f"onward train {line}")
        print(output)
        assert code == 0, output
    better, control = (checkpoints.verify(Path(name, "checkpoint")).metrics for name in ("better", "control"))
    before, after = (better["held_out"][when]["success"] for when in ("before", "after"))
    assert round(after - before, 6) >= 0.1, (before, after)  # of 100 mazes: whole hundredths
    assert better["panel_hash"] == registry.find("maze").panel_hash()
    assert control["held_out"]["before"] == control["held_out"]["after"] == better["held_out"]["before"]
