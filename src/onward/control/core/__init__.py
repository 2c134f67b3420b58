"""Foundations of control: ``contract`` (steps and environments), ``spaces`` (flat observations, actions),
``normalise`` (running statistics), ``rollout`` and ``replay`` with its ``sum_tree`` (stored steps),
``returns`` (advantages), ``config`` and ``fields`` (settings and their bounds), ``seeds`` (random streams)
and ``threads``."""
