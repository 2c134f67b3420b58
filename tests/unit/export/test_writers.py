"""Every exported format, read back by the library that it is for."""

from __future__ import annotations

import contextlib
import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from pydantic import TypeAdapter
from trajectory_store import TOOLS, reward, trajectory

from onward.capture.conversations.messages import conversation
from onward.contracts import Reward, Trajectory, validate
from onward.contracts.examples import REWARD, TRAJECTORY
from onward.errors import ConfigError, MissingExtraError
from onward.export import columns, run, writers
from onward.export.demonstrations import openai_line
from onward.export.pairs import Pairs, Rules
from onward.export.records import Record
from onward.lm.tiny import build_tiny
from onward.warehouse.trajectory_queries import TrajectorySelection

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A chat template that shows tools and calls, as those of larger models do."""
RECORDS = [
    Record(copy.deepcopy(TRAJECTORY), copy.deepcopy(REWARD)),
    Record(trajectory("a", group_id="g"), reward("a", 0.9)),
    Record(trajectory("b", group_id="g", answer="It is 400."), reward("b", 0.3, success=False)),
    Record(trajectory("unscored")),
]


@pytest.fixture(autouse=True)
def _offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    folder = build_tiny(tmp_path_factory.mktemp("tiny"), ["It is 391.", "user\nassistant\ntool\n"])
    made = AutoTokenizer.from_pretrained(folder)
    made.chat_template = TEMPLATE
    made.name_or_path = str(folder)
    return made


def loaded(path: Path, tmp_path: Path) -> Any:
    from datasets import load_dataset

    return load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))


def written(path: Path, documents: list[Any]) -> Path:
    with writers.json_lines(path) as put:
        for document in documents:
            put(document)
    return path


def test_json_lines_hold_whole_documents(tmp_path: Path) -> None:
    path = written(tmp_path / "x.jsonl", [run._whole(one) for one in RECORDS])
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["trajectory"] for line in lines] == [one.trajectory for one in RECORDS]
    assert [line["reward"] for line in lines] == [one.reward for one in RECORDS]
    for line in lines:
        validate(line["trajectory"], Trajectory)
        if line["reward"]:
            validate(line["reward"], Reward)
    assert loaded(path, tmp_path)[1]["trajectory"]["trajectory_id"] == "a"


def test_parquet_is_read_by_pandas_and_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pandas

    monkeypatch.setattr(writers, "ROWS_AT_ONCE", 3)
    with writers.parquet(tmp_path / "x.parquet") as put:
        for one in RECORDS:
            put(columns.row(one))
    table = pyarrow.parquet.read_table(tmp_path / "x.parquet")
    assert {field.name: str(field.type) for field in table.schema} == {
        **columns.COLUMNS, "success": "bool",
        "start": "timestamp[ms, tz=UTC]", "end": "timestamp[ms, tz=UTC]",
        **{name: "double" for name, kind in columns.COLUMNS.items() if kind == "float64"},
    }  # fmt: skip
    frame = pandas.read_parquet(tmp_path / "x.parquet")
    first, second, _, last = frame.to_dict("records")
    expected = {
        "trajectory_id": TRAJECTORY["trajectory_id"], "model": "agent-zero-rl-v2.3", "arm": "candidate",
        "release_id": "release-3", "model_digest": "sha256-0f1e", "tokens": 97, "turns": 2,
        "task_type": "arithmetic", "group_id": "task-7-group-1", "domain": "general",
        "status": "completed_successfully", "total_reward": 0.6875,
        "start": datetime(2026, 1, 5, 9, tzinfo=UTC), "end": datetime(2026, 1, 5, 9, 0, 7, 250_000, UTC),
    }  # fmt: skip
    assert {name: first[name] for name in expected} == expected
    assert json.loads(first["document"]) == TRAJECTORY and json.loads(first["reward"]) == REWARD
    assert (second["raw_total"], second["success"], second["completed"]) == (0.9, True, 1.0)
    assert pandas.isna(last["raw_total"]) and pandas.isna(last["success"]) and pandas.isna(last["reward"])
    assert frame["raw_total"].mean() == pytest.approx((0.9 + 0.3 + REWARD["metadata"]["raw_total"]) / 3)


def test_openai_messages_have_the_types_of_the_package_and_load_as_a_dataset(tmp_path: Path) -> None:
    from trl.data_utils import is_conversational

    talks = [conversation(one.trajectory) for one in RECORDS]
    path = written(tmp_path / "x.jsonl", [openai_line(one.messages, one.tools) for one in talks])
    for line in map(json.loads, path.read_text().splitlines()):
        assert set(line) <= {"messages", "tools"}
        TypeAdapter(list[ChatCompletionMessageParam]).validate_python(line["messages"])
        TypeAdapter(list[ChatCompletionToolUnionParam]).validate_python(line.get("tools", []))
    rows = loaded(path, tmp_path)
    assert rows[1]["messages"] == talks[1].messages and rows[1]["tools"] == TOOLS
    assert is_conversational(rows[1])


def test_a_datasets_folder_is_loaded_and_prepared_by_trls_trainer(tmp_path: Path, tokenizer: Any) -> None:
    from datasets import load_from_disk
    from trl.data_utils import maybe_apply_chat_template

    with writers.dataset(tmp_path / "made") as put:
        for one in RECORDS:
            put(columns.trainable_row(one))
    rows = load_from_disk(tmp_path / "made")
    assert len(rows) == 4 and rows.features["start"].dtype == "timestamp[ms, tz=UTC]"
    assert rows[1]["start"] == datetime(2026, 3, 1, 12, tzinfo=UTC) and rows[3]["raw_total"] is None
    assert json.loads(rows[1]["document"]) == RECORDS[1].trajectory
    assert json.loads(rows[1]["tools"]) == TOOLS and rows[0]["tools"] is None
    call = rows[1]["messages"][2]["tool_calls"][0]["function"]
    assert call == {"name": "calculator", "arguments": {"expression": "17 * 23"}}
    text = maybe_apply_chat_template(rows[1], tokenizer, tools=TOOLS)["text"]
    assert '{"name": "calculator", "arguments": {"expression": "17 * 23"}}' in text
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made"]

    from trl import SFTConfig, SFTTrainer

    config = SFTConfig(output_dir=str(tmp_path / "out"), report_to=[], use_cpu=True, max_length=None)
    trainer = SFTTrainer(tokenizer.name_or_path, config, train_dataset=rows, processing_class=tokenizer)
    assert tokenizer.decode(trainer.train_dataset[1]["input_ids"]) == text


def test_pairs_are_prepared_by_trls_trainer(tmp_path: Path, tokenizer: Any) -> None:
    from trl.data_utils import is_conversational, maybe_apply_chat_template

    path = written(tmp_path / "x.jsonl", list(Pairs(Rules()).of_group(RECORDS[1:3])))
    rows = loaded(path, tmp_path)
    assert len(rows) == 1 and is_conversational(rows[0])
    shown = maybe_apply_chat_template(rows[0], tokenizer, tools=TOOLS)
    assert shown["chosen"].endswith("It is 391.<|im_end|>\n") and shown["rejected"].endswith(
        "400.<|im_end|>\n"
    )

    from trl import DPOConfig, DPOTrainer

    config = DPOConfig(output_dir=str(tmp_path / "out"), report_to=[], use_cpu=True, max_length=None)
    trainer = DPOTrainer(tokenizer.name_or_path, args=config, train_dataset=rows, processing_class=tokenizer)
    (made,) = trainer.train_dataset
    assert tokenizer.decode(made["prompt_ids"]) == shown["prompt"]
    assert tokenizer.decode(made["chosen_ids"]) == shown["chosen"]


def test_an_export_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path, folder = tmp_path / "x", tmp_path / "folder"
    path.write_text("before")
    folder.mkdir()
    (folder / "state.json").write_text("{}")
    row = columns.trainable_row(RECORDS[1])
    cases = [
        (writers.json_lines(path), {"a": 1}),
        (writers.parquet(path), row),
        (writers.dataset(folder), row),
    ]
    for opened, document in cases:
        with pytest.raises(ZeroDivisionError), opened as put:
            put(document)
            raise ZeroDivisionError
    assert path.read_text() == "before" and [one.name for one in folder.iterdir()] == ["state.json"]
    assert sorted(one.name for one in tmp_path.iterdir()) == ["folder", "x"]


def test_a_datasets_folder_replaces_another_only_when_told_and_nothing_else(tmp_path: Path) -> None:
    from datasets import load_from_disk

    folder = tmp_path / "made"
    for one in RECORDS[1:3]:
        with writers.dataset(folder) as put:
            put(columns.trainable_row(one))
        with pytest.raises(ConfigError, match="exists already"):
            writers.check(folder, force=False, folder=True)
        writers.check(folder, force=True, folder=True)
    assert load_from_disk(folder)["trajectory_id"] == ["b"]
    (tmp_path / "mine").mkdir()
    with pytest.raises(ConfigError, match="no folder of 'datasets'"):
        writers.check(tmp_path / "mine", force=True, folder=True)


def test_a_missing_library_is_one_sentence_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    run.check_extra("pairs")
    with pytest.raises(MissingExtraError, match="The format 'parquet' needs the optional part 'export'"):
        run.check_extra("parquet")


async def test_a_full_disk_is_one_sentence() -> None:
    class Store:
        async def query(self, sql: str, **_: Any) -> list[dict[str, Any]]:
            return (
                [] if "reward_history_v" in sql else [{"trajectory_id": "a", "start_ts": "", "payload": "{}"}]
            )

    export = run.Export(Store(), TrajectorySelection(), 1, Path("/dev/full"))  # type: ignore[arg-type]
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(ConfigError, match="No space left"):
        await export._each(contextlib.nullcontext(lambda document: full.write(b"x")), lambda record: {})
