"""Environments: an agent works in one, and a program decides whether the work succeeded.

Modules here are pure Python on purpose: the agents' process imports this package and must stay light.
"""
