"""One valid document per message: the ``examples`` of the schemas, and a start for a new publisher."""

from __future__ import annotations

from typing import Any

TRAJECTORY: dict[str, Any] = {
    "trajectory_id": "0b9f6f5e-4a57-4c33-9d3e-6e4ad9a1c001",
    "session_id": "session-42",
    "agent_id": "agent-zero-main",
    "subordinate_profile": None,
    "start_timestamp": "2026-01-05T09:00:00.000Z",
    "end_timestamp": "2026-01-05T09:00:07.250Z",
    "turns": [
        {
            "turn_id": 1,
            "timestamp": "2026-01-05T09:00:00.000Z",
            "observation": {
                "type": "user_message",
                "content": "What is 17 times 23?",
                "context": {"available_tools": ["calculator", "response"], "subordinates_active": 0},
            },
            "thought_process": ["A product: use the calculator."],
            "action": {
                "type": "tool_call",
                "tool_name": "calculator",
                "tool_args": {"expression": "17 * 23"},
                "raw_response": '{"tool_name": "calculator", "tool_args": {"expression": "17 * 23"}}',
                "sampling": {
                    "generation_id": "gen-1",
                    "continues": None,
                    "prompt_ids": [1, 15, 27, 9],
                    "token_ids": [44, 12, 2],
                    "logprobs": [-0.25, -0.5, -0.125],
                    "temperature": 1.0,
                    "top_p": 1.0,
                    "top_k": None,
                    "finish_reason": "stop",
                    "model_digest": "sha256-0f1e",
                },
            },
            "result": {"success": True, "output": "391", "error": None, "execution_time_ms": 1.5},
        },
        {
            "turn_id": 2,
            "timestamp": "2026-01-05T09:00:04.000Z",
            "observation": {"type": "tool_result", "content": {"value": 391}},
            "action": {"type": "response", "raw_response": "17 times 23 is 391."},
            "result": {"success": True},
        },
    ],
    "task_context": {
        "task_id": "task-7",
        "instructions": "What is 17 times 23?",
        "complexity_score": 0.1,
        "domain": "general",
        "task_type": "arithmetic",
        "group_id": "task-7-group-1",
    },
    "metadata": {
        "model": "agent-zero-rl-v2.3",
        "temperature": 1.0,
        "total_tokens": 97,
        "total_cost_usd": 0.0,
        "outcome": {"status": "completed_successfully", "completion_percentage": 1.0},
        "release": {"release_id": "release-3", "arm": "candidate", "weight": 0.1},
    },
}

REWARD: dict[str, Any] = {
    "reward_id": "0b9f6f5e-4a57-4c33-9d3e-6e4ad9a1c002",
    "trajectory_id": "0b9f6f5e-4a57-4c33-9d3e-6e4ad9a1c001",
    "session_id": "session-42",
    "timestamp": "2026-01-05T09:00:07.300Z",
    "reward_components": {
        "task_completion": {"score": 1.0, "weight": 0.5, "source": "automated", "reasoning": "Completed."},
        "efficiency": {"score": 0.75, "weight": 0.25, "source": "automated", "raw_data": {"turns": 2}},
        "user_feedback": {"score": 0.5, "weight": 0.25, "source": "human", "raw_data": {"default": True}},
    },
    "total_reward": 0.6875,
    "reward_type": "sparse",
    "normalization": {"method": "z-score", "mean": 0.75, "std": 0.125},
    "metadata": {
        "evaluator": "rl-trainer-subordinate",
        "evaluation_method": "automated",
        "confidence": 0.75,
        "raw_total": 0.8125,
        "outcome": {"success": True, "completion": 1.0, "unparsable": False},
        "model_digest": "sha256-0f1e",
        "task_type": "arithmetic",
    },
}

FEEDBACK: dict[str, Any] = {
    "feedback_id": "0b9f6f5e-4a57-4c33-9d3e-6e4ad9a1c003",
    "session_id": "session-42",
    "trajectory_id": "0b9f6f5e-4a57-4c33-9d3e-6e4ad9a1c001",
    "turn_id": 2,
    "kind": "explicit",
    "signal": "rating",
    "value": 0.75,
    "comment": "Right, but slow.",
    "source": "webui",
    "timestamp": "2026-01-05T09:01:00.000Z",
}

OUTCOME: dict[str, Any] = {
    "outcome_id": "0b9f6f5e-4a57-4c33-9d3e-6e4ad9a1c004",
    "session_id": "session-42",
    "release_id": "release-3",
    "arm": "candidate",
    "weight": 0.1,
    "assigned_at": "2026-01-05T08:59:59.000Z",
    "timestamp": "2026-01-05T09:00:07.300Z",
    "kind": "reward",
    "value": 1.0,
    "model_id": "agent-zero-rl-v2.3",
}

TRAINING_REQUEST: dict[str, Any] = {
    "training_job_id": "0b9f6f5e-4a57-4c33-9d3e-6e4ad9a1c005",
    "timestamp": "2026-01-05T13:00:00.000Z",
    "requester": "rl-trainer-subordinate",
    "trigger_reason": "threshold_reached",
    "training_config": {
        "algorithm": "ppo",
        "base_model": "qwen2.5-32b-instruct",
        "dataset": {
            "source": "clickhouse",
            "filter": {
                "min_reward": 0.5,
                "max_trajectory_length": 50,
                "date_range": {"start": "2025-12-06T00:00:00.000Z", "end": "2026-01-05T00:00:00.000Z"},
                "task_domains": ["coding", "research", "general"],
            },
            "sample_size": 10000,
        },
        "hyperparameters": {"learning_rate": 1e-05, "batch_size": 32, "epochs": 3},
        "compute": {"gpu_count": 2, "gpu_type": "a100", "mixed_precision": "bf16"},
    },
    "evaluation": {"enabled": True, "holdout_size": 0.1, "metrics": ["reward", "kl_divergence"]},
    "priority": "normal",
    "metadata": {"requested_by": "coordinator", "previous_training_job": None},
}

TRAINING_STATUS: dict[str, Any] = {
    "training_job_id": "0b9f6f5e-4a57-4c33-9d3e-6e4ad9a1c005",
    "timestamp": "2026-01-05T14:00:00.000Z",
    "status": "running",
    "progress": {"current_epoch": 1, "total_epochs": 3, "percent_complete": 33.5, "eta_seconds": 7200.0},
    "metrics": {"current": {"loss": -0.015, "reward_mean": 0.625, "kl_divergence": 0.002}},
    "metadata": {"training_platform": "onward-local", "pytorch_version": "2.13.0"},
}

MODEL_DEPLOYED: dict[str, Any] = {
    "deployment_id": "0b9f6f5e-4a57-4c33-9d3e-6e4ad9a1c006",
    "training_job_id": "0b9f6f5e-4a57-4c33-9d3e-6e4ad9a1c005",
    "timestamp": "2026-01-05T18:00:00.000Z",
    "model_info": {
        "model_id": "agent-zero-rl-v2.4",
        "base_model": "qwen2.5-32b-instruct",
        "checkpoint_path": "s3://models/rl-checkpoints/job-5/3/",
        "training_samples": 10000,
        "final_reward": 0.6875,
    },
    "deployment_config": {
        "serving_platform": "tensorzero",
        "endpoint": "http://tensorzero-gateway:3000/v1",
        "model_name": "agent-zero-rl-v2.4",
        "rollout_strategy": "canary",
        "traffic_percentage": 10.0,
        "ramp_schedule": [{"timestamp": "2026-01-05T19:00:00.000Z", "percentage": 25.0}],
    },
    "validation_results": {
        "benchmark_passed": True,
        "safety_checks_passed": True,
        "performance_regression": False,
        "benchmark_scores": {"desk": 0.5},
    },
    "metadata": {
        "deployed_by": "releaser",
        "approval_status": "automated",
        "previous_model": "agent-zero-rl-v2.3",
        "event": "candidate",
        "release_id": "release-3",
        "engine": "local",
    },
}
