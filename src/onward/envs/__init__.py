"""Environments: places where an agent works and where a program decides whether the work succeeded.

Pure Python on purpose: the agents' process imports this package and must stay light.
"""
