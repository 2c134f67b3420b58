"""The warm start, which makes the first policy v0. ``warmup`` is its child process, ``desk_base`` and
``tiny_base`` build tiny base models, ``desk_attempts`` measures a policy on desk tasks.
"""
