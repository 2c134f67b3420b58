"""Onward: a closed reinforcement-learning loop for agents.

Importing this package loads nothing heavy; agents embed it. See ``onward.capture.recorder``.
"""

__version__ = "0.1.0"
