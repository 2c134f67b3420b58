"""S4, the quick start for training a rubric manager: each of its snippets runs as it is written there.

The names come from ``onward.rubrics.seed``. What a snippet leaves out ("# ..."), the test fills in.
"""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import BaseModel

from onward.errors import ConfigError
from onward.lm.tiny import build_tiny
from onward.rubrics import seed as names
from onward.rubrics.backends.local import ModelAnswerError
from onward.rubrics.evaluation import Preference
from onward.rubrics.gym.files import DIMENSIONS
from onward.rubrics.gym.loading import load_workflow
from onward.rubrics.gym.workers import Worker, requirements
from onward.rubrics.seed import (
    CommunicationService,
    ExecutionPhase,
    InitialRubricGenerationPhase,
    RubricDecompositionManagerAgent,
    SoftmaxPolicy,
    ValidationEngine,
    VLLMInterface,
    create_rubric_based_scorer,
    decompose_preference_to_evaluator,
    load_ground_truth_rubrics,
    load_training_workflows,
    stakeholder_of,
)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of random weights: what it writes is valid by the grammar alone."""
    corpus = ["Choose criteria by number, each with a weight. accuracy completeness form 1 2 3 4 5 6 7 8 9 0"]
    return build_tiny(
        tmp_path_factory.mktemp("tiny"),
        corpus,
        vocab=320,
        hidden=32,
        layers=1,
        heads=2,
        kv_heads=1,
        max_positions=8192,
    )


class Answer(BaseModel):
    names: list[str]


async def test_step_1_the_local_model_answers_by_type(model_folder: Path) -> None:
    class Point(BaseModel):
        x: bool
        y: bool

    local_llm = VLLMInterface(str(model_folder))
    system_prompt, user_prompt = "You choose.", "Choose."
    response = await local_llm.generate_structured(
        system_prompt=system_prompt, user_prompt=user_prompt, response_type=Point, temperature=1.0, seed=3
    )
    assert isinstance(response, Point)
    again = await local_llm.generate_structured(system_prompt, user_prompt, Point, 1.0, 3)
    assert again == response
    assert local_llm._extract_json('Sure: {"x": 1} done') == '{"x": 1}'


async def test_step_1_on_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM's part is a fake module: it records what it is called with."""
    calls: list[Any] = []

    class LLM:
        def __init__(self, model: str, dtype: str) -> None:
            calls.append((model, dtype))

        def chat(self, messages: Any, sampling: Any) -> Any:
            calls.append((messages, sampling))
            text = SimpleNamespace(text=' {"names": ["a"]}', token_ids=[1, 2, 3], finish_reason="stop")
            return [SimpleNamespace(outputs=[text], prompt_token_ids=[1])]

    fake, sampling = ModuleType("vllm"), ModuleType("vllm.sampling_params")
    fake.LLM, fake.SamplingParams = LLM, SimpleNamespace  # pyright: ignore[reportAttributeAccessIssue]
    sampling.StructuredOutputsParams = SimpleNamespace  # pyright: ignore[reportAttributeAccessIssue]
    fake.__spec__ = find_spec("json")
    monkeypatch.setitem(sys.modules, "vllm", fake)
    monkeypatch.setitem(sys.modules, "vllm.sampling_params", sampling)
    answer = await VLLMInterface("Qwen/Qwen2.5-32B-Instruct").generate_structured("s", "u", Answer, 0.3, 7)
    assert answer.names == ["a"]
    assert calls[0] == ("Qwen/Qwen2.5-32B-Instruct", "auto")
    assert (calls[1][1].temperature, calls[1][1].seed) == (0.3, 7)
    assert calls[1][1].structured_outputs.json == Answer.model_json_schema()


def test_without_vllm_and_without_a_folder_the_error_says_what_to_install() -> None:
    with pytest.raises(
        ConfigError, match=r"needs vLLM, which is not installed.*install vllm.*folder of a small"
    ):
        RubricDecompositionManagerAgent(use_local=True, model_path="Qwen/Qwen2.5-32B-Instruct")
    with pytest.raises(ConfigError, match="use_local needs a model: give model_path"):
        RubricDecompositionManagerAgent(use_local=True)


async def test_an_answer_that_is_cut_off_is_an_error(model_folder: Path) -> None:
    with pytest.raises(ModelAnswerError, match=r"ended early \(length after 2 tokens\)"):
        await VLLMInterface(model_folder, max_tokens=2).generate_structured("s", "u", Answer, 1.0, 1)


async def test_step_2_the_manager_takes_a_local_model(model_folder: Path) -> None:
    workflow = load_workflow("marketing_campaign")
    manager = RubricDecompositionManagerAgent(use_local=True, model_path=str(model_folder))
    stakeholder = stakeholder_of(workflow)
    phase = InitialRubricGenerationPhase(
        manager=manager, stakeholder=stakeholder, communication_service=CommunicationService(), max_turns=3
    )
    await phase.run(workflow)
    rubric = stakeholder.generated_rubrics[0]
    known = {one.id for one in requirements(workflow)}
    assert {one.name for one in rubric.rubrics} <= known
    assert all(one.max_score in (1, 2, 3, 4, 5) for one in rubric.rubrics)
    assert len(phase.conversation.turns) <= 3


async def test_where_to_calculate_loss() -> None:
    """The third section of S4. ``torch.norm`` takes a tensor, so the two totals are given as tensors."""
    workflow = load_workflow("product_recall")
    stakeholder = stakeholder_of(workflow)
    manager = RubricDecompositionManagerAgent(seed=1)
    phase = InitialRubricGenerationPhase(
        manager=manager, stakeholder=stakeholder, communication_service=CommunicationService()
    )
    validation_engine = ValidationEngine(seed=42)
    gt_rubric = load_ground_truth_rubrics()[workflow.name]

    await phase.run(workflow=workflow)
    synthetic_rubric = stakeholder.generated_rubrics[0]
    ExecutionPhase(Worker(0.7, 1)).run(workflow)  # (workers do their tasks)
    synthetic_eval = await validation_engine.evaluate_timestep(
        workflow=workflow,
        workflow_evaluators=[synthetic_rubric],
    )
    ground_truth_eval = await validation_engine.evaluate_timestep(
        workflow=workflow,
        workflow_evaluators=[gt_rubric],
    )
    logits = torch.zeros(4, requires_grad=True)
    action_logprobs = torch.log_softmax(logits, 0)[:2]
    reward = -torch.norm(
        torch.tensor(synthetic_eval.weighted_preference_total)
        - torch.tensor(ground_truth_eval.weighted_preference_total)
    )
    loss = -reward * action_logprobs.sum()
    loss.backward()
    # d/dlogits of log p0 + log p1 at equal logits: (1, 1, 0, 0) - 2 · 1/4.
    assert logits.grad is not None
    assert torch.allclose(logits.grad, -reward * torch.tensor([0.5, 0.5, -0.5, -0.5]))
    assert -1 <= reward.item() <= 0


async def test_step_3_one_episode_and_the_main_loop(capsys: pytest.CaptureFixture[str]) -> None:
    comm = CommunicationService()
    stakeholder = None

    async def train_one_episode(workflow: Any, gt_rubric: Any) -> float:
        # 1. Run pre-execution with trainable model
        decomp_manager = RubricDecompositionManagerAgent(
            use_local=False, model_path="Qwen/Qwen2.5-32B-Instruct"
        )
        phase = InitialRubricGenerationPhase(
            manager=decomp_manager,
            stakeholder=stakeholder,
            communication_service=comm,
            max_turns=3,
        )

        await phase.run(workflow)
        synthetic_rubric = stakeholder.generated_rubrics[0]

        # 2. Execute workflow (workers create outputs)
        ExecutionPhase(Worker(0.7)).run(workflow)

        # 3. Dual evaluation
        validation_engine = ValidationEngine(seed=42)

        synthetic_scores = await validation_engine.evaluate_timestep(
            workflow=workflow,
            workflow_evaluators=[synthetic_rubric],
            timestep=0, cadence=None, communications=None, manager_actions=None,
        )  # fmt: skip

        gt_scores = await validation_engine.evaluate_timestep(
            workflow=workflow,
            workflow_evaluators=[gt_rubric],
            timestep=0, cadence=None, communications=None, manager_actions=None,
        )  # fmt: skip

        # 4. Compute reward
        synthetic_score = synthetic_scores.weighted_preference_total
        gt_score = gt_scores.weighted_preference_total
        reward = -abs(synthetic_score - gt_score)  # Negative L1 distance

        print(f"Synthetic: {synthetic_score:.3f}, GT: {gt_score:.3f}, Reward: {reward:.3f}")

        return reward

    workflows = load_training_workflows()
    gt_rubrics = load_ground_truth_rubrics()
    for episode in range(3):
        workflow = workflows[episode % len(workflows)]
        gt_rubric = gt_rubrics[workflow.name]
        stakeholder = stakeholder_of(workflow)
        reward = await train_one_episode(workflow, gt_rubric)
        ours = await names.train_one_episode(workflow, gt_rubric)
        assert -1 <= reward <= 0
        assert -1 <= ours <= 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert all(
        line.startswith("Synthetic: ") and ", GT: " in line and ", Reward: -" in line for line in lines
    )
    assert lines[0].split(", ")[1] == lines[1].split(", ")[1]  # the same run, the same truth


async def test_a_preference_becomes_an_evaluator_and_an_evaluator_a_scorer() -> None:
    workflow = load_workflow("product_recall")
    truth = load_ground_truth_rubrics()["product_recall"]
    ready = Preference(name="reach", weight=1.0, evaluator=truth)
    assert await decompose_preference_to_evaluator(ready, workflow) is truth
    made = await decompose_preference_to_evaluator(Preference(name="reach", weight=1.0), workflow)
    ExecutionPhase(Worker(1.0)).run(workflow)
    assert await create_rubric_based_scorer(truth)(workflow) == 1.0
    assert await create_rubric_based_scorer(made)(workflow) == 1.0
    ExecutionPhase(Worker(0.0)).run(workflow)
    assert await create_rubric_based_scorer(truth)(workflow) == 0.0


async def test_the_old_engine_gave_no_score_without_a_cadence() -> None:
    workflow = load_workflow("product_recall")
    ExecutionPhase(Worker(1.0)).run(workflow)
    truth = load_ground_truth_rubrics()["product_recall"]
    old = ValidationEngine(seed=42, legacy=True)
    for engine, expected in ((ValidationEngine(seed=42), 1.0), (old, 0.0)):
        result = await engine.evaluate_timestep(workflow, 0, None, workflow_evaluators=[truth])
        assert result.weighted_preference_total == expected


async def test_episodes_at_the_same_time_share_nothing() -> None:
    async def episode(seed: int) -> list[str]:
        workflow = load_workflow("product_recall")
        manager = RubricDecompositionManagerAgent(seed=seed)
        await asyncio.sleep(0)
        made = await decompose_preference_to_evaluator("overall", workflow, stakeholder_of(workflow), manager)
        return [one.name for one in made.rubrics]

    together = await asyncio.gather(*(episode(seed) for seed in range(4)))
    assert list(together) == [await episode(seed) for seed in range(4)]


async def test_the_policy_asks_as_long_as_it_may_and_then_writes() -> None:
    workflow = load_workflow("product_recall")
    writer = SoftmaxPolicy(seed=5)
    writer.parameters = {f"ask {topic}": np.array([-50.0, 50.0]) for topic in DIMENSIONS}
    for max_turns, asked in ((0, 0), (1, 3), (2, 6), (3, 7)):  # three questions a turn, seven topics
        stakeholder = stakeholder_of(workflow)
        phase = InitialRubricGenerationPhase(
            manager=RubricDecompositionManagerAgent(writer=writer), stakeholder=stakeholder,
            communication_service=CommunicationService(), max_turns=max_turns,
        )  # fmt: skip
        await phase.run(workflow)
        assert len(phase.conversation.turns) == asked
        assert len(stakeholder.generated_rubrics) == 1


def test_every_name_of_the_quick_start_is_offered() -> None:
    for name in (
        "VLLMInterface", "RubricDecompositionManagerAgent", "InitialRubricGenerationPhase",
        "ValidationEngine",
        "decompose_preference_to_evaluator", "create_rubric_based_scorer", "load_training_workflows",
        "load_ground_truth_rubrics", "train_one_episode", "train_rubric_manager", "collect_rollout",
        "RubricRewardFunction",
    ):  # fmt: skip
        assert name in names.__all__
        assert hasattr(names, name)
