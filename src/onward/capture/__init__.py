"""Capture: from what an agent did to a stored trajectory without secrets.

Agents embed ``recorder``, so importing this package loads nothing.
"""
