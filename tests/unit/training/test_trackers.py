"""A run reports the same steps to every tracker, offline too, and no tracker ends a run."""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onward.errors import MissingExtraError
from onward.training.job import trackers
from onward.training.job.trackers import Trackers

FILE = "card.md"


def _run(names: list[str], folder: Path, steps: tuple[int, ...], *, end: bool) -> list[str]:
    """One attempt that reports ``steps`` and then ends, or stops."""
    warned: list[str] = []
    run = Trackers(names, folder, "job-1", {"learning_rate": 1e-3}, warned.append)
    for step in steps:
        run.add_step(step, {"loss": 1 / step, "bad": math.nan, "note": "no number", "flag": True})
    if end:
        (folder / FILE).write_text("A card.")
        run.finish({"loss": 0.25}, [folder / FILE])
    else:
        run.close()
    return warned


def _records(body: bytes) -> Iterator[bytes]:
    """Yields the records of a file for `wandb sync`: a header of 7 bytes, then LevelDB's log format, in which
    a record that fits its block follows checksum (4 bytes), length (2) and type (1)."""
    at = 7
    while at + 7 <= min(len(body), 32768):
        length, kind = struct.unpack_from("<HB", body, at + 4)
        assert kind == 1
        yield body[at + 7 : at + 7 + length]
        at += 7 + length


def test_wandb_offline_keeps_a_run_that_can_be_synchronised_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb_internal_pb2 = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert _run(["wandb"], tmp_path, (1, 2), end=True) == []
    (record,) = (tmp_path / "wandb").glob("offline-run-*/run-job-1.wandb")
    assert (record.parent / "files" / FILE).exists()
    found: dict[int, dict[str, float]] = {}
    for data in _records(record.read_bytes()):
        entry = wandb_internal_pb2.Record()
        entry.ParseFromString(data)
        if entry.WhichOneof("record_type") == "history":
            items = {(i.key or ".".join(i.nested_key)): json.loads(i.value_json) for i in entry.history.item}
            found[entry.history.step.num] = items
    assert {step: items["loss"] for step, items in found.items()} == {1: 1.0, 2: 0.5}
    assert "bad" not in found[1] and "note" not in found[1]


def test_mlflow_in_a_folder_has_one_run_also_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert _run(["mlflow"], tmp_path, (1, 2), end=False) == []
    assert _run(["mlflow"], tmp_path, (3, 4), end=True) == []
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("onward")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert sorted((m.step, m.value) for m in history) == [(1, 1.0), (2, 0.5), (3, 1 / 3), (4, 0.25)]
    assert run.data.params == {"learning_rate": "0.001"}
    assert run.data.metrics["final.loss"] == 0.25 and "bad" not in run.data.metrics
    assert run.info.status == "FINISHED"
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == [FILE]


class _Broken:
    def __init__(self, *_: Any) -> None:
        self.steps: list[int] = []

    def add_step(self, step: int, metrics: Any) -> None:
        if step == 2:
            raise ConnectionError("key=secret was refused")
        self.steps.append(step)

    def finish(self, *_: Any) -> None:
        raise AssertionError("it was left out")

    close = finish


def test_a_tracker_that_fails_is_left_out_with_one_warning_without_its_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(trackers.KINDS, "wandb", _Broken)
    warned = _run(["wandb"], tmp_path, (1, 2, 3), end=True)
    assert warned == ["The tracker wandb failed (ConnectionError) and gets nothing more of this run."]


def test_a_missing_package_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise MissingExtraError("wandb", "onward.training.job.trackers")

    monkeypatch.setitem(trackers.KINDS, "wandb", missing)
    with pytest.raises(MissingExtraError, match="optional part 'wandb', which is not installed"):
        _run(["wandb"], tmp_path, (), end=True)


def test_a_child_gets_the_variables_of_its_trackers_alone() -> None:
    assert trackers.variables(None) == ()
    assert "WANDB_*" in trackers.variables(["wandb"]) and "WANDB_*" not in trackers.variables(["mlflow"])
