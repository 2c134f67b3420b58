"""The benchmark tasks that Onward ships, written for it: code, tables, research, tools.

``task`` has the common form, and each task a module with its items and its judgement. ``shipped`` runs a task
on an endpoint, and ``inspect_tasks`` offers the same tasks to Inspect. ``data`` has the items as JSON lines.
"""
