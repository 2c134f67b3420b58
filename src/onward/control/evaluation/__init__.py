"""Evaluation of policies: ``evaluate`` plays greedy episodes, ``assess`` scores a policy under noise and in
similar tasks, ``statistics`` computes figures over seeds, and ``curves`` draws learning curves."""
