"""Sentences that the coordinator reports to the superior agent."""

from __future__ import annotations


def count(number: int) -> str:
    """Formats a number of samples: ``10K``, ``2.5K``, ``640``."""
    if number < 1000 or number % 100:
        return f"{number:,}"
    return f"{number / 1000:,g}K"


def job_begins(number: int | None, job_id: str, samples: int) -> str:
    """Reports a job that the trainer has accepted."""
    name = f"#{number}" if number is not None else job_id
    return f"Initiating RL training job {name} with {count(samples)} samples"
