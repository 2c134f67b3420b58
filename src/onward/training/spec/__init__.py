"""The specification of a job. ``request`` resolves a training request into a JobSpec; ``numbers`` and
``recipes`` have its numbers, ``environment_plan`` the plan for an environment. ``departures`` reports where a
job differs from its request.
"""
