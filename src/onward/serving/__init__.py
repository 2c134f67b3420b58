"""Serving: the gateway that agents call, the router that decides who is a candidate's session, and
the engines behind it. Nothing here imports torch but ``engines/child.py``, which runs as a child."""
