"""Serving: the gateway that agents call, and the engines behind it.

``http`` has the gateway, ``protocol`` the OpenAI shapes, ``routing`` the assignment of sessions to the arms
of a release, ``recording`` the capture of calls as training data, ``engines`` the engines. Only the engine
child imports torch (``engines/child.py`` and ``engines/sampling.py``).
"""
