"""Conversations: chat messages and completions become turns of a trajectory.

Shared by wrapped clients, LangChain and the gateway: ``links`` finds the open conversation of a request,
``exchange`` converts a request with its answer into turns, ``answers`` reads text as tool calls, and
``messages`` converts a stored trajectory back. For wrapped clients ``matching`` assigns each call to a task
and ``dialogue`` fills it; ``turns`` converts plain values into the parts of a turn.
"""
