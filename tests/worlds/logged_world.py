"""Logged work with a known truth: one token per task, drawn by the policy; an even token has the reward 1."""

import json
from pathlib import Path
from typing import Any

import torch

from onward.lm.policy import Policy
from onward.lm.tokens import TokenRow
from onward.training.data import dataset


def prompt(task: int) -> list[int]:
    return [3, 10 + task % 200, 5 + task // 200, 4]


def distributions(policy: Policy, tasks: list[int], adapter: str | None = None) -> torch.Tensor:
    """Returns (tasks, vocabulary) probabilities of the token after each prompt, by a whole forward each."""
    from onward.lm.packing import Packed

    found = []
    with torch.no_grad():
        for task in tasks:
            row = TokenRow([*prompt(task), 0], [False] * 4 + [True], [0.0] * 5)
            packed = Packed([row], 0, policy.device)
            hidden = policy.hidden(packed, adapter)
            found.append((hidden @ policy.weights.head.T).float().softmax(-1)[0])
    return torch.stack(found)


def write_drawn(
    folder: Path, base: Path, tasks: int, seed: int = 0, attempts: int = 1
) -> list[dict[str, Any]]:
    """Writes a dataset of ``attempts`` at each task, each drawn from the network itself."""
    policy = Policy.load(base)
    draw = torch.Generator().manual_seed(seed)
    lines = []
    for task, chances in enumerate(distributions(policy, list(range(tasks)))):
        for attempt in range(attempts):
            token = int(torch.multinomial(chances, 1, generator=draw))
            lines.append(
                {
                    "trajectory_id": f"t{task}.{attempt}", "session_id": "s", "task_type": "a",
                    "group_key": f"g{task}", "outcome": float(token % 2 == 0), "success": token % 2 == 0,
                    "raw_total": float(token % 2 == 0), "unparsable": False, "staleness": 0,
                    "calls": [
                        {"generation_id": f"{task}.{attempt}", "continues": None, "prompt_ids": prompt(task),
                         "token_ids": [token], "logprobs": [float(chances[token].log())],
                         "temperature": 1.0, "top_p": 1.0, "top_k": None},
                    ],
                }
            )  # fmt: skip
    (folder / dataset.FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return lines
