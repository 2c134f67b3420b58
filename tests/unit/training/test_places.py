"""Paths and models that come in messages stay where the operator put them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from trainer_world import World, asked

from onward.errors import TrainingError
from onward.training.data import archives
from onward.training.spec import differences, request
from onward.training.spec.places import confined, is_below, read_confined


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with one file, a secret beside it, and links of every kind that lead to the secret."""
    root = tmp_path / "exports"
    (root / "day").mkdir(parents=True)
    (root / "day" / "a.jsonl").write_text("{}")
    (tmp_path / "secret.jsonl").write_text("{}")
    (tmp_path / "exports-of-others").mkdir()
    (root / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (root / "up").symlink_to(tmp_path)
    (root / "inside.jsonl").symlink_to(root / "day" / "a.jsonl")
    return root


def place(given: str, root: Path) -> Path:
    return confined(given, [str(root)], field="dataset.path", setting="training.data_roots")


@pytest.mark.parametrize(
    "given", ["day/a.jsonl", "day", ".", "day/../day/a.jsonl", "inside.jsonl", "./day//a.jsonl"]
)
def test_a_path_under_a_root_is_its_real_path(root: Path, given: str) -> None:
    found = place(given, root)
    assert found == (root / given).resolve() and root in (found, *found.parents)
    assert place(str(root / "day"), root) == root / "day"


@pytest.mark.parametrize(
    "given",
    [
        "../secret.jsonl", "day/../../secret.jsonl", "link.jsonl", "up/secret.jsonl", "/etc/passwd",
        "../exports-of-others", "up", "/proc/self/root/etc/passwd",
    ],
)  # fmt: skip
def test_a_path_that_leads_out_of_the_root_is_refused(root: Path, given: str) -> None:
    with pytest.raises(TrainingError, match=r"is outside: give a file or folder under") as refused:
        place(given, root)
    assert refused.value.code == "DATA"


@pytest.mark.parametrize("given", ["file:///etc/passwd", "s3://bucket/key", "~/a.jsonl", "a\0b", "FILE://x"])
def test_an_address_is_no_path(root: Path, given: str) -> None:
    with pytest.raises(TrainingError, match="no address"):
        place(given, root)


def test_nothing_is_read_where_the_operator_lists_no_root() -> None:
    with pytest.raises(TrainingError, match=r"training\.data_roots lists no folder: the operator adds one"):
        confined("a.jsonl", [], field="dataset.path", setting="training.data_roots")


def test_a_missing_file_is_told_from_one_outside(root: Path) -> None:
    with pytest.raises(TrainingError, match="does not exist"):
        place("day/b.jsonl", root)


@pytest.mark.parametrize("given", ["x" * 300, "day/" * 2000, "circle", "circle/a.jsonl", "\ud800.jsonl"])
def test_a_path_that_no_file_system_takes_is_one_sentence(root: Path, given: str) -> None:
    """Anything but a TrainingError would end the trainer, and again with each start."""
    (root / "circle").symlink_to(root / "circle")
    with pytest.raises(TrainingError, match="does not exist") as refused:
        place(given, root)
    assert refused.value.code == "DATA"


@pytest.mark.parametrize("swapped", ["day", "day/a.jsonl"])
def test_a_part_of_a_path_that_becomes_a_link_after_the_check_is_not_followed(
    root: Path, tmp_path: Path, swapped: str
) -> None:
    found = place("day/a.jsonl", root)
    assert read_confined(found, [tmp_path / "other", root]) == b"{}"
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.jsonl").write_text("secret")
    (root / swapped).rename(tmp_path / "moved")
    (root / swapped).symlink_to(tmp_path / "outside" / ("a.jsonl" if swapped.endswith("l") else ""))
    with pytest.raises(OSError):
        read_confined(found, [root])


def test_a_pipe_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "pipe.jsonl")
    with pytest.raises(OSError, match="no regular file"):
        read_confined(place("pipe.jsonl", root), [root])


async def test_a_folder_with_a_link_that_leads_out_is_refused(root: Path, tmp_path: Path) -> None:
    settings = World(tmp_path / "data", training={"data_roots": [str(root)]}).settings
    with pytest.raises(TrainingError, match=r"link\.jsonl is a link out of training\.data_roots"):
        _ = [file async for file in archives.local_files(settings, ".")]
    (root / "circle.jsonl").symlink_to(root / "circle.jsonl")
    with pytest.raises(TrainingError, match=r"circle\.jsonl is a link in a circle: delete it"):
        _ = [file async for file in archives.local_files(settings, ".")]


@pytest.mark.parametrize(
    ("address", "below"),
    [
        ("s3://bucket/rl/", True), ("s3://bucket/rl/job-1", True), ("s3://bucket/rl/../other", False),
        ("s3://bucket/rl-other", False), ("s3://other/rl", False), ("file:///rl", False), ("/rl", False),
        ("s3://bucket/rl/a/../b", True),
    ],
)  # fmt: skip
def test_storage_path_is_compared_with_the_store_after_its_dots(address: str, below: bool) -> None:
    assert is_below(address, "s3://bucket/rl") is below


@pytest.mark.parametrize("given", ["/etc", "../../etc", "file:///etc", "s3://mine/x"])
def test_a_storage_path_elsewhere_is_told_and_never_written(tmp_path: Path, given: str) -> None:
    """Publishers send one with every request, so it fails no job; the store stays the operator's."""
    body = asked({"name": "maze"}).model_dump(mode="json", exclude_none=True)
    body["training_config"]["checkpointing"] = {"storage_path": given}
    found = differences.read(type(asked({"name": "maze"})).model_validate(body), World(tmp_path).settings)
    assert ["it goes to this service's object store" in one for one in found.differences] == [True]


@pytest.mark.parametrize("model", ["qwen-of-nobody", "/etc", "../smollm2", "file:///models/x", "a" * 5000])
def test_a_model_that_is_not_listed_is_refused_with_the_remedy(tmp_path: Path, model: str) -> None:
    settings = World(tmp_path, models={"aliases": {"qwen2.5-32b-instruct": "smollm2"}}).settings
    given: Any = asked({"name": "maze"})
    given.training_config.base_model = model
    with pytest.raises(TrainingError, match=r"list the other in \[models\.aliases\]") as refused:
        request.check(given, settings)
    assert refused.value.code == "DATA" and len(str(refused.value)) < 300
    assert "'smollm2' or 'qwen2.5-32b-instruct'" in str(refused.value)
    given.training_config.base_model = "Qwen2.5-32B-Instruct"
    request.check(given, settings)
