"""The specification of a job, in one place for requests, job files and ``onward train``.

``algorithms`` has the algorithms and ``numbers`` their numbers, ``recipes`` the values for a model, and
``environment_plan`` the plan for an environment. ``request`` resolves a training request into a JobSpec;
``differences`` reports where a job differs from its request.
"""
