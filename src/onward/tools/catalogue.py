"""Every tool, with the words by which a model chooses it.

A description has the same parts: what the tool does, ``Use it to …`` with the words that people say, and
``Not for …``, which names the neighbour. The tool-choice suite measures whether the words decide.
"""

from __future__ import annotations

from onward.tools import arguments as of
from onward.tools.tool import Tool

_ALL = (
    Tool(
        "status", "read", of.Status,
        "Shows how the learning loop is doing: which model serves, is live or in production, traffic "
        "shares, counts of trajectories, the progress towards the next training (threshold), streams, disk, "
        "gateways, what is not healthy. With model_id: the figures of one model (error rate, mean reward, "
        "requests). Use it to get an overview, check health, ask what is running, which models exist and "
        "how a served model performs. Not for one job (job_status), a list of past events (report) or a "
        "release (release).",
        "overview:status",
    ),
    Tool(
        "report", "read", of.Report,
        "Lists what happened, newest first, in sentences for a superior or a person: jobs initiated, "
        "completed and failed, models deployed, rolled back or rejected. Use it for news, a summary, a "
        "digest, a history or timeline of events, what happened overnight, today or since yesterday, what "
        "to tell the boss. Not for the present state (status).",
        "overview:report",
    ),
    Tool(
        "job_status", "read", of.JobStatus,
        "Follows a job by its id: queued, running, percent, ETA, loss and metrics, place in the queue, "
        "error and its code (why it failed: OOM, DATA), checkpoint path of a finished one; also background "
        "jobs of these tools. Without an id lists jobs, failed ones for example. Use it to poll progress, "
        "ask whether a training job is finished, how far it is, how long it still takes, and why a job "
        "failed. Not to start (start_training) or stop one (cancel_job).",
        "training:job_status",
    ),
    Tool(
        "validate_trajectory", "read", of.ValidateTrajectory,
        "Checks a document against its JSON schema and names the fields that are wrong or missing; judges "
        "form alone. Use it to validate a trajectory, payload or message before it is sent: is it valid, "
        "well formed, complete, conformant to the contract, which field breaks the schema. Not for how good "
        "the work was (compute_reward), and not for a model (run_benchmarks).",
        "data:validate_trajectory",
    ),
    Tool(
        "redact_sensitive_info", "read", of.RedactSensitiveInfo,
        "Returns a document or text with secrets and personal data replaced: API keys, passwords, tokens, "
        "e-mail addresses, phone numbers, names, cards, PII. Use it to redact, mask, remove, scrub, "
        "anonymise, clean or hide sensitive information before text is shared, stored or shown, and to count "
        "what leaked. Changes nothing that is stored.",
        "data:redact_sensitive_info",
    ),
    Tool(
        "compute_reward", "read", of.ComputeReward,
        "Scores one trajectory from 0 to 1: task completion, efficiency, code quality and user feedback, "
        "weighted, each with its reasoning; with the id of a stored one explains the reward that it got. "
        "Use it to rate, grade, score or evaluate how good a run of an agent was, to try other weights, and "
        "to explain why a reward is low or high. Stores nothing. Not for the form (validate_trajectory) and "
        "not for a model's quality (run_benchmarks).",
        "data:compute_reward", seconds=60,
    ),
    Tool(
        "subscribe_nats", "read", of.SubscribeNats,
        "Listens on one NATS subject from now on and returns the messages that arrive, up to a count and a "
        "time. Use it to watch, tail, listen, monitor or wait for live messages and events on the bus, such "
        "as agent.rl.trajectory.v1, agent.rl.training.status.v1 or agent.rl.model.deployed.v1. Not for what "
        "happened before (report) or for the progress of one job (job_status).",
        "messages:subscribe_nats", seconds=75,
    ),
    Tool(
        "publish_nats", "train", of.PublishNats,
        "Publishes, sends or emits one message on a NATS subject after validation and redaction: a whole "
        "trajectory, a feedback vote (thumbs up, rating, correction) or a training request that is already "
        "written as a JSON payload. Use it to put a finished message on the bus. Rewards and deployments "
        "are published by the service alone. Not to begin a training from a wish in words (start_training).",
        "messages:publish_nats", changes=True,
    ),
    Tool(
        "start_training", "train", of.StartTraining,
        "Starts, triggers, launches or initiates a training job that fine-tunes the language model on "
        "collected trajectories (PPO, DPO, RLOO, GRPO, REINFORCE) and returns the job at once. Use it to "
        "train or retrain the agent, for example with 10K samples from the last 30 days, only coding data, "
        "another learning rate. Not for Gymnasium environments (control_train), and not to follow a job "
        "(job_status).",
        "training:start_training", changes=True,
    ),
    Tool(
        "control_train", "train", of.ControlTrain,
        "Trains a control policy from scratch in a Gymnasium environment or simulator (CartPole, "
        "LunarLander, Pendulum, a robot, a game) with DQN, PPO, SAC, DDPG, A3C, TD3 or tabular Q-learning, "
        "and returns the job at once. Use it to solve, learn or balance an environment with classic "
        "reinforcement learning and timesteps. Not for the language model or its trajectories "
        "(start_training).",
        "training:control_train", changes=True,
    ),
    Tool(
        "cancel_job", "train", of.CancelJob,
        "Cancels, stops, kills or aborts a queued or running job by its id. Use it when a training or a "
        "benchmark should not go on, is stuck, takes too long or was started by mistake. Not for a release "
        "under way (release with abort).",
        "training:cancel_job", changes=True,
    ),
    Tool(
        "download_checkpoint", "train", of.DownloadCheckpoint,
        "Fetches the weights of a trained checkpoint from the object store (S3, MinIO) to a folder of this "
        "machine, verifies every file, and returns a job at once. Use it to download, pull, copy or fetch a "
        "checkpoint, an adapter or LoRA files to disk, to inspect them locally. Gives no traffic. Not to "
        "put it in production (deploy_to_tensorzero).",
        "models:download_checkpoint", changes=True,
    ),
    Tool(
        "run_benchmarks", "train", of.RunBenchmarks,
        "Measures a stored model against the current one on benchmark suites (code_gen, data_analysis, "
        "research, tool_usage, safety, jailbreak, toxicity) without any traffic, and returns a job at once. "
        "Use it to benchmark, test, compare or evaluate a model or checkpoint: is it better, any "
        "regression, does it pass the safety checks. Not for one trajectory (compute_reward) or for figures "
        "of live traffic (status).",
        "models:run_benchmarks", changes=True,
    ),
    Tool(
        "deploy_to_tensorzero", "release", of.DeployToTensorzero,
        "Registers a new checkpoint from the object store (checkpoint_path, s3://…) under a model id in the "
        "gateway and asks for its canary rollout: validation, a person's approval, then growing traffic. "
        "Use it to deploy, ship, put into production or roll out a checkpoint that is not a stored model "
        "yet. Not for a model that is stored already, and not to hold, stop or roll back (release).",
        "releases:deploy_to_tensorzero", seconds=60, changes=True,
    ),
    Tool(
        "release", "release", of.Release,
        "Acts on releases of stored models: list and show them, start the release of a stored model (a "
        "person approves), hold or freeze the ramp at its present share, abort it, or roll back to the "
        "previous model at once. Use it to pause a canary, take a bad model back, revert, undo, restore the "
        "version before in an emergency, and to see why a candidate was rejected or at which step a rollout "
        "is. Not for a checkpoint that has no model id yet (deploy_to_tensorzero).",
        "releases:release", seconds=60, changes=True,
    ),
)  # fmt: skip
TOOLS: dict[str, Tool] = {tool.name: tool for tool in _ALL}
"""Name → tool. The order is that of a list of tools: looking first, changes last."""
