"""The plugin's child process: assembles trajectories from Agent Zero's events, redacts, and records them.

It has Onward's own interpreter and its recorder. ``python -m onward.integrations.agent_zero.worker`` reads
JSON lines and confirms each task when it is on disk. When its input ends, Agent Zero has ended: it records
what is open and ends too.
"""
