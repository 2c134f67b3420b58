"""Evaluation suites: items by which a policy is judged, whatever serves it.

``suite`` has the types. A suite knows no release and no model: it gets an ``Endpoint`` and returns a result
for each item. ``release.validation`` runs the same suites on candidate and current and compares.
"""
