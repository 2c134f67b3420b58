"""Evaluation of policies: ``evaluate`` plays greedy episodes, ``assess`` scores a policy under noise and in
similar tasks, and ``statistics`` computes figures over seeds."""
