"""Small networks for the language-core tests; one torch thread, since test machines are shared."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import pytest

import onward.lm  # noqa: F401  (before torch: it makes waiting threads passive)

torch = pytest.importorskip("torch")

from onward.lm.policy import Policy  # noqa: E402
from onward.lm.sft import fit  # noqa: E402
from onward.lm.tiny import build_tiny  # noqa: E402
from onward.lm.tokens import TokenRow  # noqa: E402

CORPUS = [
    '{"tool_name": "calculator", "tool_args": {"expression": "12 + 30"}}',
    "system user assistant You are a helpful assistant. hello world",
] * 8


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers, four query and two key-value heads, about 100,000 random parameters."""
    return build_tiny(
        tmp_path_factory.mktemp("small"),
        CORPUS,
        vocab=300,
        hidden=48,
        layers=3,
        heads=4,
        kv_heads=2,
        intermediate=96,
    )


@pytest.fixture()
def policy(small: Path) -> Policy:
    return Policy.load(small)


def noisy_adapter(
    policy: Policy, name: str, layers: list[int] | None = None, seed: int = 1, scale: float = 0.2
) -> None:
    """An adapter that really changes the network: both of its matrices are random."""
    generator = torch.Generator().manual_seed(seed)
    adapter = policy.new_adapter(name, 4, 8.0, layers)
    for parameter in adapter.params.values():
        parameter.normal_(0, scale, generator=generator)


def random_rows(count: int, seed: int = 0, shared: int = 6, temperature: float = 1.0) -> list[TokenRow]:
    """Rows with a common prefix and two sampled stretches with an observation between them."""
    rnd = random.Random(seed)
    prefix = [rnd.randrange(3, 250) for _ in range(shared)]
    rows = []
    for _ in range(count):
        a, b, c = rnd.randint(1, 4), rnd.randint(0, 5), rnd.randint(1, 6)
        tail = [rnd.randrange(3, 250) for _ in range(2 + a + b + c)]
        sampled = [False] * (shared + 2) + [True] * a + [False] * b + [True] * c
        rows.append(TokenRow(prefix + tail, sampled, [0.0] * len(sampled), temperature))
    return rows


def with_behaviour(policy: Policy, adapter: str | None, rows: list[TokenRow]) -> list[TokenRow]:
    """The rows as if ``adapter`` had sampled them."""
    values = policy.logprobs(rows, adapter)
    return [TokenRow(r.ids, r.sampled, v.tolist(), r.temperature) for r, v in zip(rows, values, strict=True)]


ARMS = (10, 11)
START, OBSERVATION = 12, 13


def arm_rows() -> list[TokenRow]:
    """Rows to imitate for a policy that picks either arm with probability one half in each of two turns."""
    rows = [
        TokenRow([START, a, OBSERVATION, OBSERVATION, b], [False, True, False, False, True], [0.0] * 5)
        for a in ARMS
        for b in ARMS
    ] * 4
    # cues that decide the arm: without them both arms get the same embedding, and no adapter could choose;
    # with few of them their embeddings are so near that no adapter could choose for certain
    return rows + [TokenRow([20 + a, a], [False, True], [0.0] * 2) for a in ARMS] * 16


@pytest.fixture(scope="session")
def two_armed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that picks either arm with probability one half in each of two turns."""
    return _two_armed(tmp_path_factory, "llama")


@pytest.fixture(scope="session")
def two_armed_twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in a network of another family."""
    return _two_armed(tmp_path_factory, "qwen2")


def _two_armed(tmp_path_factory: pytest.TempPathFactory, family: Literal["llama", "qwen2"]) -> Path:
    folder = build_tiny(
        tmp_path_factory.mktemp("arms"),
        ["ab"],
        vocab=259,
        hidden=32,
        layers=2,
        heads=2,
        kv_heads=1,
        intermediate=64,
        family=family,
    )
    policy = Policy.load(folder)
    for _ in fit(policy, None, arm_rows(), learning_rate=1e-2, batch_rows=24, epochs=40):
        pass
    warm = tmp_path_factory.mktemp("warm")
    policy.save(warm)
    return warm
