"""Conversations: chat messages and completions become turns of a trajectory.

``matching`` assigns each call to a task, ``dialogue`` fills a task turn by turn, and ``turns`` converts
values into the parts of a turn.
"""
