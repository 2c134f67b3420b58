"""``agent.rl.training.request.v1`` and ``agent.rl.training.status.v1``: request and status of one job.

The published schema is open below the top level: an environment job sends ``dataset.source = "local"`` plus
``dataset.environment``. ``learning_rate`` must be above 0 (the published ``exclusiveMinimum: true``).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from onward.contracts import examples
from onward.contracts.base import (
    Count,
    ExtendedPart,
    Flag,
    Id,
    ListOf,
    Message,
    Number,
    Object,
    Part,
    Positive,
    Share,
    Text,
    Timestamp,
    nullable,
    optional,
    own_field,
    required,
)
from onward.contracts.trajectory import Domain

NonNegative = Annotated[Number, Field(ge=0)]
Algorithm = Literal["ppo", "dpo", "rloo", "grpo", "reinforce"]
JobStatus = Literal["queued", "running", "completed", "failed", "cancelled"]
ErrorCode = Literal["OOM", "CONVERGENCE", "DATA", "INFRA", "TIMEOUT", "UNKNOWN"]


class DateRange(Part):
    start: Timestamp | None = optional("Earliest trajectory.")
    end: Timestamp | None = optional("Latest trajectory.")


class DatasetFilter(Part):
    min_reward: Number | None = optional("Minimum reward.")
    max_trajectory_length: Positive | None = optional("Maximum number of turns.")
    date_range: DateRange | None = optional("Time range of the trajectories.")
    task_domains: ListOf[Domain] | None = optional("Only these task domains.")
    exclude_subordinate_profiles: ListOf[Text] | None = optional("Not these subordinate profiles.")


class DatasetSpec(ExtendedPart):
    source: Literal["nats_stream", "clickhouse", "s3", "local"] = required("Where trajectories come from.")
    stream_name: Text | None = optional("Stream, when source is nats_stream.", examples=["RL_TRAJECTORIES"])
    filter: DatasetFilter | None = optional("Which trajectories.")
    sample_size: Positive = required("Number of trajectories to use.")
    environment: Object | None = own_field("Environment to sample from, when source is local.")
    path: Text | None = own_field(
        "File or folder: under training.data_roots when source is local, below objects.trajectories_url when "
        "it is s3.",
        examples=["exports/2026-11.jsonl"],
    )
    sampling: Literal["newest", "balanced"] | None = own_field(
        "newest takes the newest trajectories, balanced equal parts of each task domain; newest when absent."
    )
    domain_mix: Object | None = own_field(
        "Share of each task domain in the sample; the shares sum to 1 or to 100.",
        examples=[{"coding": 40, "research": 30, "general": 30}],
    )


class Hyperparameters(Part):
    learning_rate: Annotated[Number, Field(gt=0)] | None = optional("Learning rate, above 0.")
    batch_size: Positive | None = optional("Batch size.")
    epochs: Positive | None = optional("Number of epochs.")
    clip_epsilon: NonNegative | None = optional("Clipping range of the probability ratio.")
    gamma: Share | None = optional("Discount factor.")
    gae_lambda: Share | None = optional("Lambda of generalised advantage estimation.")


class Compute(Part):
    gpu_count: Count | None = optional("Number of GPUs.")
    gpu_type: Text | None = optional("Kind of GPU.", examples=["a100", "v100", "t4", "any"])
    distributed: Flag | None = optional("Whether to train on several machines.")
    mixed_precision: Literal["fp32", "fp16", "bf16"] | None = optional("Precision of the arithmetic.")


class Checkpointing(Part):
    save_interval: Positive | None = optional("Steps between checkpoints.")
    max_checkpoints: Positive | None = optional("Number of checkpoints to keep.")
    storage_path: Text | None = optional("Where checkpoints go.", examples=["s3://models/rl-checkpoints/"])


class TrainingConfig(Part):
    algorithm: Algorithm = required("Algorithm.")
    base_model: Text = required("Model to tune.", examples=["qwen2.5-32b-instruct", "qwen2.5-14b-instruct"])
    dataset: DatasetSpec = required("What to learn from.")
    hyperparameters: Hyperparameters = required("Hyperparameters; what is absent takes its default.")
    compute: Compute | None = optional("Compute that the job needs.")
    checkpointing: Checkpointing | None = optional("How checkpoints are saved.")


class EvaluationSpec(Part):
    enabled: Flag | None = optional("Whether to evaluate during training.")
    holdout_size: Share | None = optional("Part of the data held out.")
    metrics: ListOf[Literal["reward", "task_completion", "efficiency", "loss", "kl_divergence"]] | None = (
        optional("Metrics to compute.")
    )
    benchmark_tasks: ListOf[Text] | None = optional("Benchmark tasks to evaluate on.")


class RequestMetadata(ExtendedPart):
    requested_by: Text | None = optional("User or system that asked.")
    previous_training_job: Text | None = nullable("Job that this one continues.")
    notes: Text | None = optional("Notes.")
    strict: Flag | None = own_field("Fail the job if a part of this request cannot be met as asked.")


class TrainingRequest(Message):
    """Request for one training job."""

    model_config = ConfigDict(
        title="Agent RL Training Request", json_schema_extra={"examples": [examples.TRAINING_REQUEST]}
    )

    training_job_id: Id = required("Unique id of the job: a UUID, or a name such as manual-<uuid>.")
    timestamp: Timestamp = required("When it was asked for.")
    requester: Text = required(
        "Who asks.", examples=["rl-trainer-subordinate", "user-manual", "scheduled-job"]
    )
    trigger_reason: Literal["scheduled", "threshold_reached", "manual", "performance_degradation"] = required(
        "Why."
    )
    training_config: TrainingConfig = required("What to train, on what, how.")
    evaluation: EvaluationSpec | None = optional("Evaluation during training.")
    priority: Literal["low", "normal", "high", "urgent"] | None = optional(
        "Priority. When absent: high for a manual request, urgent after degradation, else normal."
    )
    metadata: RequestMetadata | None = optional("More about the request.")


ControlAlgorithm = Literal["q_learning", "reinforce", "dqn", "ppo", "a3c", "sac", "ddpg", "td3"]


class ControlRequest(Message):
    """Request for one job that trains a control policy: ``agent.rl.training.control.v1``."""

    training_job_id: Id = required("Unique id of the job.")
    timestamp: Timestamp = required("When it was asked for.")
    requester: Text = required("Who asks.")
    algorithm: ControlAlgorithm = required("Algorithm.")
    environment: Text = required(
        "Id of a Gymnasium environment, or of one of ours.", examples=["CartPole-v1"]
    )
    timesteps: Positive | None = optional("Environment steps; absent: those of the preset.")
    seed: Count | None = optional("Seed of all randomness; 0 when absent.")
    settings: Object | None = optional("Changes to the preset of the algorithm.", examples=[{"num_envs": 16}])
    priority: Literal["low", "normal", "high", "urgent"] | None = optional("Priority; normal when absent.")


class RubricsRequest(Message):
    """Request for one job that trains a rubric writer: ``agent.rl.training.rubrics.v1``."""

    kind: Literal["rubrics"] = required("Kind of the job.")
    training_job_id: Id = required("Unique id of the job.")
    timestamp: Timestamp = required("When it was asked for.")
    requester: Text = required("Who asks.")
    algorithm: Literal["rloo", "grpo", "reinforce", "reinforce_plus_plus", "reinforce_pp"] = required(
        "Algorithm; reinforce_pp is short for reinforce_plus_plus."
    )
    steps: Count | None = optional("Steps of learning; absent: those of the preset.")
    seed: Count | None = optional("Seed of all randomness; 0 when absent.")
    settings: Object | None = optional("Changes to the preset.", examples=[{"group_size": 8}])
    priority: Literal["low", "normal", "high", "urgent"] | None = optional("Priority; normal when absent.")


class Progress(Part):
    current_epoch: Count | None = optional("Epoch in progress.")
    total_epochs: Positive | None = optional("Epochs in all.")
    current_step: Count | None = optional("Step in progress.")
    total_steps: Positive | None = optional("Steps in all.")
    percent_complete: Annotated[Number, Field(ge=0, le=100)] | None = optional("Part done, in percent.")
    eta_seconds: NonNegative | None = optional("Estimated seconds to completion.")


class CurrentMetrics(Part):
    loss: Number | None = optional("Training loss.")
    reward_mean: Number | None = optional("Mean reward of the training data.")
    reward_std: NonNegative | None = optional("Standard deviation of the reward.")
    policy_entropy: Number | None = optional("Entropy of the policy.")
    kl_divergence: NonNegative | None = optional("KL divergence from the base model (k3: never negative).")
    learning_rate: NonNegative | None = optional("Learning rate now.")


class BestMetrics(Part):
    epoch: Count | None = optional("Epoch of the best result.")
    step: Count | None = optional("Step of the best result.")
    reward_mean: Number | None = optional("Mean reward there.")
    checkpoint_path: Text | None = optional("Its checkpoint.")


class TrainingMetrics(Part):
    current: CurrentMetrics | None = optional("Metrics of the epoch or step in progress.")
    best: BestMetrics | None = optional("Best so far.")


class EvaluationResults(ExtendedPart):
    holdout_reward: Number | None = optional(
        "Mean reward of the released policy on the held-out set. That policy has the highest success of N "
        "evaluations (metrics.current.handed_out), so this is above its mean on other tasks."
    )
    benchmark_scores: dict[Text, Number] | None = optional("Score by benchmark task.")
    improvement_over_baseline: Number | None = optional("Improvement over the base model.")
    holdout: Object | None = own_field(
        "How the held-out reward was found: method, 95 % interval (low, high), tasks, attempts, effective "
        "number of tasks; or the reason why there is none."
    )


class Artifacts(Part):
    final_checkpoint: Text | None = optional("Path of the final checkpoint.")
    tensorboard_logs: Text | None = optional("Path of the TensorBoard logs.")
    training_curves: Text | None = optional("Path of the training curves.")
    model_card: Text | None = optional("Path of the model card.")


class ResourceUsage(Part):
    gpu_hours: NonNegative | None = optional("GPU hours used.")
    cost_usd: NonNegative | None = optional("Estimated cost in US dollars.")
    peak_memory_gb: NonNegative | None = optional("Peak GPU memory in GB.")
    total_training_time_seconds: NonNegative | None = optional("Wall-clock seconds of training.")


class JobError(Part):
    code: ErrorCode | None = optional("Kind of error.")
    message: Text | None = optional("The error in words.")
    traceback: Text | None = optional("Where it happened.")


class StatusMetadata(Part):
    training_platform: Text | None = optional("Platform.", examples=["agentgym-rl-v1", "trl-v0.9"])
    cuda_version: Text | None = optional("CUDA version.")
    pytorch_version: Text | None = optional("PyTorch version.")


class TrainingStatus(Message):
    """Progress and result of one training job."""

    model_config = ConfigDict(
        title="Agent RL Training Status", json_schema_extra={"examples": [examples.TRAINING_STATUS]}
    )

    training_job_id: Id = required("The job.")
    timestamp: Timestamp = required("When this was so.")
    status: JobStatus = required("Status of the job.")
    progress: Progress | None = optional("How far it is.")
    metrics: TrainingMetrics | None = optional("Training metrics.")
    evaluation_results: EvaluationResults | None = optional("Results on held-out and benchmark data.")
    artifacts: Artifacts | None = optional("What the job produced.")
    resource_usage: ResourceUsage | None = optional("What it cost.")
    error: JobError | None = optional("What went wrong, when status is failed.")
    metadata: StatusMetadata | None = optional("More about the job.")
