"""The reinforcement-learning core for language policies.

It imports nothing of onward but ``errors`` and knows no bus, job or storage: a researcher can lift
it out. It needs torch, so only child processes and tests import it.
"""
