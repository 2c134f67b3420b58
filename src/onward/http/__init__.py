"""The HTTP base of every service: ``app`` (protections, keys, errors), ``hosts`` and ``limits`` (who is
answered, and how often), ``server`` and ``connections`` (an app in our event loop, within limits of time and
number) and ``cors`` (paths that web pages may call)."""
