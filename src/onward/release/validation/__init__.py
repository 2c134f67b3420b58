"""Validation of a candidate against the current model, before it gets traffic.

``suite`` runs the desk tasks, ``checks`` the refusal and format checks, ``comparison`` compares the two
policies. ``trial`` runs a validation as a task beside the releaser's ticks. ``kept`` stores results per
policy, ``lineage`` finds what the models were trained on.
"""
