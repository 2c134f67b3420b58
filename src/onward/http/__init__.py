"""The HTTP base of every service: ``app`` (protections, keys, errors), ``server`` (runs an app in our event
loop) and ``cors`` (paths that web pages may call)."""
