"""Capture: turns the work of an agent into a stored trajectory without secrets.

``recorder`` runs inside the agent; ``clients`` wraps client libraries; ``conversations`` turns chats into
turns (chats that come through the gateway: ``onward.serving.recording``); ``collecting`` takes trajectories
from the stream into the warehouse. Agents embed ``recorder``, so importing this package loads nothing.
"""
